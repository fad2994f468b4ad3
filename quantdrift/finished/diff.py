"""What changed between two finished runs: their parts as evidence, and what to know of it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift import __version__, perturbation
from quantdrift.datasets.retrieval import some
from quantdrift.errors import DataError, RunError, UnknownNameError
from quantdrift.evidence import Evidence, Top
from quantdrift.finished.contents import FinishedRun, Labelled, Part, Ranked, Sampled, digest
from quantdrift.finished.lm_eval_evidence import HASHES, PairedSamples, pair_samples
from quantdrift.finished.rankings import DEPTH, Qrels, Ranking, Rankings, evidence_of_answers, evidence_of_rankings
from quantdrift.metrics import Metric, MetricError, measure
from quantdrift.runs import Run, write_run
from quantdrift.statistics import Estimate, mean_estimate, undefined

# --- The samples of lm-eval that two runs share ---------------------------------------------------

Samples = Sequence[Mapping[str, Any]]


def shared_samples(a: Samples, b: Samples) -> tuple[Samples, Samples]:
    """The samples of either run whose document, prompt, target and filter the other has too.

    Args:
        a: samples of one task.
        b: those of the other run.
    """
    known = {_identity(sample): sample for sample in b}
    both = {
        _identity(sample)
        for sample in a
        if (other := known.get(_identity(sample))) is not None and other["arguments"] == sample["arguments"]
    }
    kept = [[sample for sample in samples if _identity(sample) in both] for samples in (a, b)]
    return kept[0], kept[1]


def _identity(sample: Mapping[str, Any]) -> tuple[Any, ...]:
    return (sample["doc_id"], sample.get("filter"), *(sample.get(name) for name in HASHES))


# --- Whether two finished runs can be compared: the same inputs, items, prompts and settings ------

_KINDS: Mapping[type, str] = {
    Ranked: "rankings",
    Labelled: "one answer per input, without scores",
    Sampled: "samples of lm-eval",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """One part of both runs, over the same inputs.

    Attributes:
        name: of the part; empty where there is only one.
        a: of the reference.
        b: of the candidate, of the same kind.
        left_out: inputs of either that the other does not have.
        samples: of lm-eval, joined.
    """

    name: str
    a: Part
    b: Part
    left_out: tuple[int, int] = (0, 0)
    samples: PairedSamples | None = None


def match_parts(
    a: FinishedRun, b: FinishedRun, *, common: bool = False, only: Sequence[str] = ()
) -> tuple[list[Matched], list[str]]:
    """Pair the parts of two runs.

    Args:
        a: the reference.
        b: the candidate.
        common: whether inputs and parts that only one run has are left out.
        only: names of the parts that are asked for; all if empty.

    Returns:
        The parts, and what to know: one sentence each.

    Raises:
        RunError: the runs cannot be compared; lists everything that differs.
        UnknownNameError: neither run has a part of a name that is asked for.
    """
    _same_kinds(a, b)
    wrong: list[str] = []
    notes: list[str] = []
    pairs = _pairs(_chosen(a, b, only), _chosen(b, a, only), same_format=a.format == b.format)
    for run, other, key in ((a, b, 0), (b, a, 1)):
        lone = [name for name, pair in pairs.items() if pair[key] is not None and None in pair]
        if lone:
            what = f"only in {'AB'[key]}: {some(lone)} ({len(lone):,} of {len(run.parts):,})"
            (notes if common else wrong).append(
                f"{what}; left out" if common else f"parts {what}; {other.path} has no such part"
            )
    fixed = []
    if a.format == b.format:
        both = ["", *(name for name, pair in pairs.items() if None not in pair)]
        fixed = [
            line
            for name in dict.fromkeys(both)
            for line in _settings(name, a.settings.get(name, {}), b.settings.get(name, {}))
        ]
    wrong += fixed
    matched = []
    for name, (one, other_part) in pairs.items():
        if one is None or other_part is None:
            continue
        found = _match(name, one, other_part, common=common, wrong=wrong)
        if found is not None:
            matched.append(found)
    if not matched and not wrong:
        wrong.append("they have no part in common")
    if wrong:
        listed = "".join(f"\n  - {line}" for line in wrong)
        advice = "\n--common compares what both hold, and says how much it is."
        if common or fixed:
            advice = ""
        raise RunError(f"expected two runs on the same inputs; {a.path} (A) and {b.path} (B) differ in{listed}{advice}")
    return matched, notes


def _same_kinds(a: FinishedRun, b: FinishedRun) -> None:
    kinds = [sorted({_KINDS[type(part)] for part in run.parts.values()}) for run in (a, b)]
    if not set(kinds[0]) & set(kinds[1]):
        told = [" and ".join(kind) for kind in kinds]
        raise RunError(
            f"expected two runs that hold the same kind of answers; {a.path} (A) holds {told[0]}, "
            f"{b.path} (B) {told[1]}"
        )


def _chosen(run: FinishedRun, other: FinishedRun, only: Sequence[str]) -> dict[str, Part]:
    known = list(dict.fromkeys([*run.parts, *other.parts]))
    for name in only:
        if name not in known:
            raise UnknownNameError("part", name, known, hint=f"(there are {some(known)})")
    # a part of no name is all that its run holds
    return {name: part for name, part in run.parts.items() if not only or name in ("", *only)}


def _pairs(
    a: Mapping[str, Part], b: Mapping[str, Part], *, same_format: bool
) -> dict[str, tuple[Part | None, Part | None]]:
    """Parts by name; a lone part of one format is the lone part of another."""
    if len(a) == len(b) == 1 and not same_format:
        return {"": (next(iter(a.values())), next(iter(b.values())))}
    for own, other in ((a, b), (b, a)):
        if set(own) == {""} and "" not in other:
            raise RunError(
                f"expected one part to compare with a run that has one; the other run has "
                f"{len(other):,}: {some(other)}. Choose with --part"
            )
    return {name: (a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])}


def _settings(part: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    where = f"{part}: " if part else ""
    # what only one of them tells is not known to differ
    return [f"{where}setting {name}: {a[name]} and {b[name]}" for name in a if name in b and a[name] != b[name]]


def _match(name: str, a: Part, b: Part, *, common: bool, wrong: list[str]) -> Matched | None:
    where = f"{name}: " if name else ""
    if type(a) is not type(b):
        wrong.append(f"{where}what they hold: {_KINDS[type(a)]} and {_KINDS[type(b)]}")
        return None
    if isinstance(a, Sampled) or isinstance(b, Sampled):
        assert isinstance(a, Sampled)
        assert isinstance(b, Sampled)
        return _comparable_samples(name, a, b, common=common, wrong=wrong)
    assert not isinstance(b, Sampled)
    mine, theirs = _inputs(a), _inputs(b)
    shared = [input_id for input_id in mine if input_id in theirs]
    problem = _inputs_differ(a, b, shared, common=common) or _items_differ(a, b, shared)
    if problem:
        wrong.append(where + problem)
        return None
    left_out = len(mine) - len(shared), len(theirs) - len(shared)
    return Matched(name=name, a=_part(a, shared), b=_part(b, shared), left_out=left_out)


def _inputs_differ(a: Ranked | Labelled, b: Ranked | Labelled, shared: Sequence[str], *, common: bool) -> str | None:
    mine, theirs = _inputs(a), _inputs(b)
    if len(mine) == len(theirs) == len(shared):
        return None
    if a.numbered or b.numbered:
        return (
            f"inputs: {len(mine):,} in A and {len(theirs):,} in B; they have no names, so which "
            "are the same cannot be told"
        )
    if not shared:
        return f"all inputs: {some(mine)} in A, {some(theirs)} in B ({len(mine):,} and {len(theirs):,})"
    return None if common else _only(mine, theirs)


def _items_differ(a: Ranked | Labelled, b: Ranked | Labelled, shared: Sequence[str]) -> str | None:
    if not (isinstance(a, Ranked) and isinstance(b, Ranked)):
        return None
    filled = [name for name in shared if a.rankings[name] and b.rankings[name]]
    if not filled or any(a.rankings[name].keys() & b.rankings[name].keys() for name in filled):
        return None
    examples = some(a.rankings[filled[0]]), some(b.rankings[filled[0]])
    return (
        f"all items: no input has an item in both lists; that of {filled[0]!r} holds "
        f"{examples[0]} in A and {examples[1]} in B"
    )


def _comparable_samples(name: str, a: Sampled, b: Sampled, *, common: bool, wrong: list[str]) -> Matched | None:
    left_out = 0, 0
    if common:
        kept = shared_samples(a.samples, b.samples)
        mine, theirs = (
            # a document has a sample of every filter
            len({each["doc_id"] for each in whole}) - len({each["doc_id"] for each in part})
            for whole, part in zip((a.samples, b.samples), kept, strict=True)
        )
        left_out = mine, theirs
        if not kept[0]:
            wrong.append(f"{name}: no document has the same prompt in both")
            return None
        a, b = replace(a, samples=kept[0]), replace(b, samples=kept[1])
    try:
        paired = pair_samples(a.samples, b.samples, task=a.task)
    except RunError as error:
        wrong.append(str(error))
        return None
    return Matched(name=name, a=a, b=b, left_out=left_out, samples=paired)


def _only(a: Iterable[str], b: Iterable[str]) -> str:
    mine, theirs = list(a), list(b)
    told = [
        f"{len(missing):,} of {len(own):,} only in {arm} ({some(missing)})"
        for arm, own, missing in (
            ("A", mine, sorted(set(mine) - set(theirs))),
            ("B", theirs, sorted(set(theirs) - set(mine))),
        )
        if missing
    ]
    return f"inputs: {'; '.join(told)}"


def _inputs(part: Ranked | Labelled) -> Mapping[str, Any]:
    return part.rankings if isinstance(part, Ranked) else part.answers


def _part(part: Ranked | Labelled, inputs: Sequence[str]) -> Ranked | Labelled:
    if isinstance(part, Ranked):
        return replace(part, rankings={name: part.rankings[name] for name in inputs})
    return replace(part, answers={name: part.answers[name] for name in inputs})


# --- Two sets of lists: how deep they are, and what their scores can tell -------------------------

_MANY = 5
"""So many inputs with the same scores are no accident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """How deep the lists of two runs are.

    Attributes:
        a: ranks of the shortest and of the longest list of the reference.
        b: of the candidate.
        same_items: whether both lists of every input hold the same items, and may hold all.
        own_names: inputs whose first item has the name of the input, in A or B.
        made_of_ranks: which runs give every input the same scores.
    """

    a: tuple[int, int]
    b: tuple[int, int]
    same_items: bool
    own_names: int
    made_of_ranks: tuple[str, ...]


def without_identical(part: Ranked) -> Ranked:
    """The rankings without items of the name of their input."""
    kept = {name: {item: score for item, score in own.items() if item != name} for name, own in part.rankings.items()}
    return replace(part, rankings=kept)


def lists_of(a: Ranked, b: Ranked) -> Lists:
    """How deep the lists of two runs over the same inputs are."""
    return Lists(
        a=_depths(a),
        b=_depths(b),
        # what is known to be cut holds more
        same_items=a.depth is None
        and b.depth is None
        and all(own.keys() == b.rankings[name].keys() for name, own in a.rankings.items()),
        own_names=sum(_leads(name, own) or _leads(name, b.rankings[name]) for name, own in a.rankings.items()),
        made_of_ranks=tuple(name for name, part in (("A", a), ("B", b)) if _made_of_ranks(part.rankings)),
    )


def list_notes(lists: Lists, evidence: Evidence) -> list[str]:
    """What to know of the lists: one sentence each, without a full stop."""
    notes = []
    if not evidence.exact:
        notes.append(
            f"the lists of A are {_deep(lists.a)} deep and those of B {_deep(lists.b)}, compared "
            f"to rank {evidence.depth:,}; of items that only one list holds the other score is "
            "not known, so epsilon is at least what is shown, and the separation ratio at most"
        )
        if lists.same_items:
            notes.append(
                "both lists of every input hold the same items; if no others were scored (a "
                "shortlist that was ranked again), --complete says so, and epsilon is exact"
            )
    if lists.made_of_ranks:
        which = " and ".join(lists.made_of_ranks)
        notes.append(
            f"the scores of {which} are the same for every input, so they were made from ranks; "
            "gap, epsilon and separation say nothing of the model then"
        )
    elif _off_scale(evidence):
        notes.append(
            "the typical epsilon is larger than what the typical list of A spans, so the scores "
            "may be on two scales; gap, epsilon and separation say nothing then"
        )
    if lists.own_names:
        notes.append(
            f"{lists.own_names:,} inputs find an item of their own name first; where a query is "
            "itself in the corpus, leave it out with --ignore-identical-ids"
        )
    return notes


def _depths(part: Ranked) -> tuple[int, int]:
    lengths = [len(own) for own in part.rankings.values()]
    most = part.depth or max(lengths)
    return min(*lengths, most), min(max(lengths), most)


def _deep(depths: tuple[int, int]) -> str:
    least, most = depths
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _leads(name: str, own: Ranking) -> bool:
    return name in own and own[name] == max(own.values())


def _made_of_ranks(rankings: Rankings) -> bool:
    """Whether all lists have the same scores, as far as they go."""
    lists = [sorted(own.values(), reverse=True) for own in rankings.values() if len(own) > 1]
    if len(lists) < _MANY:
        return False
    longest = max(lists, key=len)
    return all(own == longest[: len(own)] for own in lists)


def _off_scale(evidence: Evidence) -> bool:
    scores = evidence.reference_top.reference_scores.astype(np.float64)
    known = ~np.isnan(scores)
    two = known.sum(axis=1) > 1
    if not two.any():
        return False
    last = np.take_along_axis(scores, known.sum(axis=1)[:, None] - 1, axis=1)[:, 0]
    spans = (scores[:, 0] - last)[two]
    return float(np.median(perturbation.epsilon(evidence)[two])) > float(np.median(spans))


# --- Relevance labels of two finished runs: given with them, or what a run folder holds itself ----


def refuse_other_labels(name: str, a: Ranked, b: Ranked) -> None:
    """Refuse two runs that bring relevance labels of their own, which are not the same.

    Args:
        name: of the part.
        a: the reference.
        b: the candidate, over the same inputs.

    Raises:
        RunError: an input has other relevant items, or other grades of them.
    """
    if a.qrels is None or b.qrels is None:
        return
    differ = [n for n in a.rankings if _relevant(a.qrels, n) != _relevant(b.qrels, n)]
    if differ:
        where = f"{name}: " if name else ""
        raise RunError(
            f"{where}expected the same relevance labels in both runs; those of {len(differ):,} of "
            f"{len(a.rankings):,} inputs differ ({some(differ)}). Say which count with --qrels"
        )


def right_by(part: Labelled, qrels: Qrels) -> dict[str, bool]:
    """Whether each answer is a right one.

    Args:
        part: answers of one run.
        qrels: the right answers of every input.

    Raises:
        DataError: an input has none.
    """
    missing = [name for name in part.answers if not qrels.get(name)]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(part.answers):,} inputs have no label, {missing[0]!r} for "
            "one; expected the right answer of every input (inputs that have no name are "
            "numbered from 0)"
        )
    return {name: qrels[name].get(answer, 0) > 0 for name, answer in part.answers.items()}


def marks(a: Labelled, b: Labelled) -> tuple[dict[str, bool], dict[str, bool]] | None:
    """Whether each answer is right by the runs' own labels, which only tell of answers given there.

    Args:
        a: the reference.
        b: the candidate, over the same inputs.

    Returns:
        Of the reference and of the candidate; None where an answer was marked in neither run, for
        it need not be wrong, and where both gave one answer and do not agree on it.
    """
    found: list[dict[str, bool]] = []
    for own, other in ((a, b), (b, a)):
        right = {}
        for name, answer in own.answers.items():
            grades = [(part.qrels or {}).get(name, {}).get(answer) for part in (own, other)]
            known = [grade for grade in grades if grade is not None]
            if not known:
                return None
            right[name] = known[0] > 0
        found.append(right)
    first, second = found
    if any(first[n] != second[n] for n, answer in a.answers.items() if answer == b.answers[n]):
        return None
    return first, second


def label_notes(labels: Qrels | None, inputs: Sequence[str]) -> list[str]:
    """What to know of labels: one sentence or none.

    Args:
        labels: input to item to grade.
        inputs: of the runs.

    Raises:
        DataError: no input has a label.
    """
    if labels is None:
        return []
    without = sum(not labels.get(name) for name in inputs)
    if without == len(inputs):
        raise DataError(
            f"the relevance labels are of other inputs: they are of {next(iter(labels))!r} and "
            f"{len(labels) - 1:,} more, the runs hold {inputs[0]!r} and {len(inputs) - 1:,} more"
        )
    return [f"{without:,} of {len(inputs):,} inputs have no relevance label"] if without else []


def _relevant(qrels: Qrels, input_id: str) -> dict[str, int]:
    return {item: grade for item, grade in qrels.get(input_id, {}).items() if grade > 0}


# --- What changed between two finished runs: their parts as evidence, and what to know of it ------

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
    return Diff(a=a, b=b, parts=tuple(parts), notes=tuple(dict.fromkeys([*_of_runs(a, b), *a.notes, *b.notes, *notes])))


def _rankings(each: Matched, a: Ranked, b: Ranked, qrels: Qrels | None, *, complete: bool, depth: int) -> PartDiff:
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
        name=each.name, inputs=each.name, evidence=evidence, lists=lists, left_out=each.left_out, notes=tuple(notes)
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


# --- Metrics over all parts of a comparison, where every input counts once ------------------------


def estimate_of(metric: Metric, part: PartDiff) -> Estimate:
    """A metric of one part; undefined where it cannot be had."""
    if part.evidence is None:
        return undefined(part.reason or "no answer that could change")
    try:
        return metric(part.evidence)
    except MetricError as error:
        return undefined(str(error))


def pooled_estimate(metric: Metric, parts: Sequence[PartDiff]) -> Estimate:
    """A metric over the inputs of all parts that have evidence.

    Parts that hold the same inputs (experiments of mteb, filters of lm-eval) are averaged first,
    input by input: a mean of means, with a bootstrap interval over inputs.

    Args:
        metric: which.
        parts: of one comparison.
    """
    known = [part for part in parts if part.evidence is not None]
    if not known:
        return undefined("no part has an answer that could change")
    by_inputs: dict[str, list[PartDiff]] = {}
    for part in known:
        by_inputs.setdefault(part.inputs, []).append(part)
    try:
        if all(len(group) == 1 for group in by_inputs.values()):
            return metric.over([part.evidence for part in known if part.evidence is not None])
        if metric.uncertainty == "order statistics" or metric.arm == "relative":
            return undefined("has no mean over parts that hold the same inputs")
        values = np.concatenate([_averaged(metric, group) for group in by_inputs.values()] or [np.empty(0)])
    except MetricError as error:
        return undefined(str(error))
    values = values[~np.isnan(values)]
    return mean_estimate(values) if len(values) else undefined(metric.family.undefined_when)


def _averaged(metric: Metric, group: Sequence[PartDiff]) -> NDArray[np.float64]:
    """The mean over the parts, of every input that has a value in one of them."""
    rows = []
    order: dict[str, int] = {}
    for part in group:
        assert part.evidence is not None
        if metric.family.needs_labels and part.evidence.judgements is None:
            continue
        ids = [str(name) for name in part.evidence.input_ids]
        for name in ids:
            order.setdefault(name, len(order))
        rows.append((ids, metric.per_input(part.evidence)))
    table = np.full((len(rows), len(order)), np.nan)
    for number, (ids, values) in enumerate(rows):
        table[number, [order[name] for name in ids]] = values
    counted = ~np.isnan(table)
    sums = np.where(counted, table, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / counted.sum(axis=0))


def change_of(values: Values) -> tuple[float | None, float | None, Estimate]:
    """One of the harness's own metrics: mean in A, mean in B, and the change with its interval.

    Args:
        values: of every document, in A and in B; documents without a value in one are left out.
    """
    before, after = values
    both = ~(np.isnan(before) | np.isnan(after))
    if not both.any():
        return None, None, undefined("no document has a value in both")
    before, after = before[both], after[both]
    return float(before.mean()), float(after.mean()), mean_estimate(after - before)


# --- A comparison of finished runs as run folders, which the other commands read ------------------


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
                arm: {"path": str(run.path), "format": run.format, "name": run.name, "digest": run.digest}
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


# --- The inputs whose answer changed, the worst first: what gave way to what ----------------------

Kind = Literal["harmful", "neutral", "beneficial"]
KINDS: tuple[Kind, ...] = ("harmful", "neutral", "beneficial")
"""Relevant items among the first k: fewer than before, as many, more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An input whose first answer changed; with a cut-off k, the set of its first k.

    Attributes:
        input_id: its name.
        before: the reference's first answer; with a cut-off, the first that left the first k, a
            relevant one if there is any.
        after: the candidate's; likewise the first that came in.
        rank_before: rank that `after` has in the reference's list; None if it is not among the
            ranks kept.
        rank_after: rank that `before` has in the candidate's list.
        was_right: whether `before` is relevant; None without labels.
        is_right: likewise `after`.
        lead: the reference's gap between ranks k and k + 1; None if it is not known.
        kind: one of KINDS; None without labels.
        score_before: what the reference gave to `before`; None where answers have no scores.
        score_after: what the candidate gave to `after`.
        separation: that gap in units of 2 epsilon; None if it is not known.
    """

    input_id: str
    before: str | None
    after: str | None
    rank_before: int | None
    rank_after: int | None
    was_right: bool | None
    is_right: bool | None
    lead: float | None
    kind: Kind | None = None
    score_before: float | None = None
    score_after: float | None = None
    separation: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


def changed_inputs(evidence: Evidence, k: int = 1) -> list[Changed]:
    """The inputs whose first k changed: relevant items lost first, and the largest leads first.

    Args:
        evidence: of one part.
        k: how many of the first ranks are looked at, as a set.

    Raises:
        RunError: fewer ranks are stored.
    """
    if k > evidence.depth and evidence.cut_short:
        raise RunError(f"expected at most {evidence.depth} ranks, which are stored; got {k}")
    rows = np.flatnonzero(~perturbation.top_set_kept(evidence, k))
    scores = evidence.reference_top.reference_scores.astype(np.float64)
    known = scores.shape[1] > k
    gaps = scores[:, k - 1] - scores[:, k] if known else np.full(len(scores), np.nan)
    ratios = perturbation.cut_separation(evidence, k)
    found = [_changed(evidence, row, k, gaps[row], ratios[row]) for row in rows.tolist()]
    return sorted(found, key=_how_bad)


def _how_bad(changed: Changed) -> tuple[int, float]:
    return KINDS.index(changed.kind or "neutral"), -(changed.lead or 0.0)


def _changed(evidence: Evidence, row: int, k: int, gap: float, ratio: float) -> Changed:
    reference, candidate = evidence.reference_top, evidence.candidate_top
    firsts = [[item for item in top.items[row, :k].tolist() if item >= 0] for top in (reference, candidate)]
    labels = {} if evidence.judgements is None else evidence.judgements.of(row)
    relevant = {item for item, grade in labels.items() if grade > 0}
    before, after = (
        _telling((item for item in here if item not in there), relevant) for here, there in (firsts, reversed(firsts))
    )
    kind: Kind | None = None
    if labels:
        was, now = (len(relevant.intersection(items)) for items in firsts)
        kind = "harmful" if now < was else "beneficial" if now > was else "neutral"
    return Changed(
        input_id=str(evidence.input_ids[row]),
        kind=kind,
        before=_name(evidence, before),
        after=_name(evidence, after),
        score_before=_score(reference, reference.reference_scores, row, before),
        score_after=_score(candidate, candidate.candidate_scores, row, after),
        rank_before=_rank(reference, row, after),
        rank_after=_rank(candidate, row, before),
        was_right=before in relevant if labels else None,
        is_right=after in relevant if labels else None,
        lead=_finite(gap),
        separation=_finite(ratio),
    )


def _telling(items: Iterable[int], relevant: set[int]) -> int:
    """The first relevant item, else the first; -1 if there is none."""
    listed = list(items)
    return next((item for item in listed if item in relevant), listed[0] if listed else -1)


def _name(evidence: Evidence, item: int) -> str | None:
    return str(evidence.item_ids[item]) if item >= 0 else None


def _rank(top: Top, row: int, item: int) -> int | None:
    places = np.flatnonzero(top.items[row] == item)
    return int(places[0]) + 1 if item >= 0 and len(places) else None


def _score(top: Top, scores: NDArray[np.float32], row: int, item: int) -> float | None:
    rank = _rank(top, row, item)
    return None if rank is None else _finite(float(scores[row, rank - 1]))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
