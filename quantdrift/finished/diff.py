"""The comparison of two finished runs: evidence for each part, and remarks."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import __version__
from quantdrift.base.errors import DataError, RunError, UnknownNameError
from quantdrift.base.text import some
from quantdrift.evidence.record import Evidence
from quantdrift.finished.contents import FinishedRun, Part, digest
from quantdrift.finished.lm_eval_evidence import HASHES, pair_samples
from quantdrift.finished.rankings import DEPTH, Qrels, evidence_of_answers, evidence_of_rankings, only_in
from quantdrift.metrics import Metric, MetricError, measure
from quantdrift.runs.folder import Run, write_run
from quantdrift.statistics.estimates import Estimate, mean_estimate, undefined

Values = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartDiff:
    """One part of both runs.

    Attributes:
        name: name of the part; empty if there is only one.
        inputs: the name of the set of inputs: parts with the same name here have the same inputs.
        evidence: the evidence of the part; None if no answer could change.
        reason: why there is no evidence.
        lists: for rankings, the lengths of the shortest and of the longest list in A, and in B.
        values: lm-eval's own metrics by name, with the value of every document in A and in B.
        judged_by: the metric among these that says which answers are right.
        asked: digest of lm-eval's documents, prompts and targets; empty if they are not known.
        left_out: number of inputs that only A has, and that only B has.
        notes: remarks, one sentence each, without a full stop.
    """

    name: str
    inputs: str
    evidence: Evidence | None
    reason: str | None = None
    lists: tuple[tuple[int, int], ...] = ()
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
) -> Diff:
    """Compare two finished runs."""
    pairs = _pairs(a, b, only)
    lone = [name for name, pair in pairs.items() if None in pair]
    missing = [f"parts that only one of them has: {some(lone)} ({len(lone):,} of {len(pairs):,})"] if lone else []
    wrong = [] if common else missing.copy()
    if a.identity is not None and b.identity is not None and a.data_by == b.data_by:
        wrong += a.identity.differences(b.identity, ("data", "meaning"))
    shared = []
    for name, (before, after) in pairs.items():
        if before is not None and after is not None:
            try:
                shared.append((name, *_shared(before, after, common=common)))
            except RunError as error:
                wrong.append(f"{name}: {error}" if name else str(error))
    if wrong or not shared:
        listed = "".join(f"\n  - {line}" for line in wrong or ["they have no part in common"])
        advice = "" if common else "\n--common compares what both hold, where the rest is the same."
        raise RunError(f"expected two runs on the same inputs; {a.path} (A) and {b.path} (B) differ in{listed}{advice}")
    parts: list[PartDiff] = []
    for name, before, after, left_out in shared:
        if before.kind != "rankings" and qrels is not None:
            raise DataError("answers, and samples of lm-eval, hold their labels; leave --qrels out")
        if before.kind == "samples":
            compared = _of_samples(name, before, after)
        elif before.kind == "answers":
            compared = [_of_answers(name, before, after)]
        else:
            compared = [_of_rankings(name, before, after, qrels, complete=complete, ignore_identical=ignore_identical)]
        parts += [replace(part, left_out=left_out) for part in compared]
    notes = dict.fromkeys([*a.notes, *b.notes, *(f"{part}; left out" for part in missing)])
    same = ["A and B hold the same, to the letter"] if a.digest == b.digest else []
    return Diff(a=a, b=b, parts=tuple(parts), notes=(*same, *notes))


# --- the parts and inputs that both have ----------------------------------------------------------


def _pairs(a: FinishedRun, b: FinishedRun, only: Sequence[str]) -> dict[str, tuple[Part | None, Part | None]]:
    """Both runs' parts by name; the only parts of two runs of different formats form a pair."""
    names = list(dict.fromkeys([*a.parts, *b.parts]))
    for name in only:
        if name not in names:
            there = some([part for part in names if part])
            hint = f"(there are {there})" if there else "(these runs have no parts; leave out --part)"
            raise UnknownNameError("part", name, names, hint=hint)
    # a part without a name is the only one of its run
    first, second = ({n: part for n, part in run.parts.items() if not only or n in ("", *only)} for run in (a, b))
    if len(first) == len(second) == 1 and a.format != b.format:
        return {"": (next(iter(first.values())), next(iter(second.values())))}
    if ("" in first) != ("" in second):
        parts = list(second if "" in first else first)
        raise RunError(
            f"expected one part to compare with a run that has one; the other run has {len(parts):,}: {some(parts)}. "
            "Choose with --part"
        )
    return {name: (first.get(name), second.get(name)) for name in dict.fromkeys([*first, *second])}


def _shared(a: Part, b: Part, *, common: bool) -> tuple[Part, Part, tuple[int, int]]:
    """Restrict both parts to the inputs that both have, and count those left out of each."""
    if a.kind != b.kind:
        raise RunError(f"kind of content: {a.kind} and {b.kind}")
    mine, theirs = a.content, b.content
    shared = [name for name in mine if name in theirs]
    left_out = len(mine) - len(shared), len(theirs) - len(shared)
    if any(left_out) and not (common and shared):
        raise RunError(f"inputs: {only_in(mine, theirs, ('A', 'B'))}")
    filled = [name for name in shared if mine[name] and theirs[name]] if a.kind == "rankings" else []
    if filled and all(mine[name].keys().isdisjoint(theirs[name]) for name in filled):
        raise RunError(
            f"all items: no input has an item in both lists; that of {filled[0]!r} holds "
            f"{some(mine[filled[0]])} in A and {some(theirs[filled[0]])} in B"
        )
    a, b = (replace(part, content={name: part.content[name] for name in shared}) for part in (a, b))
    return a, b, left_out


# --- parts as evidence ----------------------------------------------------------------------------


def _of_rankings(
    name: str, a: Part, b: Part, qrels: Qrels | None, *, complete: bool, ignore_identical: bool
) -> PartDiff:
    rankings = [a.content, b.content]
    if ignore_identical:
        rankings = [
            {name: {item: score for item, score in ranking.items() if item != name} for name, ranking in arm.items()}
            for arm in rankings
        ]
    same_items = all(ranking.keys() == rankings[1][query].keys() for query, ranking in rankings[0].items())
    labels = qrels or a.qrels or b.qrels
    cut = [part.depth for part in (a, b) if part.depth is not None]
    complete = complete or (a.complete and b.complete and same_items)
    how: Any = {"scored": a.scored and b.scored, "ordered": a.ordered and b.ordered}
    evidence = evidence_of_rankings(*rankings, qrels=labels, complete=complete, depth=min([DEPTH, *cut]), **how)
    lists, notes = [], _labels_missing(labels, list(rankings[0]))
    for part, arm in zip((a, b), rankings, strict=True):
        lengths = [min(len(ranking), part.depth or len(ranking)) for ranking in arm.values()]
        lists.append((min(lengths), max(lengths)))
    if not how["scored"]:
        notes.append("answers without scores of both have an order alone: neither gap nor epsilon is known")
    elif not evidence.exact:
        notes.append(
            f"lists were compared to rank {evidence.depth:,}; an item of one list alone has no score in the other, "
            "so epsilon is a lower bound and the separation ratio an upper one (if no other items were scored, as in "
            "reranking a shortlist, quantdrift diff --complete says so)"
        )
    return PartDiff(name=name, inputs=name, evidence=evidence, lists=tuple(lists), notes=tuple(notes))


def _labels_missing(labels: Qrels | None, inputs: Sequence[str]) -> list[str]:
    without = [name for name in inputs if labels is not None and not labels.get(name)]
    if labels and len(without) == len(inputs):
        raise DataError(
            f"the relevance labels belong to other inputs: they are for {some(labels)}, the runs hold {some(inputs)}"
        )
    return [f"{len(without):,} of {len(inputs):,} inputs have no relevance label"] if without else []


def _of_answers(name: str, a: Part, b: Part) -> PartDiff:
    """The evidence of answers, with the labels of the runs if these grade all answers."""
    arms, right = (a.content, b.content), None
    labels = {key: {**(b.qrels or {}).get(key, {}), **(a.qrels or {}).get(key, {})} for key in a.content}
    if all(answer in labels[key] for arm in arms for key, answer in arm.items()):
        right = [{key: labels[key].get(answer, 0) > 0 for key, answer in arm.items()} for arm in arms]
    evidence = evidence_of_answers(*arms, right=(right[0], right[1]) if right else None)
    return PartDiff(name=name, inputs=name, evidence=evidence)


def _of_samples(name: str, a: Part, b: Part) -> list[PartDiff]:
    before, after = (list(chain(*part.content.values())) for part in (a, b))
    rows = {"\t".join(str(sample.get(key)) for key in ("doc_id", *HASHES)) for sample in before}
    paired = pair_samples(before, after, task=name)
    return [
        PartDiff(
            name=f"{name} ({filtered})" if len(paired) > 1 else name,
            inputs=name,
            evidence=both.evidence,
            reason=both.reason,
            values=both.values,
            judged_by=both.judged_by,
            asked=digest(*sorted(rows)),
        )
        for filtered, both in paired.items()
    ]


# --- metrics of a part, and over all parts --------------------------------------------------------


def estimate_of(metric: Metric, part: PartDiff) -> Estimate:
    """A metric of one part; undefined if it cannot be computed."""
    if part.evidence is None:
        return undefined(part.reason or "no answer that could change")
    return metric.known_over([part.evidence])


def pooled_estimate(metric: Metric, parts: Sequence[PartDiff]) -> Estimate:
    """A metric over the inputs of all parts with evidence; every input counts once.

    Parts with the same inputs (filters of lm-eval) are first averaged input by input; the result is then a mean of
    means, with a bootstrap interval over inputs.
    """
    groups: dict[str, list[Evidence]] = {}
    for part in parts:
        if part.evidence is not None:
            groups.setdefault(part.inputs, []).append(part.evidence)
    if not groups:
        return undefined("no part has an answer that could change")
    if all(len(group) == 1 for group in groups.values()):
        return metric.known_over([group[0] for group in groups.values()])
    try:
        if metric.uncertainty == "order statistics" or metric.arm == "relative":
            return undefined("has no mean over parts that hold the same inputs")
        rows = [np.stack([metric.per_input(evidence) for evidence in group]) for group in groups.values()]
    except MetricError as error:
        return undefined(str(error))
    means = [np.nanmean(row[:, ~np.isnan(row).all(axis=0)], axis=0) for row in rows]
    values = np.concatenate(means)
    return mean_estimate(values) if len(values) else undefined(metric.family.undefined_when)


def change_of(values: Values) -> tuple[float | None, float | None, Estimate]:
    """The mean of one of the harness's own metrics in A and in B, and the change with its interval."""
    before, after = values
    both = ~(np.isnan(before) | np.isnan(after))
    if not both.any():
        return None, None, undefined("no document has a value in both")
    before, after = before[both], after[both]
    return float(before.mean()), float(after.mean()), mean_estimate(after - before)


# --- run folders, for the other commands ----------------------------------------------------------


def write_diff(diff: Diff, folder: Path) -> list[Run]:
    """Write one run folder; for several parts, one below it for each part, called like the part."""
    held = {part.name: (part, part.evidence) for part in diff.parts if part.evidence is not None}
    if not held:
        raise RunError("there is no evidence to write: no part has an answer that could change")
    places = {
        name: folder if len(diff.parts) == 1 else folder / (re.sub(r"[^\w.+#-]+", "-", name).strip("-") or "part")
        for name in held
    }
    sources = {os.path.realpath(run.path) for run in (diff.a, diff.b)}
    if len(set(places.values())) < len(places) or sources & set(map(os.path.realpath, places.values())):
        raise RunError(
            f"{some(map(str, places.values()))}: expected a folder of its own for each comparison, other than the two "
            "runs. Choose another folder with --out, or one part with --part"
        )
    return [
        write_run(places[name], evidence=evidence, record=_record(diff, part, evidence))
        for name, (part, evidence) in held.items()
    ]


def _record(diff: Diff, part: PartDiff, evidence: Evidence) -> dict[str, Any]:
    a, b = diff.a, diff.b
    named = ", ".join(dict.fromkeys(name for name in (a.data or b.data, part.name) if name))
    # the reference is identified by its file, so that two diffs with the same one can be compared
    model = {"name": a.model, "fingerprint": f"{a.format}:{a.digest}"}
    data = {"name": named or f"{evidence.n_inputs:,} inputs", "fingerprint": data_digest(evidence, part.asked)}
    # how tight a bound is depends on the length of the lists
    compared = {} if evidence.exact else {"ranks_compared": evidence.depth}
    return {
        "spec": f"{a.model} vs {b.model}",
        "diff": {
            "quantdrift": __version__,
            "reference": a.about,
            "candidate": b.about,
            "part": part.name,
            "left_out": list(part.left_out),
            "deltas": evidence.deltas,
            "notes": [*diff.notes, *part.notes],
        },
        "model": {**model, "candidate_name": b.model, "candidate_fingerprint": b.digest},
        "data": {**data, "n_queries": evidence.n_inputs, "warnings": []},
        "settings": {"k": evidence.depth, "deltas": evidence.deltas, **compared},
        "metrics": {name: estimate.to_json() for name, estimate in measure(evidence).items()},
    }


def data_digest(evidence: Evidence, asked: str = "") -> str:
    """Digest the ids of the inputs with their labels, in any order, and the digest `asked`."""
    rows = [asked] if asked else []
    for row, name in enumerate(evidence.input_ids):
        labels = {} if evidence.judgements is None else evidence.judgements.of(row)
        graded = sorted(f"{evidence.item_ids[item]}\t{grade}" for item, grade in labels.items())
        rows.append("\n".join([str(name), *graded]))
    return digest(*sorted(rows))
