"""Evidence from two finished rankings, or two answers, of every input.

Of an item that a truncated list leaves out, neither the score nor its change is known. So the extremes of delta are
over the items that both lists hold, epsilon and S are lower bounds, and the evidence says so.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from quantdrift.base.errors import RunError
from quantdrift.base.text import some
from quantdrift.data.retrieval import excerpt
from quantdrift.evidence.record import Evidence, Judgements, Top

Ranking = Mapping[str, float]
"""Item to score, higher is better."""

Rankings = Mapping[str, Ranking]
"""Input to its ranking."""

Qrels = Mapping[str, Mapping[str, int]]

DEPTH = 200
"""Most ranks that are kept of each arm."""

_MOST = float(np.finfo(np.float32).max)


def evidence_of_rankings(
    reference: Rankings,
    candidate: Rankings,
    *,
    qrels: Qrels | None = None,
    complete: bool = False,
    position: Callable[[str], Any] | None = None,
    depth: int = DEPTH,
    scored: bool = True,
    ordered: bool = False,
) -> Evidence:
    """Evidence of the rankings of two arms.

    delta = candidate score - reference score of the items that both lists of an input hold, in float32. Where answers
    have no scores (`scored` is False), these are NaN. Lists are ranked by score, or are in their order (`ordered`).
    """
    _same_inputs(reference, candidate)
    for input_id, before in reference.items() if scored else ():
        _check(input_id, before, candidate[input_id], complete=complete)
    names: dict[str, int] = {}
    deepest = [max(len(listed) for listed in arm.values()) for arm in (reference, candidate)]
    n_inputs, n_ranks = len(reference), max(1, min(depth, *deepest))
    items = np.full((2, n_inputs, n_ranks), -1, dtype=np.int64)
    scores = np.full((2, 2, n_inputs, n_ranks), np.nan, dtype=np.float32)
    extremes = np.zeros((2, n_inputs), dtype=np.float32)
    n_items = np.zeros(n_inputs, dtype=np.int64)
    for row, (input_id, before) in enumerate(reference.items()):
        after = candidate[input_id]
        shared = [item for item in before if item in after]
        n_items[row] = len(before) + len(after) - len(shared)
        if shared and scored:
            deltas = np.array([after[item] for item in shared], dtype=np.float32)
            deltas -= np.array([before[item] for item in shared], dtype=np.float32)
            extremes[:, row] = deltas.min(), deltas.max()
        elif complete or not scored:
            extremes[:, row] = np.nan
        for arm, listed in enumerate((before, after)):
            # by score, ties by position, as Python's sort is stable
            by_score = sorted(sorted(listed, key=position), key=listed.__getitem__, reverse=True)
            ranked = ([*listed] if ordered else by_score)[:n_ranks]
            items[arm, row, : len(ranked)] = [names.setdefault(item, len(names)) for item in ranked]
            for whose, given in enumerate((before, after)):
                known = given if scored else {}
                scores[arm, whose, row, : len(ranked)] = [known.get(item, math.nan) for item in ranked]
    if not n_items.any():
        raise RunError("expected rankings; none of the inputs has an item")
    tops = [Top(items=items[arm], reference_scores=scores[arm, 0], candidate_scores=scores[arm, 1]) for arm in (0, 1)]
    item_ids = list(names)
    judgements = Judgements.from_qrels(qrels, list(reference), item_ids) if qrels else None
    return Evidence(
        input_ids=np.array(list(reference), dtype=object),
        item_ids=np.array(item_ids, dtype=object),
        reference_top=tops[0],
        candidate_top=tops[1],
        delta_min=extremes[0],
        delta_max=extremes[1],
        n_items=n_items,
        judgements=judgements,
        deltas="none" if not scored else "all" if complete else "listed",
    )


def evidence_of_answers(
    reference: Mapping[str, str],
    candidate: Mapping[str, str],
    *,
    right: tuple[Mapping[str, bool], Mapping[str, bool]] | None = None,
) -> Evidence:
    """Evidence of one answer per input and arm without scores, such as a generated text.

    An answer is a ranking of one item, so a flip is a different answer. Figures that need a score are undefined.
    """
    _same_inputs(reference, candidate)
    qrels = None
    if right is not None:
        for name, answer in reference.items():
            if answer == candidate[name] and right[0][name] != right[1][name]:
                raise RunError(f"the answer to {name!r} is the same in both arms, and right in one only")
        qrels = {
            name: {answer: int(right[0][name]), candidate[name]: int(right[1][name])}
            for name, answer in reference.items()
        }
    before, after = ({name: {answer: math.nan} for name, answer in arm.items()} for arm in (reference, candidate))
    unscored = evidence_of_rankings(before, after, qrels=qrels, complete=True, scored=False)
    return replace(unscored, n_items=np.ones(len(reference), dtype=np.int64))


def only_in(first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Describe the keys that only one of two mappings has, by counts and examples; empty if there are none."""
    parts = [
        f"{len(missing):,} of {len(names_here):,} only in {name} ({some(map(str, missing))})"
        for name, names_here, others in ((names[0], first, second), (names[1], second, first))
        if (missing := sorted(names_here.keys() - others.keys()))
    ]
    return "; ".join(parts)


def _same_inputs(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> None:
    if difference := only_in(reference, candidate, ("the reference", "the candidate")):
        raise RunError(f"expected the same inputs in both arms; got {difference}")
    if not reference:
        raise RunError("expected answers to compare; there are no inputs")


def _check(input_id: str, before: Ranking, after: Ranking, *, complete: bool) -> None:
    for arm, listed in (("reference", before), ("candidate", after)):
        # NaN fails this comparison too, and so does an integer too large for a float
        wrong = next((item for item, score in listed.items() if not -_MOST <= score <= _MOST), None)
        if wrong is not None:
            raise RunError(
                f"expected finite scores, of 32-bit floats; the {arm}'s score of {wrong!r} for "
                f"{input_id!r} is {excerpt(listed[wrong])}"
            )
    if complete and before.keys() != after.keys():
        raise RunError(
            f"expected both arms to score the same items; for {input_id!r} the reference scored "
            f"{len(before):,} and the candidate {len(after):,}, and they are not the same"
        )
