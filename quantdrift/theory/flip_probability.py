"""How likely a flip is if every score moves independently and uniformly: a model, not a guarantee.

With delta_i independent and uniform on [-s, s] and a_j = gap_j / (2 s), the top-1 is kept with
probability

    integral over u from 0 to 1 of  product over j >= 2 of min(u + a_j, 1)

where u is the place of the winner's own delta in its interval, and only contenders (a_j < 1)
matter. The integrand is a polynomial between the breakpoints 1 - a_j, so Gauss-Legendre quadrature
between them has no truncation error: what is left is rounding, below 1e-12 in absolute value for
200 contenders (the tests compare it with the integral in rational arithmetic).

Source: paper, appendix B, Proposition 2 (flip probability) and its proof.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift import perturbation
from quantdrift.errors import TheoryError
from quantdrift.evidence import Evidence

__all__ = ["flip_probability", "flip_probability_limits", "gap_table", "relative_gaps"]

Floats = NDArray[np.float64]

_BLOCK = 2048  # inputs at a time; bounds the memory
_NEGLIGIBLE = 2.0**-60
_SHORT_NODES = 10
_SHORT = 2.0


def flip_probability(gaps: ArrayLike, scale: ArrayLike) -> Floats:
    """Probability that the top-1 changes, under independent uniform changes of every score.

    1 - integral over u in [0, 1] of prod_j min(u + gap_j / (2 scale), 1).

    Args:
        gaps: float [n_inputs, k], first score minus that of each *other* rank, at least 0, in any
            order and any unit; the winner's own gap of 0 is not among them. NaN: no such rank;
            +inf: cannot overtake. A single row may come as float [k].
        scale: half-width s of the interval, in the same unit, at least 0; one number or float
            [n_inputs]. At 0 nothing moves and nothing flips, ties included.

    Returns:
        float64 [n_inputs], from 0 (no contender) to w / (w + 1) with w contenders, all tied.
        Never decreases as the scale grows. Ranks that were not stored are not counted, so a list
        that was cut inside the contender set gives a lower bound.

    Raises:
        TheoryError: a gap is negative, the scale is negative or not finite, or shapes do not fit.

    Source: paper, appendix B, Proposition 2.

    >>> flip_probability([[0.0], [1.0], [2.0]], 1.0).tolist()  # (1 - a)^2 / 2 for one contender
    [0.5, 0.125, 0.0]
    """
    table = gap_table(gaps)
    widths = np.asarray(scale, dtype=np.float64)
    if widths.ndim > 1 or (widths.ndim == 1 and len(widths) != len(table)):
        raise TheoryError(
            f"the scale must be one number or one per input ({len(table)}); got {widths.shape}"
        )
    if not (np.isfinite(widths) & (widths >= 0)).all():
        raise TheoryError("the scale must be finite and 0 or more")
    widths = np.broadcast_to(widths, len(table))
    result = np.zeros(len(table))
    for start in range(0, len(table), _BLOCK):
        part = slice(start, start + _BLOCK)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            ratios = table[part] / (2 * widths[part, None])
        result[part] = _flip_integral(ratios)  # 0 / 0 is NaN, no contender: nothing moves
    return result


def gap_table(gaps: ArrayLike) -> Floats:
    """Gaps as float64 [n_inputs, k], as `flip_probability` takes them.

    Raises:
        TheoryError: a gap is negative, or there are more than two axes.
    """
    table = np.atleast_2d(np.asarray(gaps, dtype=np.float64))
    if table.ndim != 2:  # noqa: PLR2004 -- inputs by ranks
        raise TheoryError(f"gaps must have the shape [n_inputs, k]; got {table.shape}")
    if (table < 0).any():
        raise TheoryError("gaps must be 0 or more (first score minus another); got a negative one")
    return table


def flip_probability_limits(n_contenders: ArrayLike) -> tuple[Floats, Floats]:
    """The two ends between which the flip probability lies, given only how many contenders.

    All of them exactly at the boundary (gap = 2 s): 0. All of them tied with the winner: w /
    (w + 1), one minus the chance that one of w + 1 interchangeable items comes first.

    Args:
        n_contenders: integers w of any shape, at least 0.

    Returns:
        (lowest, highest), float64 of that shape, in [0, 1). The highest over-predicts wherever
        contenders lie behind the winner.

    Raises:
        TheoryError: a negative count.

    Source: paper, appendix B, the two cases after Proposition 2.

    >>> [ends.tolist() for ends in flip_probability_limits([0, 1, 3])]
    [[0.0, 0.0, 0.0], [0.0, 0.5, 0.75]]
    """
    count = np.asarray(n_contenders, dtype=np.float64)
    if not (count >= 0).all():
        raise TheoryError("the number of contenders must be 0 or more")
    return np.zeros_like(count), count / (count + 1)


def relative_gaps(evidence: Evidence) -> Floats:
    """Gaps of the stored ranks 2, 3, ... in units of each input's own epsilon.

    gap_k / epsilon. Below 2 the item at rank k is a contender. Used as gaps, they make the scale a
    fraction of epsilon, so that inputs and runs with other score units can be pooled.

    Returns:
        float64 [n_inputs, depth - 1], at least 0; NaN where there is no such item; +inf where
        epsilon is 0 (an exact copy is stable, ties included).
    """
    scores = evidence.reference_top.reference_scores.astype(np.float64)
    gaps = scores[:, :1] - scores[:, 1:]
    epsilon = perturbation.epsilon(evidence)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = gaps / epsilon
    return np.where(epsilon == 0, np.where(np.isnan(gaps), np.nan, np.inf), relative)


def _flip_integral(ratios: Floats) -> Floats:
    """The integral of 1 - prod_j min(u + a_j, 1), for each row of a_j.

    From u = 1 down, one contender after the other becomes active: between the breakpoints
    1 - a_m and 1 - a_(m + 1), exactly the m nearest contenders have a factor below 1.
    """
    nearest = np.sort(np.where(np.isnan(ratios), 1.0, np.minimum(ratios, 1.0)), axis=1)
    n_inputs, depth = nearest.shape
    by_rank = np.ascontiguousarray(nearest.T)
    breakpoints = 1 - np.vstack([by_rank, np.ones((1, n_inputs))])
    total = np.zeros(n_inputs)
    live = np.arange(n_inputs)
    for m in range(1, depth + 1):
        live = live[breakpoints[m - 1, live] > 0]
        if not len(live):
            break
        high, low = breakpoints[m - 1, live], breakpoints[m, live]
        active = by_rank[:m, live]
        kept = np.prod(high + active, axis=0)
        gone = kept < _NEGLIGIBLE  # from here down to u = 0 the integrand is 1 to all digits
        total[live[gone]] += high[gone]
        # The product grows like exp(steepness) over half the segment. Up to 2, ten nodes leave a
        # relative error below 1e-17 (bound on the Bernstein ellipse with rho = 20); beyond that,
        # take as many nodes as make a polynomial of degree m exact.
        steepness = (high - low) / 2 * (1 / (high + active)).sum(axis=0)
        exact_nodes = m // 2 + 1
        short = (steepness <= _SHORT) & (exact_nodes > _SHORT_NODES)
        for chosen, nodes in ((short, _SHORT_NODES), (~short, exact_nodes)):
            rows = np.flatnonzero(chosen & ~gone & (high > low))
            if len(rows):
                total[live[rows]] += _segment(active[:, rows], low[rows], high[rows], nodes)
        live = live[~gone]
    return np.clip(total, 0.0, 1.0)


def _segment(active: Floats, low: Floats, high: Floats, nodes: int) -> Floats:
    """Gauss-Legendre integral of 1 - prod_j (u + a_j) over [low, high], float64 [n_rows]."""
    places, weights = _rule(nodes)
    half = (high - low) / 2
    u = (low + half) + np.multiply.outer(places, half)
    product = np.ones_like(u)
    for offset in active:
        product *= u + offset
    return np.asarray(half * (weights @ (1 - product)))


@cache
def _rule(nodes: int) -> tuple[Floats, Floats]:
    places, weights = np.polynomial.legendre.leggauss(nodes)
    return places, weights
