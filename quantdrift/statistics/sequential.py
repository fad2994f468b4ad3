"""Tests of a rate against a limit that hold at any number of inputs, whoever decides when to stop.

The evidence that a rate is above a limit m, after s ones among n inputs, is the likelihood ratio of all rates above it
against m, averaged over these:

    E_n(m) = 1 / (1 - m) * integral from m to 1 of (t / m)^s ((1 - t) / (1 - m))^(n - s) dt

While the rate is m or less, E has a mean of 1 or less whatever came before, so that it ever reaches 1 / alpha with a
chance of at most alpha (Ville's inequality). That a rate is below a limit is the same of zeros in place of ones.
docs/adr/0043-the-sequential-gate.md says what a gate makes of it.

Source: H. Robbins, Statistical methods related to the law of the iterated logarithm, Annals of Mathematical Statistics
41 (1970), 1397-1409; S. R. Howard, A. Ramdas, J. McAuliffe, J. Sekhon, Time-uniform, nonparametric, nonasymptotic
confidence sequences, Annals of Statistics 49 (2021), 1055-1080.
"""

import math

import numpy as np
from numpy.typing import NDArray

from quantdrift.statistics.estimates import Counts, at_least

Outcomes = NDArray[np.float64]

LOOKING = 0.8
"""The part of the error that is spent on looks before the end; the rest is that of the exact test at the end."""
_STEP = 1.02
"""Factor by which the numbers of inputs grow at which evidence is computed; at any others it would be as valid."""
_HALVINGS = 40


def log_evidence(ones: Counts, n: Counts, limit: float) -> NDArray[np.float64]:
    """The logarithm of the evidence that a rate is above a limit, above 0 and below 1; 3 is that of a level of 5 %."""
    from scipy.special import betaincc, betaln  # noqa: PLC0415 -- scipy takes long to import

    zeros = np.subtract(n, ones)
    with np.errstate(divide="ignore"):  # of a rate far below the limit there is none
        above = np.log(betaincc(np.add(ones, 1.0), zeros + 1.0, limit))
    expected = np.multiply(ones, math.log(limit)) + (zeros + 1) * math.log1p(-limit)
    return np.asarray(betaln(np.add(ones, 1.0), zeros + 1.0) + above - expected)


def p_above(outcomes: Outcomes, limit: float, *, ended: bool) -> float:
    """The p-value of "the rate is the limit or less", valid at any number of inputs, and whenever one stops.

    It is the least that was reached. At the end the exact binomial test of all inputs joins in; the error is divided
    between both, `LOOKING` to what came before.

    Args:
        outcomes: float64 of 0.0 and 1.0, at least one, in the order in which inputs were answered.
        limit: above 0 and below 1.
        ended: whether these are all inputs that there are, a number that no outcome decided.
    """
    total = len(outcomes)
    looks = np.unique(np.append(_STEP ** np.arange(math.log(total, _STEP) + 1), total).astype(np.int64).clip(max=total))
    evidence = float(log_evidence(np.cumsum(outcomes)[looks - 1], looks, limit).max())
    last = float(at_least(int(outcomes.sum()), total, limit)) / (1 - LOOKING) if ended else 1.0
    return min(1.0, math.exp(-max(0.0, evidence)) / LOOKING, last)


def p_below(outcomes: Outcomes, limit: float, *, ended: bool) -> float:
    """The p-value of "the rate is the limit or more"; see `p_above`."""
    return p_above(1 - outcomes, 1 - limit, ended=ended)


def rate_bounds(outcomes: Outcomes, *, alpha: float, ended: bool) -> tuple[float, float]:
    """The lower and the upper bound of a rate, each with a confidence of 1 - alpha, whenever one stops.

    A limit lies outside where `p_above` or `p_below` is alpha or less, whose arguments these are.
    """
    return _lower(outcomes, alpha, ended), 1 - _lower(1 - outcomes, alpha, ended)


def _lower(outcomes: Outcomes, alpha: float, ended: bool) -> float:
    """The largest limit that the rate is shown to be above; the evidence falls as the limit rises."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if p_above(outcomes, middle, ended=ended) <= alpha else (low, middle)
    return low
