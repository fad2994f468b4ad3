"""One effective perturbation scale per group of inputs, and what it predicts per contender count.

Real perturbations are neither uniform nor independent, and epsilon is a maximum over all items. So
one number per group is fitted, the half-width s at which the predicted flip rate of the group is
the measured one. What the model then says of each contender count was not fitted: that is the test.

Source: paper, appendix A ("The predicted curve") and its table of predicted and measured rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift import perturbation
from quantdrift.errors import TheoryError
from quantdrift.evidence import Evidence
from quantdrift.statistics import Estimate, rate_estimate, undefined
from quantdrift.theory.flip_probability import flip_probability, gap_table, relative_gaps

__all__ = [
    "BUCKETS",
    "ContenderBucket",
    "ContenderPrediction",
    "EffectiveScale",
    "fit_effective_scale",
    "predicted_by_contender_count",
]

BUCKETS: tuple[tuple[int, int | None], ...] = (
    (0, 0),
    (1, 1),
    (2, 2),
    (3, 3),
    (4, 4),
    (5, 10),
    (11, 50),
    (51, 120),
    (121, None),
)
"""Contender counts that are reported together, first and last of each; None: no upper end."""

_DOUBLINGS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveScale:
    """The scale at which the predicted flip rate equals the observed one.

    Attributes:
        scale: half-width s in the unit of the gaps, above 0; None if no one scale does it.
        observed: the flip rate asked for.
        predicted: mean predicted flip probability at `scale`; None without one.
        floor: predicted rate as s goes to 0: exact ties alone.
        ceiling: predicted rate as s goes to infinity: every stored rank tied.
        n: number of inputs.
        reason: why there is no scale.
    """

    scale: float | None
    observed: float
    predicted: float | None
    floor: float
    ceiling: float
    n: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderBucket:
    """The inputs whose number of contenders lies in one range.

    Attributes:
        low: least number of contenders.
        high: greatest, or None for no upper end. Counts stop at the stored depth minus 1.
        predicted: mean predicted flip probability, in [0, 1]; None without inputs or scale.
        measured: their flip rate, with its Wilson interval.
        n_cut_short: inputs whose stored list ends while items are still within 2 s of the first;
            for these the prediction is too low.
    """

    low: int
    high: int | None
    predicted: float | None
    measured: Estimate
    n_cut_short: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderPrediction:
    """Predicted against measured flip rate of one group, by contender count.

    Attributes:
        fit: the one fitted number, as a fraction of each input's epsilon.
        buckets: one per range asked for, in that order.
    """

    fit: EffectiveScale
    buckets: tuple[ContenderBucket, ...]


def fit_effective_scale(gaps: ArrayLike, observed_rate: float) -> EffectiveScale:
    """The one scale s at which the mean of `flip_probability(gaps, s)` is the observed flip rate.

    The mean grows with s, strictly once any gap is below 2 s, so the root is bracketed by doubling
    from below and then found by Brent's method to 12 digits of s.

    Args:
        gaps: float [n_inputs, k], as for `flip_probability`. In score units, s is in score units;
            divided by each input's epsilon (`relative_gaps`), s is a fraction of epsilon.
        observed_rate: share of these inputs that flipped, in [0, 1].

    Returns:
        The scale, or None and the reason: the rate is at or below what exact ties alone predict
        (then a whole range of scales fits, or none), or at or above what any scale can give.

    Raises:
        TheoryError: no inputs, a rate outside [0, 1], or gaps that cannot be used.

    Source: paper, appendix A, "The predicted curve".

    >>> fit_effective_scale([[1.0]], 0.125).scale  # (1 - 1 / (2 s))^2 / 2 = 1 / 8
    1.0
    """
    from scipy.optimize import brentq  # noqa: PLC0415 -- scipy takes long to import

    table = gap_table(gaps)
    if not 0 <= observed_rate <= 1:
        raise TheoryError(f"the observed flip rate must be from 0 to 1; got {observed_rate}")
    if not len(table):
        raise TheoryError("a scale needs at least one input; got none")

    @cache
    def excess(scale: float) -> float:
        return float(flip_probability(table, scale).mean()) - observed_rate

    tied, finite = (table == 0).sum(axis=1), np.isfinite(table).sum(axis=1)
    floor, ceiling = float((tied / (tied + 1)).mean()), float((finite / (finite + 1)).mean())
    positive = table[np.isfinite(table) & (table > 0)]

    def found(scale: float | None, reason: str | None = None) -> EffectiveScale:
        return EffectiveScale(
            scale=scale,
            observed=observed_rate,
            predicted=None if scale is None else excess(scale) + observed_rate,
            floor=floor,
            ceiling=ceiling,
            n=len(table),
            reason=reason,
        )

    if observed_rate < floor:
        return found(None, f"exact ties alone predict {floor:.4g}, above the rate observed")
    if observed_rate == floor:
        until = f"up to {positive.min() / 2:.4g} " if len(positive) else ""
        return found(None, f"every scale {until}predicts the rate observed")
    if observed_rate >= ceiling:
        return found(None, f"no scale predicts more than {ceiling:.4g} with the ranks stored")
    # from below: the more ranks within reach of a scale, the longer it takes to try it
    low = float(positive.min()) / 2  # at which only exact ties flip
    nearest = np.where(np.isfinite(table) & (table > 0), table, np.inf).min(axis=1)
    high = max(2 * low, float(np.median(nearest[np.isfinite(nearest)])) / 4)
    for _ in range(_DOUBLINGS):
        if excess(high) >= 0:
            break
        low, high = high, 2 * high
    else:
        return found(None, f"no scale up to {high:.4g} predicts the rate observed")
    return found(float(brentq(excess, low, high, xtol=1e-12 * high, rtol=1e-12)))


def predicted_by_contender_count(
    group: Sequence[Evidence], *, buckets: Sequence[tuple[int, int | None]] = BUCKETS
) -> ContenderPrediction:
    """Predicted and measured flip rate by number of contenders, with one scale for the group.

    The scale is a fraction of each input's own epsilon, fitted on the flip rate of all inputs of
    the group that have an item. An input belongs to a bucket by its contender count at the full
    epsilon (`perturbation.contender_count`), not at the fitted scale.

    Args:
        group: evidence of the runs that share a scale, e.g. one model on several tasks.
        buckets: (first, last) contender counts to report together; None: no upper end.

    Returns:
        The fit, and one bucket per range; a bucket without inputs has nulls and the reason.

    Raises:
        TheoryError: no input of the group has an item.

    Source: paper, appendix A, the table of predicted and measured rates by contender count.
    """
    depth = max((evidence.depth for evidence in group), default=1)
    gaps = np.concatenate(
        [np.empty((0, depth - 1)), *(_padded(relative_gaps(run), depth - 1) for run in group)]
    )
    scored = np.concatenate([np.empty(0, bool), *(run.n_items > 0 for run in group)])
    if not scored.any():
        raise TheoryError("contender counts need at least one input with an item; got none")
    gaps = gaps[scored]
    flips = np.concatenate([perturbation.flips(run) for run in group])[scored].astype(np.float64)
    counts = np.concatenate([perturbation.contender_count(run) for run in group])[scored]
    cut = np.concatenate([run.n_items > run.depth for run in group])[scored]

    fit = fit_effective_scale(gaps, float(flips.mean()))
    predicted, cut_short = None, np.zeros(len(gaps), dtype=bool)
    if fit.scale is not None:
        predicted = flip_probability(gaps, fit.scale)
        cut_short = cut & ~(gaps >= 2 * fit.scale).any(axis=1)
    rows = []
    for low, high in buckets:
        inside = (counts >= low) & (counts <= (np.inf if high is None else high))
        rows.append(
            _bucket(low, high, inside=inside, flips=flips, predicted=predicted, cut_short=cut_short)
        )
    return ContenderPrediction(fit=fit, buckets=tuple(rows))


def _bucket(
    low: int,
    high: int | None,
    *,
    inside: NDArray[np.bool_],
    flips: NDArray[np.float64],
    predicted: NDArray[np.float64] | None,
    cut_short: NDArray[np.bool_],
) -> ContenderBucket:
    some = bool(inside.any())
    return ContenderBucket(
        low=low,
        high=high,
        predicted=float(predicted[inside].mean()) if some and predicted is not None else None,
        measured=rate_estimate(flips[inside]) if some else undefined("no input has so many"),
        n_cut_short=int((inside & cut_short).sum()),
    )


def _padded(gaps: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    missing = np.full((len(gaps), width - gaps.shape[1]), np.nan)
    return np.concatenate([gaps, missing], axis=1)
