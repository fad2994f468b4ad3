"""Selective prediction with a guarantee on the answers that are accepted.

An answer is accepted where its confidence is above a threshold. Of all thresholds that a calibration sample offers, the
lowest one is taken down to which, from the surest inputs on, every one has passed an exact test of "more than a share
alpha of the accepted answers changed". So, with a confidence of 1 - delta over the draw of the calibration inputs, at
most a share alpha of the answers that are accepted later changed. docs/adr/0042-the-conditional-guarantee.md has the
proof, and says why the thresholds may be the calibration inputs' own.

An answer that is not accepted can be deferred to full precision. Then the same test, of all answers of the system,
gives the lowest threshold below which deferring leaves at most a share alpha of them different.

Source: fixed-sequence testing (Bauer 1991; Angelopoulos et al. 2021, "Learn then Test"); selective classification with
guaranteed risk (Geifman and El-Yaniv 2017); risk-controlling prediction sets (Bates et al. 2021).
"""

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from quantdrift.statistics.estimates import at_most

Floats = NDArray[np.float64]

CONFIDENCE = 0.9
"""The confidence of the guarantee where nobody says another."""
_USEFUL = 8
"""One part of so many is the least that is worth accepting."""
_BLOCK = 256
"""Tests made at a time; behind the first that fails none are needed."""


def least_inputs(alpha: float, confidence: float = CONFIDENCE, *, changed: int = 0) -> int:
    """Number of inputs that show a share of at most alpha when so many of them changed.

    The smallest n with P(Binomial(n, alpha) <= changed) <= 1 - confidence.

    >>> [least_inputs(alpha) for alpha in (0.1, 0.05, 0.01)], least_inputs(0.01, changed=1)
    ([22, 45, 230], 388)
    """
    enough = changed + 1
    while at_most(changed, enough, alpha) > 1 - confidence:
        enough *= 2
    return bisect_left(
        range(enough), True, key=lambda n: n > changed and bool(at_most(changed, n, alpha) <= 1 - confidence)
    )


def selective_threshold(
    scores: Floats, changed: NDArray[np.bool_], alpha: float, confidence: float = CONFIDENCE
) -> float:
    """The threshold above which at most a share alpha of the answers changed.

    The tests begin behind an eighth of the inputs, or as many as one change needs; of few inputs, behind as many as no
    change needs. So the data do not decide where they begin.

    Args:
        scores: float64 [n_inputs], how sure the candidate is of calibration inputs; larger is surer.
        changed: bool [n_inputs], whether the answer changed.
        alpha: share of the accepted answers that may have changed, above 0 and below 1.
        confidence: of the guarantee, above 0 and below 1.

    Returns:
        Accept what is above it; -inf accepts everything, inf nothing.
    """
    n, first = len(scores), least_inputs(alpha, confidence, changed=1)
    first = max(first, n // _USEFUL) if n >= 2 * first else least_inputs(alpha, confidence)
    if n < first:
        return math.inf
    order = np.argsort(-scores, kind="stable")
    values = scores[order]
    begins = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])  # the first row of each value
    # a threshold at each value of the rows from `first` on, and one below all
    accepted = np.r_[begins[np.searchsorted(begins, first, side="right") - 1 :] if first < n else [], n].astype(int)
    wrong = np.r_[0, np.cumsum(changed[order])][accepted]
    # Until one more has changed each test is easier than the one before, so it need not be made.
    made = np.flatnonzero(np.r_[True, wrong[1:] > wrong[:-1]])
    for block in np.array_split(made, len(made) // _BLOCK + 1):
        failed = block[at_most(wrong[block], accepted[block], alpha) > 1 - confidence]
        if len(failed):
            return math.inf if failed[0] == 0 else float(values[accepted[failed[0] - 1]])
    return -math.inf


def deferral_threshold(scores: Floats, back: NDArray[np.bool_], lost: int, alpha: float, confidence: float) -> float:
    """The lowest threshold below which deferring leaves at most a share alpha of all answers different.

    Args:
        scores: float64 [n_inputs], how sure the candidate is of calibration inputs; larger is surer.
        back: bool [n_inputs], whether the answer changed, and deferring the input gives full precision's answer.
        lost: how many answers changed that deferring does not give back.
        alpha: share of all answers that may differ, above 0 and below 1.
        confidence: of the guarantee, above 0 and below 1.

    Returns:
        Defer what is below it; inf if no threshold passes, even where everything is deferred.
    """
    n = len(scores)
    passing = bisect_left(range(n), True, key=lambda count: bool(at_most(count, n, alpha) > 1 - confidence))
    accepted = passing - 1 - lost  # of the answers that could come back, how many need not
    if accepted < 0:
        return math.inf
    surest = -np.sort(-scores[back])
    return float(scores.min()) if accepted >= len(surest) else float(np.nextafter(surest[accepted], math.inf))
