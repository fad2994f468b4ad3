"""What changed between two finished runs: their parts as evidence, and what to know of it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift import __version__, perturbation
from quantdrift.datasets.retrieval import some
from quantdrift.errors import DataError, RunError, UnknownNameError
from quantdrift.evidence import Evidence, Top
from quantdrift.finished.contents import HELD, FinishedRun, Part, digest
from quantdrift.finished.lm_eval_evidence import HASHES, PairedSamples, pair_samples
from quantdrift.finished.rankings import DEPTH, Qrels, evidence_of_answers, evidence_of_rankings, only_in
from quantdrift.metrics import Metric, MetricError, measure
from quantdrift.runs import Run, write_run
from quantdrift.statistics.estimates import Estimate, mean_estimate, undefined

# --- whether they can be compared: the same inputs, items, prompts and settings -------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matched:
    """One part of both runs, over the same inputs, and how many inputs of either were left out."""

    name: str
    a: Part
    b: Part
    left_out: tuple[int, int]
    samples: PairedSamples | None = None


def _match(a: FinishedRun, b: FinishedRun, *, common: bool, only: Sequence[str]) -> tuple[list[_Matched], list[str]]:
    """The parts of two runs, pair by pair, and what to know."""
    kinds = [" and ".join(sorted({HELD[part.kind] for part in run.parts.values()})) for run in (a, b)]
    if not {part.kind for part in a.parts.values()} & {part.kind for part in b.parts.values()}:
        raise RunError(
            f"expected two runs that hold the same kind of answers; {a.path} (A) holds {kinds[0]}, "
            f"{b.path} (B) {kinds[1]}"
        )
    pairs = _pairs(a, b, only)
    wrong: list[str] = []
    notes: list[str] = []
    for run, letter, own in ((a, "A", 0), (b, "B", 1)):
        lone = [name for name, pair in pairs.items() if pair[own] is not None and None in pair]
        if lone:
            what = f"parts only in {letter}: {some(lone)} ({len(lone):,} of {len(run.parts):,})"
            (notes if common else wrong).append(f"{what}; left out" if common else what)
    settings = []
    for name in ["", *(name for name in pairs if name)] if a.format == b.format else []:
        here, there = a.settings.get(name, {}), b.settings.get(name, {})
        where = f"{name}: " if name else ""
        # what only one of them tells is not known to differ
        settings += [
            f"{where}setting {key}: {here[key]} and {there[key]}"
            for key in here
            if here[key] != there.get(key, here[key])
        ]
    wrong += settings
    matched = []
    for name, (one, other) in pairs.items():
        if one is not None and other is not None:
            try:
                matched.append(_matched(name, one, other, common=common))
            except RunError as error:
                wrong.append(str(error))
    if wrong or not matched:
        listed = "".join(f"\n  - {line}" for line in wrong or ["they have no part in common"])
        advice = "\n--common compares what both hold, and says how much it is."
        if common or settings:
            advice = ""
        raise RunError(f"expected two runs on the same inputs; {a.path} (A) and {b.path} (B) differ in{listed}{advice}")
    return matched, notes


def _pairs(a: FinishedRun, b: FinishedRun, only: Sequence[str]) -> dict[str, tuple[Part | None, Part | None]]:
    """Parts by name; a lone part of one format is the lone part of another."""
    names = list(dict.fromkeys([*a.parts, *b.parts]))
    for name in only:
        if name not in names:
            raise UnknownNameError("part", name, names, hint=f"(there are {some(names)})")
    # a part of no name is all that its run holds
    one, other = ({n: part for n, part in run.parts.items() if not only or n in ("", *only)} for run in (a, b))
    if len(one) == len(other) == 1 and a.format != b.format:
        return {"": (next(iter(one.values())), next(iter(other.values())))}
    if ("" in one) != ("" in other):
        parts = list(other if "" in one else one)
        raise RunError(
            f"expected one part to compare with a run that has one; the other run has {len(parts):,}: {some(parts)}. "
            "Choose with --part"
        )
    return {name: (one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other])}


def _matched(name: str, a: Part, b: Part, *, common: bool) -> _Matched:
    where = f"{name}: " if name else ""
    if a.kind != b.kind:
        raise RunError(f"{where}what they hold: {HELD[a.kind]} and {HELD[b.kind]}")
    if a.kind == "samples":
        return _matched_samples(name, a, b, common=common)
    mine, theirs = a.content, b.content
    shared = [input_id for input_id in mine if input_id in theirs]
    if not len(mine) == len(theirs) == len(shared):
        if a.numbered or b.numbered:
            raise RunError(
                f"{where}inputs: {len(mine):,} in A and {len(theirs):,} in B; they have no names, so which "
                "are the same cannot be told"
            )
        if not shared:
            raise RunError(
                f"{where}all inputs: {some(mine)} in A, {some(theirs)} in B ({len(mine):,} and {len(theirs):,})"
            )
        if not common:
            raise RunError(f"{where}inputs: {only_in(mine, theirs, ('A', 'B'))}")
    filled = [one for one in shared if mine[one] and theirs[one]] if a.kind == "rankings" else []
    if filled and not any(mine[one].keys() & theirs[one].keys() for one in filled):
        raise RunError(
            f"{where}all items: no input has an item in both lists; that of {filled[0]!r} holds "
            f"{some(mine[filled[0]])} in A and {some(theirs[filled[0]])} in B"
        )
    kept = [replace(part, content={one: part.content[one] for one in shared}) for part in (a, b)]
    left_out = len(mine) - len(shared), len(theirs) - len(shared)
    return _Matched(name=name, a=kept[0], b=kept[1], left_out=left_out)


def _matched_samples(name: str, a: Part, b: Part, *, common: bool) -> _Matched:
    """Samples of lm-eval; those that have the same document, prompt, target and filter in common."""
    kept, left_out = [a.content, b.content], [0, 0]
    if common:

        def identity(sample: Mapping[str, Any]) -> str:
            told = [sample["doc_id"], sample.get("filter"), *(sample.get(each) for each in HASHES)]
            return repr((told, sample["arguments"]))

        both = set(map(identity, a.content)) & set(map(identity, b.content))
        for arm, whole in enumerate((a.content, b.content)):
            kept[arm] = [sample for sample in whole if identity(sample) in both]
            # a document has a sample of every filter
            left_out[arm] = len({each["doc_id"] for each in whole}) - len({each["doc_id"] for each in kept[arm]})
        if not both:
            raise RunError(f"{name}: no document has the same prompt in both")
    paired = pair_samples(kept[0], kept[1], task=name)
    return _Matched(name=name, a=replace(a, content=kept[0]), b=b, left_out=(left_out[0], left_out[1]), samples=paired)


# --- the comparison -------------------------------------------------------------------------------

Values = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """Ranks of the shortest and of the longest list, of the reference and of the candidate."""

    a: tuple[int, int]
    b: tuple[int, int]


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
        asked: digest of what the inputs were asked, beside their ids: documents, prompts and targets of lm-eval;
            empty where that is not known.
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
    """Two finished runs compared, part by part; A is the reference and B the candidate."""

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
    """Compare two finished runs."""
    matched, notes = _match(a, b, common=common, only=only)
    parts: list[PartDiff] = []
    for each in matched:
        if each.samples is not None:
            if qrels is not None:
                raise DataError("samples of lm-eval hold their labels; leave --qrels out")
            parts += _of_samples(each, each.samples)
        elif each.a.kind == "answers":
            parts.append(_of_answers(each, qrels))
        else:
            if not qrels and a.data_by != b.data_by:  # of one program's data the digest tells
                _refuse_other_labels(each)
            parts.append(_of_rankings(each, qrels, complete=complete, depth=depth, ignore_identical=ignore_identical))
    told = dict.fromkeys([*_of_runs(a, b), *a.notes, *b.notes, *notes])
    return Diff(a=a, b=b, parts=tuple(parts), notes=tuple(told))


def _of_rankings(
    each: _Matched, qrels: Qrels | None, *, complete: bool, depth: int, ignore_identical: bool
) -> PartDiff:
    a, b, rankings = each.a, each.b, [each.a.content, each.b.content]
    if ignore_identical:
        rankings = [
            {name: {item: score for item, score in own.items() if item != name} for name, own in arm.items()}
            for arm in rankings
        ]
    cut = [part.depth for part in (a, b) if part.depth is not None]
    if complete and cut:
        raise RunError(
            f"expected lists that hold every item, as --complete says; one of these runs holds "
            f"the first {cut[0]:,} of more. Leave --complete out"
        )
    same_items = not cut and all(own.keys() == rankings[1][name].keys() for name, own in rankings[0].items())
    labels = qrels or a.qrels or b.qrels
    evidence = evidence_of_rankings(
        *rankings,
        qrels=labels,
        complete=complete or (a.complete and b.complete and same_items),
        depth=min(depth, *cut) if cut else depth,
    )
    depths = []
    for part, arm in zip((a, b), rankings, strict=True):
        lengths = [min(len(own), part.depth or len(own)) for own in arm.values()]
        depths.append((min(lengths), max(lengths)))
    notes = _labels_missing(labels, list(rankings[0]))
    if not evidence.exact:
        told = [f"{least:,}" if least == most else f"{least:,} to {most:,}" for least, most in depths]
        notes.append(
            f"the lists of A are {told[0]} deep and those of B {told[1]}, compared "
            f"to rank {evidence.depth:,}; of items that only one list holds the other score is "
            "not known, so epsilon is at least what is shown, and the separation ratio at most"
        )
        if same_items:
            notes.append(
                "both lists of every input hold the same items; if no others were scored (a "
                "shortlist that was ranked again), --complete says so, and epsilon is exact"
            )
    if made := [letter for letter, arm in zip("AB", rankings, strict=True) if _made_of_ranks(arm)]:
        notes.append(
            f"the scores of {' and '.join(made)} are the same for every input, so they were made from ranks; "
            "gap, epsilon and separation say nothing of the model then"
        )
    leads = [any(arm[name].get(name) == max(arm[name].values(), default=0) for arm in rankings) for name in rankings[0]]
    if any(leads):
        notes.append(
            f"{sum(leads):,} inputs find an item of their own name first; where a query is "
            "itself in the corpus, leave it out with --ignore-identical-ids"
        )
    lists = Lists(a=depths[0], b=depths[1])
    return PartDiff(
        name=each.name, inputs=each.name, evidence=evidence, lists=lists, left_out=each.left_out, notes=tuple(notes)
    )


def _made_of_ranks(rankings: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether all lists have the same scores, as far as they go; of a few that is an accident."""
    lists = [sorted(own.values(), reverse=True) for own in rankings.values() if len(own) > 1]
    longest = max(lists, key=len, default=[])
    return len(lists) > 4 and all(own == longest[: len(own)] for own in lists)  # noqa: PLR2004 -- a few


def _refuse_other_labels(each: _Matched) -> None:
    """Refuse two runs that bring relevance labels of their own, which are not the same."""
    if each.a.qrels is None or each.b.qrels is None:
        return
    relevant = [
        {name: {item: grade for item, grade in qrels.get(name, {}).items() if grade > 0} for name in each.a.content}
        for qrels in (each.a.qrels, each.b.qrels)
    ]
    if differ := [name for name, own in relevant[0].items() if own != relevant[1][name]]:
        where = f"{each.name}: " if each.name else ""
        raise RunError(
            f"{where}expected the same relevance labels in both runs; those of {len(differ):,} of "
            f"{len(each.a.content):,} inputs differ ({some(differ)}). Say which count with --qrels"
        )


def _labels_missing(labels: Qrels | None, inputs: Sequence[str]) -> list[str]:
    without = [name for name in inputs if labels is not None and not labels.get(name)]
    if labels and len(without) == len(inputs):
        raise DataError(
            f"the relevance labels are of other inputs: they are of {next(iter(labels))!r} and "
            f"{len(labels) - 1:,} more, the runs hold {inputs[0]!r} and {len(inputs) - 1:,} more"
        )
    return [f"{len(without):,} of {len(inputs):,} inputs have no relevance label"] if without else []


def _of_answers(each: _Matched, qrels: Qrels | None) -> PartDiff:
    arms = each.a.content, each.b.content
    right = None
    if qrels is None:
        grades = _own_grades(each.a, each.b)
        if grades is not None and all((name, answer) in grades for arm in arms for name, answer in arm.items()):
            right = [{name: grades[name, answer] for name, answer in arm.items()} for arm in arms]
    else:
        if missing := [name for name in arms[0] if not qrels.get(name)]:
            raise DataError(
                f"{len(missing):,} of {len(arms[0]):,} inputs have no label, {missing[0]!r} for one; expected the "
                "right answer of every input (inputs that have no name are numbered from 0)"
            )
        right = [{name: qrels[name].get(answer, 0) > 0 for name, answer in arm.items()} for arm in arms]
    return PartDiff(
        name=each.name,
        inputs=each.name.partition("#")[0],
        evidence=evidence_of_answers(*arms, right=(right[0], right[1]) if right else None),
        left_out=each.left_out,
    )


def _own_grades(a: Part, b: Part) -> dict[tuple[str, str], bool] | None:
    """Whether an answer to an input is right, by either run; None where they do not agree on one."""
    found: dict[tuple[str, str], bool] = {}
    for part in (a, b):
        for name, labels in (part.qrels or {}).items():
            for answer, grade in labels.items():
                if found.setdefault((name, answer), grade > 0) != (grade > 0):
                    return None
    return found


def _of_samples(each: _Matched, paired: PairedSamples) -> list[PartDiff]:
    names = ("doc_id", "doc_hash", "prompt_hash", "target_hash")
    rows = {"\t".join(str(sample.get(name)) for name in names) for sample in each.a.content}
    return [
        PartDiff(
            name=f"{each.name} ({name})" if len(paired.filters) > 1 else each.name,
            inputs=each.name,
            evidence=found.evidence,
            reason=found.reason,
            values=found.values,
            judged_by=found.judged_by,
            asked=digest(*sorted(rows)),
            left_out=each.left_out,
        )
        for name, found in paired.filters.items()
    ]


def _of_runs(a: FinishedRun, b: FinishedRun) -> list[str]:
    notes = []
    if a.digest == b.digest:
        same = a.path.resolve() == b.path.resolve()
        notes.append("A and B are one and the same" if same else "A and B hold the same, to the letter")
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


# --- metrics of a part, and over all parts --------------------------------------------------------


def estimate_of(metric: Metric, part: PartDiff) -> Estimate:
    """A metric of one part; undefined where it cannot be had."""
    if part.evidence is None:
        return undefined(part.reason or "no answer that could change")
    try:
        return metric(part.evidence)
    except MetricError as error:
        return undefined(str(error))


def pooled_estimate(metric: Metric, parts: Sequence[PartDiff]) -> Estimate:
    """A metric over the inputs of all parts that have evidence, where every input counts once.

    Parts that hold the same inputs (experiments of mteb, filters of lm-eval) are averaged first, input by input: a
    mean of means, with a bootstrap interval over inputs.
    """
    groups: dict[str, list[Evidence]] = {}
    for part in parts:
        if part.evidence is not None:
            groups.setdefault(part.inputs, []).append(part.evidence)
    if not groups:
        return undefined("no part has an answer that could change")
    try:
        if all(len(group) == 1 for group in groups.values()):
            return metric.over([group[0] for group in groups.values()])
        if metric.uncertainty == "order statistics" or metric.arm == "relative":
            return undefined("has no mean over parts that hold the same inputs")
        values = []
        for name, group in groups.items():
            if len({tuple(one.input_ids) for one in group}) > 1:
                return undefined(f"the parts of {name} do not hold the same inputs")
            labelled = [one for one in group if one.judgements is not None or not metric.family.needs_labels]
            if rows := [metric.per_input(one) for one in labelled]:
                counted = ~np.isnan(rows)
                some_value = counted.any(axis=0)
                values.append(np.nansum(rows, axis=0)[some_value] / counted.sum(axis=0)[some_value])
    except MetricError as error:
        return undefined(str(error))
    known = np.concatenate([np.empty(0), *values])
    return mean_estimate(known) if len(known) else undefined(metric.family.undefined_when)


def change_of(values: Values) -> tuple[float | None, float | None, Estimate]:
    """One of the harness's own metrics: mean in A, mean in B, and the change with its interval."""
    before, after = values
    both = ~(np.isnan(before) | np.isnan(after))
    if not both.any():
        return None, None, undefined("no document has a value in both")
    before, after = before[both], after[both]
    return float(before.mean()), float(after.mean()), mean_estimate(after - before)


# --- as run folders, which the other commands read ------------------------------------------------


def write_diff(diff: Diff, folder: Path) -> list[Run]:
    """Write one run folder, or one per part below it, of the name of the part."""
    known = [part for part in diff.parts if part.evidence is not None]
    if not known:
        raise RunError("there is no evidence to write: no part has an answer that could change")
    places: list[Path] = []
    sources = {os.path.realpath(run.path) for run in (diff.a, diff.b)}
    for part in known:
        name = re.sub(r"[^\w.+#-]+", "-", part.name).strip("-") or "part"
        place = folder if len(diff.parts) == 1 else folder / name
        while place in places:  # two names of the same letters and digits
            place = place.with_name(f"{place.name}-")
        if os.path.realpath(place) in sources:
            raise RunError(
                f"{place} is one of the two runs that are compared, which the comparison would "
                "replace. Choose another folder with --out"
            )
        places.append(place)
    return [
        write_run(place, evidence=part.evidence, record=_record(diff, part, part.evidence))
        for place, part in zip(places, known, strict=True)
        if part.evidence is not None
    ]


def _record(diff: Diff, part: PartDiff, evidence: Evidence) -> dict[str, Any]:
    a, b = diff.a, diff.b
    arms = {"reference": a, "candidate": b}
    named = ", ".join(dict.fromkeys(name for name in (a.data or b.data, part.name) if name))
    return {
        "spec": f"{a.model} vs {b.model}",
        "diff": {
            "quantdrift": __version__,
            **{
                arm: {"path": str(run.path), "format": run.format, "name": run.name, "digest": run.digest}
                for arm, run in arms.items()
            },
            "part": part.name,
            "left_out": list(part.left_out),
            "deltas": evidence.deltas,
            "notes": [*diff.notes, *part.notes],
        },
        # the reference is what its file holds; two diffs with one reference can be compared
        "model": {
            "name": a.model,
            "fingerprint": f"{a.format}:{a.digest}",
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


def data_digest(evidence: Evidence, asked: str = "") -> str:
    """Of the ids of the inputs and their labels, whatever their order, and of what they were asked."""
    rows = [asked] if asked else []
    for row, name in enumerate(evidence.input_ids):
        labels = {} if evidence.judgements is None else evidence.judgements.of(row)
        told = sorted(f"{evidence.item_ids[item]}\t{grade}" for item, grade in labels.items())
        rows.append("\n".join([str(name), *told]))
    return digest(*sorted(rows))


# --- the inputs whose answer changed, the worst first ---------------------------------------------

Kind = Literal["harmful", "neutral", "beneficial"]
KINDS: tuple[Kind, ...] = ("harmful", "neutral", "beneficial")
"""Relevant items among the first k: fewer than before, as many, more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An input whose first answer changed; with a cut-off k, the set of its first k.

    Attributes:
        input_id: its name.
        before: the reference's first answer; with a cut-off, the first that left the first k, a relevant one if there
            is any.
        after: the candidate's; likewise the first that came in.
        rank_before: rank that `after` has in the reference's list; None if it is not among the ranks kept.
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
        return asdict(self)


def changed_inputs(evidence: Evidence, k: int = 1) -> list[Changed]:
    """The inputs whose first k changed: relevant items lost first, and the largest leads first."""
    if k > evidence.depth and evidence.cut_short:
        raise RunError(f"expected at most {evidence.depth} ranks, which are stored; got {k}")
    scores = evidence.reference_top.reference_scores.astype(np.float64)
    gaps = scores[:, k - 1] - scores[:, k] if scores.shape[1] > k else np.full(len(scores), np.nan)
    ratios = perturbation.cut_separation(evidence, k)
    rows = np.flatnonzero(~perturbation.top_set_kept(evidence, k)).tolist()
    found = [_changed(evidence, row, k, _finite(gaps[row]), _finite(ratios[row])) for row in rows]
    return sorted(found, key=lambda each: (KINDS.index(each.kind or "neutral"), -(each.lead or 0.0)))


def _changed(evidence: Evidence, row: int, k: int, lead: float | None, separation: float | None) -> Changed:
    reference, candidate = evidence.reference_top, evidence.candidate_top
    firsts = [[item for item in top.items[row, :k].tolist() if item >= 0] for top in (reference, candidate)]
    labels = {} if evidence.judgements is None else evidence.judgements.of(row)
    relevant = {item for item, grade in labels.items() if grade > 0}
    before, after = (
        _telling([item for item in here if item not in there], relevant) for here, there in (firsts, firsts[::-1])
    )
    was, now = (len(relevant.intersection(items)) for items in firsts)
    return Changed(
        input_id=str(evidence.input_ids[row]),
        before=_name(evidence, before),
        after=_name(evidence, after),
        rank_before=_rank(reference, row, after),
        rank_after=_rank(candidate, row, before),
        was_right=before in relevant if labels else None,
        is_right=after in relevant if labels else None,
        lead=lead,
        kind=KINDS[1 + (now > was) - (now < was)] if labels else None,
        score_before=_score(reference, reference.reference_scores, row, before),
        score_after=_score(candidate, candidate.candidate_scores, row, after),
        separation=separation,
    )


def _telling(items: Sequence[int], relevant: Iterable[int]) -> int:
    """The first relevant item, else the first; -1 if there is none."""
    return next((item for item in items if item in relevant), items[0] if items else -1)


def _name(evidence: Evidence, item: int) -> str | None:
    return str(evidence.item_ids[item]) if item >= 0 else None


def _rank(top: Top, row: int, item: int) -> int | None:
    places = np.flatnonzero(top.items[row] == item)
    return int(places[0]) + 1 if item >= 0 and len(places) else None


def _score(top: Top, scores: NDArray[np.float32], row: int, item: int) -> float | None:
    rank = _rank(top, row, item)
    return None if rank is None else _finite(scores[row, rank - 1])


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
