"""What became of relevant items: lost and gained from the top-k, and by flips of the top-1.

An item that is not judged counts as not relevant. Source: paper, section 5.1 and appendix, "Does a
flip replace a relevant document?".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.evidence import Evidence
from quantdrift.metrics.base import Direction, Family, PerInput
from quantdrift.metrics.labels import arm_grades, judged

__all__ = ["FAMILIES"]

Bools = NDArray[np.bool_]


def _missing(evidence: Evidence, cutoff: int, arm: Any, other: Any) -> NDArray[np.float64]:
    """1.0 where a relevant item of one arm's top-k is not in the other's, else 0.0.

    NaN where that arm has no relevant item in its top-k.
    """
    tops = {"reference": evidence.reference_top, "candidate": evidence.candidate_top}
    gold = arm_grades(evidence, arm, cutoff) > 0
    here, there = tops[arm].items[:, :cutoff], tops[other].items[:, :cutoff]
    kept = (here[:, :, None] == there[:, None, :]).any(axis=2)
    return np.where(gold.any(axis=1), (gold & ~kept).any(axis=1).astype(np.float64), np.nan)


def _gold_lost(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    return _missing(evidence, cutoff, "reference", "candidate")


def _gold_gained(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
    return _missing(evidence, cutoff, "candidate", "reference")


Outcome = Callable[[Bools, Bools], Bools]
"""From whether the old and the new top-1 are relevant to whether this is the outcome."""


def _lost(before: Bools, after: Bools) -> Bools:
    return before & ~after


def _kept(before: Bools, after: Bools) -> Bools:
    return before & after


def _won(before: Bools, after: Bools) -> Bools:
    return ~before & after


def _neither(before: Bools, after: Bools) -> Bools:
    return ~before & ~after


def _happened(evidence: Evidence, outcome: Outcome) -> tuple[Bools, Bools]:
    """Which inputs flipped, and which of them with this outcome."""
    flipped = perturbation.flips(evidence)
    before, after = (arm_grades(evidence, arm, 1)[:, 0] > 0 for arm in ("reference", "candidate"))
    return flipped, flipped & outcome(before, after)


def _of_flips(outcome: Outcome) -> PerInput:
    def per_input(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
        flipped, happened = _happened(evidence, outcome)
        return np.where(flipped & judged(evidence), happened.astype(np.float64), np.nan)

    return per_input


def _of_inputs(outcome: Outcome) -> PerInput:
    def per_input(evidence: Evidence, cutoff: int, arm: Any) -> NDArray[np.float64]:
        _, happened = _happened(evidence, outcome)
        return np.where(judged(evidence), happened.astype(np.float64), np.nan)

    return per_input


def _rate(
    name: str,
    summary: str,
    per_input: PerInput,
    *,
    direction: Direction,
    undefined_when: str,
    cutoffs: tuple[int, ...] = (),
    headline: bool = False,
) -> Family:
    return Family(
        name=name,
        section="relevance",
        summary=summary,
        direction=direction,
        low=0,
        high=1,
        unit="rate",
        uncertainty="wilson",
        per_input=per_input,
        undefined_when=undefined_when,
        needs_labels=True,
        cutoffs=cutoffs,
        headline=headline,
    )


_NO_FLIP = "no input with a judgement flipped"
_NO_JUDGEMENT = "no input has a judgement"

FAMILIES = (
    _rate(
        "gold_lost",
        "of the inputs with a relevant item in the reference top-k, the share where one of "
        "those items is no longer in the candidate top-k",
        _gold_lost,
        direction="lower",
        undefined_when="no input has a relevant item in the reference top-k",
        cutoffs=(1, 5, 10),
        headline=True,
    ),
    _rate(
        "gold_gained",
        "of the inputs with a relevant item in the candidate top-k, the share where one of "
        "those items was not in the reference top-k",
        _gold_gained,
        direction="higher",
        undefined_when="no input has a relevant item in the candidate top-k",
        cutoffs=(1, 5, 10),
    ),
    _rate(
        "flip_to_irrelevant",
        "of the flips, the share that replace a relevant top-1 by one that is not",
        _of_flips(_lost),
        direction="lower",
        undefined_when=_NO_FLIP,
    ),
    _rate(
        "flip_among_relevant",
        "of the flips, the share from one relevant top-1 to another",
        _of_flips(_kept),
        direction="none",
        undefined_when=_NO_FLIP,
    ),
    _rate(
        "flip_to_relevant",
        "of the flips, the share that bring a relevant top-1 where there was none",
        _of_flips(_won),
        direction="higher",
        undefined_when=_NO_FLIP,
    ),
    _rate(
        "flip_among_unjudged",
        "of the flips, the share between two items of which neither is judged relevant",
        _of_flips(_neither),
        direction="none",
        undefined_when=_NO_FLIP,
    ),
    _rate(
        "harm",
        "share of the inputs with a judgement whose relevant top-1 is replaced by one that is not",
        _of_inputs(_lost),
        direction="lower",
        undefined_when=_NO_JUDGEMENT,
        headline=True,
    ),
    _rate(
        "benefit",
        "share of the inputs with a judgement that get a relevant top-1 where there was none",
        _of_inputs(_won),
        direction="higher",
        undefined_when=_NO_JUDGEMENT,
    ),
)
