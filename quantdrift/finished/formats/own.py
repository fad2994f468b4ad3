"""One arm of a run folder of quantdrift."""

import math

import numpy as np

from quantdrift.base.errors import RunError
from quantdrift.evidence.record import Evidence
from quantdrift.finished.contents import Arm, FinishedRun, Part, digest
from quantdrift.finished.formats import Format, Source
from quantdrift.runs.folder import EVIDENCE, RECORD, read_run
from quantdrift.runs.identity import Identity


def _read(source: Source) -> FinishedRun:
    """Read the ranking of one arm of a run.

    A run holds both arms' scores for the first items of either arm. So the ranking has more items than known ranks:
    the other arm's first items too, which lie somewhere further down.
    """
    path, arm = source.path, source.arm
    run = read_run(path)
    record = run.record
    if "diff" in record:
        names = " and ".join(str(record["diff"][side]["path"]) for side in ("reference", "candidate"))
        raise RunError(f"{path} was made by quantdrift diff, of {names}; give one of those instead")
    spec, data = str(record["spec"]), record["data"]
    reading = record.get("settings", {}).get("reading", "similarities")
    return FinishedRun(
        path=run.path,
        format="run",
        name=spec if arm == "candidate" else str(record.get("model", {}).get("name", spec)),
        digest=digest(arm, record["files"][EVIDENCE]),
        parts={"": _own_part(run.evidence(), arm)},
        identity=Identity.of({"data": data, "settings": {"reading": reading}}),
        data=data["name"],
        data_by=data.get("harness"),
    )


def _own_part(evidence: Evidence, arm: Arm) -> Part:
    inputs, names = [str(name) for name in evidence.input_ids], [str(name) for name in evidence.item_ids]
    judgements, qrels = evidence.judgements, None
    if judgements is not None and len(judgements.items):  # not if all labels belong to other inputs
        qrels = {
            name: {names[item]: grade for item, grade in judgements.of(row).items()} for row, name in enumerate(inputs)
        }
    tops = evidence.reference_top, evidence.candidate_top
    if evidence.deltas == "none":
        first = tops[arm == "candidate"].items[:, 0].tolist()
        answers = {name: names[item] for name, item in zip(inputs, first, strict=True)}
        return Part(kind="answers", content=answers, qrels=qrels)
    items = np.concatenate([top.items for top in tops], axis=1).tolist()
    scores = np.concatenate([getattr(top, f"{arm}_scores") for top in tops], axis=1).tolist()
    rankings = {
        name: {
            names[item]: score for item, score in zip(row, given, strict=True) if item >= 0 and not math.isnan(score)
        }
        for name, row, given in zip(inputs, items, scores, strict=True)
    }
    whole = not evidence.cut_short
    depth = None if whole else evidence.depth
    return Part(kind="rankings", content=rankings, depth=depth, complete=whole, qrels=qrels)


def _accepts(source: Source) -> bool:
    return source.path.name == RECORD or (source.path / RECORD).is_file()


FORMAT = Format(expected="a run folder of quantdrift", accepts=_accepts, read=_read, place=10)
