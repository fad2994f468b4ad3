"""What is judged: the evidence of a finished run, or of two that were compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.finished.contents import digest
from quantdrift.finished.diff import Diff, data_digest
from quantdrift.gate.baseline import DIGITS, Snapshot, answer_of
from quantdrift.identity import Identity
from quantdrift.metrics import Metric, MetricError
from quantdrift.runs import Run, classifies

_RANKED = frozenset({None, "reranking", "self-retrieval"})
"""Readings of scores that rank documents; by the others an input has one right answer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """Evidence under one name.

    Attributes:
        name: of the task or subset; empty where there is only one. It is put before input ids.
        evidence: per-input record.
    """

    name: str
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """What is judged.

    Attributes:
        identity: who was measured, on what, how.
        parts: one or more.
        classes: whether an input has one right answer: a class, a choice, a text.
        path: where it lies; None where that is no one place.
        notes: what to know, one sentence each.
    """

    identity: Identity
    parts: tuple[Part, ...]
    classes: bool = False
    path: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def evidence(self) -> list[Evidence]:
        """Of all parts."""
        return [part.evidence for part in self.parts]

    def snapshot(self, metrics: Sequence[Metric]) -> Snapshot:
        """The outcome of every input.

        Args:
            metrics: which; those that need labels or scores which a part has not are undefined
                for its inputs.

        Raises:
            MetricError: one of them looks deeper than the run stored.
        """
        return Snapshot(
            identity=self.identity,
            input_ids=tuple(name for part in self.parts for name in _input_ids(part)),
            answers=tuple(answer for part in self.parts for answer in _answers(part.evidence)),
            values={str(metric): np.round(self.values(metric), DIGITS) + 0.0 for metric in dict.fromkeys(metrics)},
        )

    def values(self, metric: Metric) -> NDArray[np.float64]:
        """The value of every input, float64 [n_inputs], not rounded; NaN where it is undefined.

        Args:
            metric: one that has a value per input.

        Raises:
            MetricError: it looks deeper than the run stored.
        """
        return np.concatenate([_values(metric, part.evidence) for part in self.parts])


def target_of_run(run: Run) -> Target:
    """A run folder, to be judged.

    Args:
        run: a finished run.

    Raises:
        RunError: its evidence is missing or damaged, or holds no inputs.
    """
    record, evidence = run.record, run.evidence()
    _some_inputs(str(run.path), [evidence])
    data, settings = (_of(record, name) for name in ("data", "settings"))
    asked = _of(_of(record, "diff"), "reference").get("format") == "lm-eval"
    left_out = int(data.get("inputs_left_out") or 0)
    notes = [str(warning).rstrip(".") for warning in data.get("warnings") or ()]
    if left_out:
        notes.append(f"{left_out:,} inputs are left out, as layers were measured on them")
    identity = Identity.of(record)
    if "diff" in record:  # a comparison of two finished runs knows no weights
        identity = replace(identity, model_fingerprint=None, candidate_fingerprint=None)
    return Target(
        identity=identity,
        parts=(Part(name="", evidence=evidence),),
        classes=asked or classifies(record) or settings.get("reading") not in _RANKED,
        path=run.path,
        notes=tuple(notes),
    )


def target_of_diff(diff: Diff) -> Target:
    """A comparison of two finished runs, to be judged.

    Args:
        diff: A is the reference, B the candidate.

    Raises:
        RunError: there is no answer that could change, or parts hold the same inputs.
    """
    known = [(part, part.evidence) for part in diff.parts if part.evidence is not None]
    if not known:
        reasons = "; ".join(part.reason for part in diff.parts if part.reason)
        raise RunError(f"there is nothing to judge: {reasons or 'no answer that could change'}")
    if len({part.inputs for part, _ in known}) < len(known):
        names = ", ".join(part.name for part, _ in known)
        raise RunError(
            "some parts hold the same inputs, which would count more than once; choose one for "
            f"each with --part: {names}"
        )
    several = len(known) > 1
    parts = tuple(Part(name=part.name if several else "", evidence=own) for part, own in known)
    _some_inputs(str(diff.b.path), [part.evidence for part in parts])
    # of one part that of its data, so that a comparison that was written down has it too
    digests = [data_digest(own, part.asked) for part, own in known]
    named = [f"{part.name}\n{each}" for part, each in zip(parts, digests, strict=True)]
    n = sum(part.evidence.n_inputs for part in parts)
    settings: dict[str, Any] = {}
    for part in parts:
        of_part = f" of {part.name}" if part.name else ""
        settings[f"deltas{of_part}"] = part.evidence.deltas
        if not part.evidence.exact:  # what a bound is worth depends on how deep the lists were
            settings[f"ranks_compared{of_part}"] = part.evidence.depth
    return Target(
        identity=Identity(
            spec=f"{diff.a.model} vs {diff.b.model}",
            model=diff.a.model,
            data=diff.a.data or diff.b.data or f"{n:,} inputs",
            data_fingerprint=digest(*named) if several else digests[0],
            settings=settings,
        ),
        parts=parts,
        classes=all(part.lists is None for part, _ in known),
        notes=tuple(dict.fromkeys([*diff.notes, *(note for part, _ in known for note in part.notes)])),
    )


def _of(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a record; empty if it has none of that name."""
    held = record.get(name)
    return held if isinstance(held, Mapping) else {}


def _values(metric: Metric, evidence: Evidence) -> NDArray[np.float64]:
    unknown = np.full(evidence.n_inputs, np.nan)
    if metric.family.needs_labels and evidence.judgements is None:
        return unknown
    if metric.family.when_cut != "the same" and not evidence.exact:
        return unknown  # a bound is no outcome
    try:
        return metric.per_input(evidence)
    except MetricError:
        if evidence.exact:
            raise
        return unknown


def _input_ids(part: Part) -> list[str]:
    names = [str(name) for name in part.evidence.input_ids]
    return [f"{part.name}:{name}" for name in names] if part.name else names


def _answers(evidence: Evidence) -> list[str]:
    def names(items: Any) -> list[str | None]:
        return [str(evidence.item_ids[item]) if item >= 0 else None for item in items]

    before, after = (
        names(top.items[:, 0] if top.items.shape[1] else np.full(evidence.n_inputs, -1))
        for top in (evidence.reference_top, evidence.candidate_top)
    )
    return [answer_of(*pair) for pair in zip(before, after, strict=True)]


def _some_inputs(where: str, evidence: Sequence[Evidence]) -> None:
    if not sum(each.n_inputs for each in evidence):
        raise RunError(f"there is nothing to judge: {where} holds no inputs")
