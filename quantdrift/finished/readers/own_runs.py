"""One arm of a run folder of quantdrift as a ranking."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.finished.readers.contents import Arm, FinishedRun, Labelled, Part, Ranked
from quantdrift.finished.readers.files import digest
from quantdrift.runs import EVIDENCE, Run, read_run

__all__ = ["read_own"]

_OWN = "quantdrift run"
_TELLING = ("name", "split", "subset", "revision", "n_fewshot")
"""What says which data a harness took, where no digest of the texts was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Digested:
    """Data of which there is a digest: the same ones are the same, whatever they are called."""

    name: str = field(compare=False)
    digest: str

    def __str__(self) -> str:
        return f"{self.name} (digest {self.digest})"


def read_own(path: Path, arm: Arm) -> FinishedRun:
    """Read the ranking of one arm of a run.

    A run holds both arms' scores of the first items of either arm. So more scores are known than
    ranks: those of the other arm's first items too, which lie somewhere below.

    Args:
        path: the run folder.
        arm: which of its two.

    Raises:
        RunError: it is not a run folder, or one that `quantdrift diff` wrote.
    """
    run = read_run(path)
    if "diff" in run.record:
        made = run.record["diff"]
        names = " and ".join(str(made[arm]["path"]) for arm in ("reference", "candidate"))
        raise RunError(f"{path} was made by quantdrift diff, of {names}; give one of those instead")
    evidence = run.evidence()
    part: Part
    if evidence.deltas == "none":
        part = Labelled(answers=_answers(evidence, arm), qrels=_qrels(evidence))
    else:
        whole = not evidence.cut_short
        part = Ranked(
            rankings=_rankings(evidence, arm),
            depth=None if whole else evidence.depth,
            complete=whole,
            qrels=_qrels(evidence),
        )
    record = run.record
    spec, model = str(record.get("spec")), record.get("model", {})
    return FinishedRun(
        path=run.path,
        format="run",
        name=spec if arm == "candidate" else str(model.get("name", spec)),
        digest=digest(arm, run.record["files"][EVIDENCE]),
        parts={"": part},
        settings={"": _settings(run)},
        data=record.get("data", {}).get("name"),
        data_by=_data_by(run),
        reference=model.get("fingerprint"),
    )


def _settings(run: Run) -> dict[str, Any]:
    """What does not depend on the model: the data, and how answers were read from scores.

    Every program names its data, and takes a digest of them, in a way of its own. So both say
    something only beside those of the same program; of others ids and sizes have to do.
    """
    data, settings = run.record.get("data", {}), run.record.get("settings", {})
    told: Any = ", ".join(str(data[name]) for name in _TELLING if data.get(name) not in (None, ""))
    if data.get("fingerprint") is not None:
        told = _Digested(name=str(data.get("name")), digest=str(data["fingerprint"]))
    by, size = _data_by(run), data.get("n_documents")
    return {
        "data" if by == _OWN else f"data of {by}": told,
        **({} if size is None else {"number of documents": size}),
        "reading": settings.get("reading", "similarities"),
    }


def _data_by(run: Run) -> str:
    return str(run.record.get("data", {}).get("harness") or _OWN)


def _rankings(evidence: Evidence, arm: Arm) -> dict[str, dict[str, float]]:
    tops = evidence.reference_top, evidence.candidate_top
    names = [str(name) for name in evidence.item_ids]
    items = np.concatenate([top.items for top in tops], axis=1)
    scores = np.concatenate([getattr(top, f"{arm}_scores") for top in tops], axis=1)
    return {
        str(input_id): {
            names[item]: score
            for item, score in zip(items[row].tolist(), scores[row].tolist(), strict=True)
            if item >= 0 and not math.isnan(score)
        }
        for row, input_id in enumerate(evidence.input_ids)
    }


def _answers(evidence: Evidence, arm: Arm) -> dict[str, str]:
    top = evidence.candidate_top if arm == "candidate" else evidence.reference_top
    names = [str(evidence.item_ids[item]) for item in top.items[:, 0]]
    return dict(zip(map(str, evidence.input_ids), names, strict=True))


def _qrels(evidence: Evidence) -> dict[str, dict[str, int]] | None:
    judgements = evidence.judgements
    if judgements is None or not len(judgements.items):  # labels of other inputs label nothing
        return None
    return {
        str(input_id): {
            str(evidence.item_ids[item]): grade for item, grade in judgements.of(row).items()
        }
        for row, input_id in enumerate(evidence.input_ids)
    }
