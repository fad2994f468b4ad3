"""A comparison of finished runs as run folders, which the other commands read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from quantdrift import __version__
from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.finished.diff import Diff, PartDiff
from quantdrift.finished.readers.contents import FinishedRun
from quantdrift.finished.readers.files import digest
from quantdrift.metrics import measure
from quantdrift.runs import Run, write_run

__all__ = ["data_digest", "write_diff"]


def write_diff(diff: Diff, folder: Path) -> list[Run]:
    """Write one run folder, or one per part below it.

    Args:
        diff: the comparison.
        folder: where; a part of a name gets a folder of that name in it.

    Raises:
        RunError: no part has evidence, it would replace one of the two runs, or it cannot be
            written.
    """
    known = [(part, part.evidence) for part in diff.parts if part.evidence is not None]
    if not known:
        raise RunError("there is no evidence to write: no part has an answer that could change")
    places: dict[str, Path] = {}
    sources = {os.path.realpath(run.path) for run in (diff.a, diff.b)}
    for part, _ in known:
        place = folder if len(diff.parts) == 1 else folder / _folder_name(part.name)
        while place in places.values():  # two names of the same letters and digits
            place = place.with_name(f"{place.name}-")
        if os.path.realpath(place) in sources:
            raise RunError(
                f"{place} is one of the two runs that are compared, which the comparison would "
                "replace. Choose another folder with --out"
            )
        places[part.name] = place
    return [
        write_run(places[part.name], evidence=evidence, record=_record(diff, part, evidence))
        for part, evidence in known
    ]


def _record(diff: Diff, part: PartDiff, evidence: Evidence) -> dict[str, Any]:
    a, b = diff.a, diff.b
    names = [name for name in (a.data or b.data, part.name) if name]
    named = ", ".join(dict.fromkeys(names))
    return {
        "spec": f"{a.model} vs {b.model}",
        "diff": {
            "quantdrift": __version__,
            **{
                arm: {
                    "path": str(run.path),
                    "format": run.format,
                    "name": run.name,
                    "digest": run.digest,
                }
                for arm, run in (("reference", a), ("candidate", b))
            },
            "part": part.name,
            "left_out": list(part.left_out),
            "deltas": evidence.deltas,
            "notes": [*diff.notes, *part.notes],
        },
        # the reference is what its file holds; two diffs with one reference can be compared
        "model": {
            "name": a.model,
            "fingerprint": _reference(a),
            "candidate_name": b.model,
            "candidate_fingerprint": b.digest,
        },
        "data": {
            "name": named or f"{evidence.n_inputs:,} inputs",
            "fingerprint": data_digest(evidence, part.asked),
            "n_queries": evidence.n_inputs,
            "warnings": [],
        },
        "settings": {
            "k": evidence.depth,
            "deltas": evidence.deltas,
            # what a bound is worth depends on how deep the lists were
            **({} if evidence.exact else {"ranks_compared": evidence.depth}),
        },
        "metrics": {name: found.to_json() for name, found in measure(evidence).items()},
    }


def _reference(run: FinishedRun) -> str:
    return f"{run.format}:{run.digest}"


def data_digest(evidence: Evidence, asked: str = "") -> str:
    """Of the ids of the inputs and their labels, whatever their order.

    Args:
        evidence: of the inputs.
        asked: digest of what they were asked, where that is known.
    """
    rows = [asked] if asked else []
    for row, name in enumerate(evidence.input_ids):
        labels = {} if evidence.judgements is None else evidence.judgements.of(row)
        told = sorted(f"{evidence.item_ids[item]}\t{grade}" for item, grade in labels.items())
        rows.append("\n".join([str(name), *told]))
    return digest(*sorted(rows))


def _folder_name(name: str) -> str:
    return re.sub(r"[^\w.+#-]+", "-", name).strip("-") or "part"
