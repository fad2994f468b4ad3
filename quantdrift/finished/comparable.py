"""Whether two finished runs can be compared: the same inputs, items, prompts and settings.

Everything that differs is listed at once. What one of two runs lacks can be left out, if asked for;
what both have in another form cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quantdrift.datasets.beir_files import some
from quantdrift.errors import RunError, UnknownNameError
from quantdrift.finished.lm_eval.samples import PairedSamples, pair_samples
from quantdrift.finished.readers.contents import FinishedRun, Labelled, Part, Ranked, Sampled
from quantdrift.finished.sampled import shared_samples

__all__ = ["Matched", "match_parts"]

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
        raise RunError(
            f"expected two runs on the same inputs; {a.path} (A) and {b.path} (B) differ "
            f"in{listed}{advice}"
        )
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
    return [
        f"{where}setting {name}: {a[name]} and {b[name]}"
        for name in a
        if name in b and a[name] != b[name]
    ]


def _match(name: str, a: Part, b: Part, *, common: bool, wrong: list[str]) -> Matched | None:
    where = f"{name}: " if name else ""
    if type(a) is not type(b):
        wrong.append(f"{where}what they hold: {_KINDS[type(a)]} and {_KINDS[type(b)]}")
        return None
    if isinstance(a, Sampled) or isinstance(b, Sampled):
        assert isinstance(a, Sampled)
        assert isinstance(b, Sampled)
        return _samples(name, a, b, common=common, wrong=wrong)
    assert not isinstance(b, Sampled)
    mine, theirs = _inputs(a), _inputs(b)
    shared = [input_id for input_id in mine if input_id in theirs]
    problem = _inputs_differ(a, b, shared, common=common) or _items_differ(a, b, shared)
    if problem:
        wrong.append(where + problem)
        return None
    left_out = len(mine) - len(shared), len(theirs) - len(shared)
    return Matched(name=name, a=_part(a, shared), b=_part(b, shared), left_out=left_out)


def _inputs_differ(
    a: Ranked | Labelled, b: Ranked | Labelled, shared: Sequence[str], *, common: bool
) -> str | None:
    mine, theirs = _inputs(a), _inputs(b)
    if len(mine) == len(theirs) == len(shared):
        return None
    if a.numbered or b.numbered:
        return (
            f"inputs: {len(mine):,} in A and {len(theirs):,} in B; they have no names, so which "
            "are the same cannot be told"
        )
    if not shared:
        return (
            f"all inputs: {some(mine)} in A, {some(theirs)} in B ({len(mine):,} and "
            f"{len(theirs):,})"
        )
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


def _samples(
    name: str, a: Sampled, b: Sampled, *, common: bool, wrong: list[str]
) -> Matched | None:
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
