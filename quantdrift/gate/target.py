"""The target of a gate: the evidence of a finished run, or of a comparison of two."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import RunError
from quantdrift.evidence.record import Evidence, Top
from quantdrift.finished.contents import digest
from quantdrift.finished.diff import Diff, data_digest
from quantdrift.gate.baseline import DIGITS, Snapshot, answer_of
from quantdrift.metrics import Metric, MetricError
from quantdrift.metrics.forbids import DRAWN
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import Identity, answers
from quantdrift.runs.verdict import forbidden, verdict


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Evidence of a task or subset; its name is put before input ids, and is empty where there is only one part."""

    name: str
    evidence: Evidence

    def full_name(self, input_id: object) -> str:
        """The name of an input in the gate."""
        return f"{self.name}:{input_id}" if self.name else str(input_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The inputs of a run that were answered one after another, in a random order, until the rules were settled.

    Attributes:
        n: number of these inputs.
        of: number of all inputs; 0 while they are not at an end.
        seed: seed of the order.
    """

    n: int
    of: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """A finished run, or a comparison of two, to be judged.

    Attributes:
        identity: the pair, its data and its settings.
        parts: the evidence.
        classes: whether an input has one right answer: a class, a choice, a text.
        notes: remarks, one sentence each.
        path: folder of the run; None of a comparison of two.
        forbidden: reasons why the run cannot be judged, one sentence each.
        drawn: if inputs were answered until rules were settled; None if their number was fixed.
    """

    identity: Identity
    parts: tuple[Part, ...]
    classes: bool = False
    notes: tuple[str, ...] = ()
    path: str | None = None
    forbidden: tuple[str, ...] = ()
    drawn: Drawn | None = None

    @property
    def evidence(self) -> list[Evidence]:
        """The evidence of all parts."""
        return [part.evidence for part in self.parts]

    def snapshot(self, metrics: Sequence[Metric]) -> Snapshot:
        """The outcomes of all inputs, rounded; a metric that a part cannot have is NaN for its inputs."""
        return Snapshot(
            identity=self.identity,
            input_ids=tuple(part.full_name(name) for part in self.parts for name in part.evidence.input_ids),
            answers=tuple(answer for evidence in self.evidence for answer in _answers(evidence)),
            values={str(metric): np.round(self.values(metric), DIGITS) + 0.0 for metric in dict.fromkeys(metrics)},
        )

    def values(self, metric: Metric) -> NDArray[np.float64]:
        """The value of every input, float64 [n_inputs], not rounded; NaN where it is undefined."""
        return np.concatenate([_values(metric, evidence) for evidence in self.evidence])


def target_of_run(run: Run, *, sequential: bool = False) -> Target:
    """Make the target of a run folder, of a run that was measured until rules were settled if `sequential`."""
    record, evidence, identity = run.record, run.evidence(drawn=sequential), Identity.of(run.record)
    data, drawn = record["data"], None
    # that a run stopped forbids other figures than those of the sequential test
    forbids = {code: why for code, why in (data.get("forbids") or {}).items() if not (sequential and code == DRAWN)}
    if sequential:
        of = (data.get("drawn") or {}).get("of", evidence.n_inputs)
        drawn = Drawn(n=evidence.n_inputs, of=of, seed=record["settings"]["seed"])
    compared = record.get("diff") or {}
    if compared:  # a comparison of two finished runs: no digest of the reference's weights is known
        identity = replace(identity, model_fingerprint=None)
    asked = (compared.get("reference") or {}).get("format") == "lm-eval"
    left_out = int(data.get("inputs_left_out") or 0)
    notes = [str(warning).rstrip(".") for warning in data.get("warnings") or ()]
    if left_out:
        notes.append(f"{left_out:,} inputs are left out, as this deployment was chosen by them")
    if (of_run := verdict(record)).tone == "bad":
        notes.append(f"the run by itself, not compared with a baseline: {of_run.word}")
    if not evidence.n_inputs:
        raise RunError(f"there is nothing to judge: {run.path} holds no inputs")
    return Target(
        identity=identity,
        parts=(Part(name="", evidence=evidence),),
        classes=asked or answers(record) != "top-1",
        notes=tuple(notes),
        path=str(run.path.absolute()),
        forbidden=tuple(forbidden({**record, "data": {**data, "forbids": forbids}})),
        drawn=drawn,
    )


def target_of_diff(diff: Diff) -> Target:
    """Make the target of a comparison of two finished runs; A is the reference, B the candidate."""
    compared = [(part, part.evidence) for part in diff.parts if part.evidence is not None]
    if not compared:
        reasons = "; ".join(part.reason for part in diff.parts if part.reason)
        raise RunError(f"there is nothing to judge: {reasons or 'no answer that could change'}")
    if len({part.inputs for part, _ in compared}) < len(compared):
        names = ", ".join(part.name for part, _ in compared)
        raise RunError(
            f"some parts hold the same inputs, which would count more than once; choose parts with --part, of {names}"
        )
    several = len(compared) > 1
    parts = tuple(Part(name=part.name if several else "", evidence=evidence) for part, evidence in compared)
    # of a single part its own digest, which the run folder of the comparison has too
    digests = [data_digest(evidence, part.asked) for part, evidence in compared]
    named = [f"{part.name}\n{data}" for part, data in zip(parts, digests, strict=True)]
    settings: dict[str, object] = {}
    for part in parts:
        of_part = f" of {part.name}" if part.name else ""
        settings[f"deltas{of_part}"] = part.evidence.deltas
        if not part.evidence.exact:  # a bound depends on the depth of the lists
            settings[f"ranks_compared{of_part}"] = part.evidence.depth
    n = sum(part.evidence.n_inputs for part in parts)
    if not n:
        raise RunError(f"there is nothing to judge: {diff.b.path} holds no inputs")
    return Target(
        identity=Identity(
            spec=f"{diff.a.model} vs {diff.b.model}",
            model=diff.a.model,
            candidate_fingerprint=diff.b.digest,
            data=diff.a.data or diff.b.data or f"{n:,} inputs",
            data_fingerprint=digest(*named) if several else digests[0],
            settings=settings,
        ),
        parts=parts,
        classes=all(not part.lists for part, _ in compared),
        notes=tuple(dict.fromkeys([*diff.notes, *(note for part, _ in compared for note in part.notes)])),
    )


def _values(metric: Metric, evidence: Evidence) -> NDArray[np.float64]:
    unlabelled = metric.family.needs_labels and evidence.judgements is None
    bound = metric.family.when_cut != "the same" and not evidence.exact  # a bound is no outcome
    try:
        if not (unlabelled or bound):
            return metric.per_input(evidence)
    except MetricError:
        if evidence.exact:
            raise
    return np.full(evidence.n_inputs, np.nan)


def _answers(evidence: Evidence) -> list[str]:
    def first(top: Top) -> list[str | None]:
        items = top.items[:, 0] if top.items.shape[1] else np.full(evidence.n_inputs, -1)
        return [str(evidence.item_ids[item]) if item >= 0 else None for item in items]

    return [answer_of(*pair) for pair in zip(first(evidence.reference_top), first(evidence.candidate_top), strict=True)]
