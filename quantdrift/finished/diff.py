"""What changed between two finished runs: their parts as evidence, and what to know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import DataError, RunError
from quantdrift.evidence import Evidence
from quantdrift.finished.comparable import Matched, match_parts
from quantdrift.finished.labels import label_notes, marks, refuse_other_labels, right_by
from quantdrift.finished.lists import Lists, list_notes, lists_of, without_identical
from quantdrift.finished.rankings import (
    DEPTH,
    Qrels,
    evidence_of_answers,
    evidence_of_rankings,
)
from quantdrift.finished.readers.contents import FinishedRun, Labelled, Ranked, Sampled
from quantdrift.finished.readers.files import digest

__all__ = ["Diff", "PartDiff", "diff_runs"]

Values = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartDiff:
    """One part of both runs.

    Attributes:
        name: of the part; empty where there is only one.
        inputs: whose inputs these are: parts of one name hold the same ones.
        evidence: what is known of every input; None where no answer could change.
        reason: why there is no evidence.
        lists: how deep the rankings are; None if they are none.
        values: lm-eval's own metrics: name to the value of every document in A and in B.
        judged_by: of these, the one that says which answers are right.
        asked: digest of what the inputs were asked, beside their ids: documents, prompts and
            targets of lm-eval; empty where that is not known.
        left_out: inputs of A and of B that the other does not have.
        notes: what to know; one sentence each, without a full stop.
    """

    name: str
    inputs: str
    evidence: Evidence | None
    reason: str | None = None
    lists: Lists | None = None
    values: Mapping[str, Values] = field(default_factory=dict)
    judged_by: str | None = None
    asked: str = ""
    left_out: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diff:
    """Two finished runs compared; A is the reference and B the candidate.

    Attributes:
        a: the reference.
        b: the candidate.
        parts: one or more.
        notes: what to know of all of it.
    """

    a: FinishedRun
    b: FinishedRun
    parts: tuple[PartDiff, ...]
    notes: tuple[str, ...] = ()


def diff_runs(
    a: FinishedRun,
    b: FinishedRun,
    *,
    qrels: Qrels | None = None,
    common: bool = False,
    complete: bool = False,
    ignore_identical: bool = False,
    only: Sequence[str] = (),
    depth: int = DEPTH,
) -> Diff:
    """Compare two finished runs.

    Args:
        a: the reference.
        b: the candidate.
        qrels: relevance labels; those of the runs if not given, where they have some.
        common: whether inputs that only one of them has are left out.
        complete: whether the lists hold every item that was scored, so that epsilon is exact.
        ignore_identical: whether items of the name of their input are left out.
        only: names of the parts to compare; all if empty.
        depth: how many ranks to keep of either list at most.

    Raises:
        RunError: the runs cannot be compared (lists everything that differs), or lists are said to
            be complete and are not.
        DataError: the labels are of other inputs.
    """
    matched, notes = match_parts(a, b, common=common, only=only)
    parts: list[PartDiff] = []
    for each in matched:
        if each.samples is not None:
            if qrels is not None:
                raise DataError("samples of lm-eval hold their labels; leave --qrels out")
            parts += _samples(each)
        elif isinstance(each.a, Labelled) and isinstance(each.b, Labelled):
            parts.append(_labels(each, each.a, each.b, qrels))
        elif isinstance(each.a, Ranked) and isinstance(each.b, Ranked):
            one, other = each.a, each.b
            if not qrels and a.data_by != b.data_by:  # of one program's data the digest tells
                refuse_other_labels(each.name, one, other)
            if ignore_identical:
                one, other = without_identical(one), without_identical(other)
            parts.append(_rankings(each, one, other, qrels, complete=complete, depth=depth))
    return Diff(
        a=a,
        b=b,
        parts=tuple(parts),
        notes=tuple(dict.fromkeys([*_of_runs(a, b), *a.notes, *b.notes, *notes])),
    )


def _rankings(
    each: Matched, a: Ranked, b: Ranked, qrels: Qrels | None, *, complete: bool, depth: int
) -> PartDiff:
    labels = qrels or a.qrels or b.qrels
    cut = next((part.depth for part in (a, b) if part.depth is not None), None)
    if complete and cut is not None:
        raise RunError(
            f"expected lists that hold every item, as --complete says; one of these runs holds "
            f"the first {cut:,} of more. Leave --complete out"
        )
    lists = lists_of(a, b)
    ranks = min(depth, a.depth or depth, b.depth or depth)
    evidence = evidence_of_rankings(
        a.rankings,
        b.rankings,
        qrels=labels,
        complete=complete or (a.complete and b.complete and lists.same_items),
        depth=ranks,
    )
    notes = [*list_notes(lists, evidence), *label_notes(labels, list(a.rankings))]
    return PartDiff(
        name=each.name,
        inputs=each.name,
        evidence=evidence,
        lists=lists,
        left_out=each.left_out,
        notes=tuple(notes),
    )


def _labels(each: Matched, a: Labelled, b: Labelled, qrels: Qrels | None) -> PartDiff:
    right = marks(a, b) if qrels is None else (right_by(a, qrels), right_by(b, qrels))
    return PartDiff(
        name=each.name,
        inputs=each.name.partition("#")[0],
        evidence=evidence_of_answers(a.answers, b.answers, right=right),
        left_out=each.left_out,
    )


def _samples(each: Matched) -> list[PartDiff]:
    assert each.samples is not None
    several = len(each.samples.filters) > 1
    asked = _asked(each.a) if isinstance(each.a, Sampled) else ""
    return [
        PartDiff(
            name=f"{each.name} ({name})" if several else each.name,
            inputs=each.name,
            evidence=found.evidence,
            reason=found.reason,
            values=found.values,
            judged_by=found.judged_by,
            asked=asked,
            left_out=each.left_out,
        )
        for name, found in each.samples.filters.items()
    ]


def _asked(part: Sampled) -> str:
    names = ("doc_id", "doc_hash", "prompt_hash", "target_hash")
    rows = {"\t".join(str(sample.get(name)) for name in names) for sample in part.samples}
    return digest(*sorted(rows))


def _of_runs(a: FinishedRun, b: FinishedRun) -> list[str]:
    notes = []
    if a.path.resolve() == b.path.resolve() and a.digest == b.digest:
        notes.append("A and B are one and the same")
    elif a.digest == b.digest:
        notes.append("A and B hold the same, to the letter")
    if None not in (a.reference, b.reference) and a.reference != b.reference:
        notes.append(
            "A and B are runs of two models, which need not score on one scale; what is compared "
            f"are {a.name} and {b.name}"
        )
    if a.data_by and b.data_by and a.data_by != b.data_by:
        notes.append(
            f"the data of A are those of {a.data_by} and the data of B those of {b.data_by}, whose "
            "digests cannot be compared; that they are the same is known from ids, labels and size"
        )
    if a.format == b.format == "mteb" and a.data != b.data:
        notes.append(f"by their names these are predictions on {a.data} and on {b.data}")
    return notes
