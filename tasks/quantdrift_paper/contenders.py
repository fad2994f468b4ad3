"""One effective perturbation scale per group of inputs, and what it predicts per contender count.

Real perturbations are neither uniform nor independent, and epsilon is a maximum over all items. So one number per
group is fitted, the half-width s at which the predicted flip rate of the group is the measured one. What the model
then says of each contender count was not fitted: that is the test.

Source: paper, appendix A ("The predicted curve") and its table of predicted and measured rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift.base.errors import TheoryError
from quantdrift.base.text import percent, with_interval
from quantdrift.cli.options import RUNS, argument, prints
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.runs.folder import Run, find_runs, refuse_copies
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.spec.grammar import Versus, parse_pair
from quantdrift.statistics.estimates import Estimate, as_json, rate_estimate, undefined

Floats = NDArray[np.float64]

# --- flip probability -----------------------------------------------------------------------------

_BLOCK = 2048  # inputs at a time; bounds the memory
_NEGLIGIBLE = 2.0**-60
_SHORT_NODES, _SHORT = 10, 2.0


def flip_probability(gaps: ArrayLike, scale: ArrayLike) -> Floats:
    """Probability that the top-1 changes, under independent uniform changes of every score.

    1 - integral over u in [0, 1] of prod_j min(u + gap_j / (2 scale), 1).

    Source: paper, appendix B, Proposition 2.

    >>> flip_probability([[0.0], [1.0], [2.0]], 1.0).tolist()  # (1 - a)^2 / 2 for one contender
    [0.5, 0.125, 0.0]
    """
    table, widths = _gap_table(gaps), np.asarray(scale, dtype=np.float64)
    if not (np.isfinite(widths) & (widths >= 0)).all() or widths.shape not in {(), (len(table),)}:
        raise TheoryError("the scale must be finite and 0 or more, one number or one per input")
    widths, result = np.broadcast_to(widths, len(table)), np.zeros(len(table))
    for start in range(0, len(table), _BLOCK):
        part = slice(start, start + _BLOCK)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            ratios = table[part] / (2 * widths[part, None])
        result[part] = _flip_integral(ratios)  # 0 / 0 is NaN, no contender: nothing moves
    return result


def _gap_table(gaps: ArrayLike) -> Floats:
    table = np.atleast_2d(np.asarray(gaps, dtype=np.float64))
    if table.ndim != 2 or (table < 0).any():  # noqa: PLR2004 -- inputs by ranks
        raise TheoryError(f"gaps must be [n_inputs, k] and 0 or more (first score minus another); got {table.shape}")
    return table


def _flip_integral(ratios: Floats) -> Floats:
    """The integral of 1 - prod_j min(u + a_j, 1), for each row of a_j.

    From u = 1 down, one contender after the other becomes active: between the breakpoints 1 - a_m and 1 - a_(m + 1),
    exactly the m nearest contenders have a factor below 1.
    """
    nearest = np.sort(np.where(np.isnan(ratios), 1.0, np.minimum(ratios, 1.0)), axis=1)
    n_inputs, depth = nearest.shape
    by_rank = np.ascontiguousarray(nearest.T)
    breakpoints = 1 - np.vstack([by_rank, np.ones((1, n_inputs))])
    total, live = np.zeros(n_inputs), np.arange(n_inputs)
    for m in range(1, depth + 1):
        live = live[breakpoints[m - 1, live] > 0]
        if not len(live):
            break
        high, low, active = breakpoints[m - 1, live], breakpoints[m, live], by_rank[:m, live]
        # from here down to u = 0 the integrand is 1 to all digits
        gone = np.prod(high + active, axis=0) < _NEGLIGIBLE
        total[live[gone]] += high[gone]
        # The product grows like exp(steepness) over half the segment. Up to 2, ten nodes leave a
        # relative error below 1e-17 (bound on the Bernstein ellipse with rho = 20); beyond that,
        # take as many nodes as make a polynomial of degree m exact.
        steepness = (high - low) / 2 * (1 / (high + active)).sum(axis=0)
        short = (steepness <= _SHORT) & (m // 2 + 1 > _SHORT_NODES)
        for chosen, nodes in ((short, _SHORT_NODES), (~short, m // 2 + 1)):
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


def relative_gaps(evidence: Evidence) -> Floats:
    """Gaps of the stored ranks 2, 3, ... in units of each input's own epsilon, [n_inputs, depth - 1].

    Below 2 the item is a contender. As gaps they make the scale a fraction of epsilon, so that runs with other score
    units can be pooled. NaN where there is no such item; +inf where epsilon is 0.
    """
    scores = evidence.reference_top.reference_scores.astype(np.float64)
    gaps, epsilon = scores[:, :1] - scores[:, 1:], perturbation.epsilon(evidence)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(epsilon == 0, np.where(np.isnan(gaps), np.nan, np.inf), gaps / epsilon)


# --- effective scale ------------------------------------------------------------------------------

BUCKETS: tuple[tuple[int, int | None], ...] = (
    (0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 10), (11, 50), (51, 120), (121, None),
)  # fmt: skip
"""Contender counts that are reported together, first and last of each; None: no upper end."""

_DOUBLINGS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveScale:
    """The scale at which the predicted flip rate equals the observed one.

    Attributes:
        scale: half-width s in the unit of the gaps, above 0; None if no single scale does it.
        observed: the flip rate asked for.
        n: number of inputs.
        reason: why there is no scale.
    """

    scale: float | None = None
    observed: float
    n: int
    reason: str | None = None


def fit_effective_scale(gaps: ArrayLike, observed_rate: float) -> EffectiveScale:
    """The one scale s at which the mean of `flip_probability(gaps, s)` is the observed flip rate.

    The mean grows with s, so the root is bracketed by doubling from below and then found by Brent's method to 12
    digits of s.

    Source: paper, appendix A, "The predicted curve".

    >>> fit_effective_scale([[1.0]], 0.125).scale  # (1 - 1 / (2 s))^2 / 2 = 1 / 8
    1.0
    """
    from scipy.optimize import brentq  # noqa: PLC0415 -- scipy takes long to import

    table = _gap_table(gaps)
    if not (len(table) and 0 <= observed_rate <= 1):
        raise TheoryError(f"a scale needs inputs and a flip rate from 0 to 1; got {len(table)} and {observed_rate}")

    @cache
    def excess(scale: float) -> float:
        return float(flip_probability(table, scale).mean()) - observed_rate

    # as s goes to 0 exact ties alone flip, as it goes to infinity every stored rank is tied
    tied, finite = (table == 0).sum(axis=1), np.isfinite(table).sum(axis=1)
    floor, ceiling = float((tied / (tied + 1)).mean()), float((finite / (finite + 1)).mean())
    fit = EffectiveScale(observed=observed_rate, n=len(table))
    if floor < observed_rate < ceiling:
        nearest = np.where(np.isfinite(table) & (table > 0), table, np.inf).min(axis=1, initial=np.inf)
        least = float(nearest.min()) / 2  # at which only exact ties flip
        # from below: the more ranks within reach of a scale, the longer it takes to try it
        low, high = least, max(2 * least, float(np.median(nearest[np.isfinite(nearest)])) / 4)
        for _ in range(_DOUBLINGS):
            if excess(high) >= 0:
                return replace(fit, scale=float(brentq(excess, low, high, xtol=1e-12 * high, rtol=1e-12)))
            low, high = high, 2 * high
    return replace(
        fit,
        reason=f"no one scale predicts the rate observed, {observed_rate:.4g}: exact ties alone predict {floor:.4g}, "
        f"and no scale predicts more than {ceiling:.4g} with the ranks stored",
    )


# --- predicted and measured -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderBucket:
    """The inputs whose number of contenders lies in one range.

    Attributes:
        low: least number of contenders.
        high: greatest, or None for no upper end. Counts stop at the stored depth minus 1.
        predicted: mean predicted flip probability, in [0, 1]; None without inputs or scale.
        measured: their flip rate, with its Wilson interval.
        n_cut_short: inputs whose stored list ends while items are still within 2 s of the first; for these the
            prediction is too low.
    """

    low: int
    high: int | None
    predicted: float | None
    measured: Estimate
    n_cut_short: int

    @property
    def within(self) -> bool | None:
        """Say whether the prediction lies in the 95 % interval of the measured rate; None without either."""
        low, high = self.measured.low, self.measured.high
        return None if self.predicted is None or low is None or high is None else low <= self.predicted <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderGroup:
    """Predicted against measured flip rate of runs that share one scale.

    Attributes:
        fit: the one fitted number, as a fraction of each input's epsilon.
        buckets: one per range of contender counts, in that order.
    """

    fit: EffectiveScale
    buckets: tuple[ContenderBucket, ...]

    @property
    def filled(self) -> list[ContenderBucket]:
        """The buckets that hold an input."""
        return [bucket for bucket in self.buckets if bucket.measured.value is not None]


def predicted_by_contender_count(
    group: Sequence[Evidence], *, buckets: Sequence[tuple[int, int | None]] = BUCKETS
) -> ContenderGroup:
    """Predicted and measured flip rate by number of contenders, with one scale for the group.

    The scale is a fraction of each input's own epsilon, fitted on the flip rate of all inputs that have an item. An
    input belongs to a bucket by its contender count at the full epsilon, not at the fitted scale.

    Source: paper, appendix A, the table of predicted and measured rates by contender count.
    """
    runs = [run.part(np.flatnonzero(run.n_items > 0)) for run in group]
    if not sum(run.n_inputs for run in runs):
        raise TheoryError("contender counts need at least one input with an item; got none")
    width = max(run.depth for run in runs) - 1
    tables = [relative_gaps(run) for run in runs]
    gaps = np.concatenate([np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=np.nan) for t in tables])
    flips = np.concatenate([perturbation.flips(run) for run in runs]).astype(np.float64)
    counts = np.concatenate([perturbation.contender_count(run) for run in runs])
    fit = fit_effective_scale(gaps, float(flips.mean()))
    cut_short: NDArray[np.bool_] = np.zeros(len(gaps), dtype=bool)
    predicted = None
    if fit.scale is not None:
        predicted = flip_probability(gaps, fit.scale)
        longer = np.concatenate([run.n_items > run.depth for run in runs])
        cut_short = longer & ~(gaps >= 2 * fit.scale).any(axis=1)
    rows = []
    for low, high in buckets:
        inside = (counts >= low) & (counts <= (np.inf if high is None else high))
        some = bool(inside.any())
        rows.append(
            ContenderBucket(
                low=low,
                high=high,
                predicted=float(predicted[inside].mean()) if some and predicted is not None else None,
                measured=rate_estimate(flips[inside]) if some else undefined("no input has so many"),
                n_cut_short=int((inside & cut_short).sum()),
            )
        )
    return ContenderGroup(fit=fit, buckets=tuple(rows))


# --- groups of runs, and the command --------------------------------------------------------------


def contender_groups(runs: Sequence[Run]) -> dict[str, ContenderGroup]:
    """Fit one scale per scheme, and predict flip rates per contender count."""
    members: dict[str, list[Evidence]] = {}
    refuse_copies(runs)
    for run in runs:
        pair = parse_pair(run.record["spec"])
        scheme = f"vs {pair.candidate}" if isinstance(pair, Versus) else str(pair.scheme)
        members.setdefault(scheme, []).append(run.exact_evidence("the number of contenders"))
    return {name: predicted_by_contender_count(group) for name, group in members.items()}


@prints("json", "markdown")
def command(*, runs: list[Path] = argument(RUNS)) -> Output:
    """Compare the theory's flip rate with the measured one, by number of contenders.

    Contenders are items so close behind the first that quantization could put them first. Only one number, a scale,
    is fitted for all runs of a scheme.
    """
    groups = contender_groups(find_runs(runs))
    by_count = Grid(
        title="Flip rate by number of contenders, with one scale fitted per scheme",
        head=["scheme", "scale / epsilon", "contenders", "inputs", "predicted", "measured", "within", "cut short"],
        rows=[[name, *_row(group, bucket)] for name, group in groups.items() for bucket in group.filled],
        ruled=True,
        lines=["cut short: the stored list ends among items that could still overtake, so the prediction is too low"],
    )
    data = []
    for name, group in groups.items():
        fit = group.fit
        about = {"name": name, "n": fit.n, "flip_rate": fit.observed, "scale": fit.scale, "reason": fit.reason}
        buckets = [{**as_json(bucket), "n": bucket.measured.n, "within": bucket.within} for bucket in group.buckets]
        data.append({**about, "buckets": buckets})
    return Output(data={"groups": data}, grids=[by_count], lines=contender_findings(groups))


def contender_findings(groups: Mapping[str, ContenderGroup]) -> list[str]:
    """Say where the model does not describe runs: no scale fits, or one farther than any score moved."""
    reasons = [f"{name}: no scale, because {group.fit.reason}." for name, group in groups.items() if group.fit.reason]
    beyond = [name for name, group in groups.items() if group.fit.scale is not None and group.fit.scale > 1]
    return reasons + [f"{name}: the scale is above 1. The model does NOT fit this group." for name in beyond]


def _row(group: ContenderGroup, bucket: ContenderBucket) -> list[str]:
    several = f"{bucket.low}" if bucket.high == bucket.low else f"{bucket.low} to {bucket.high}"
    return [
        "-" if group.fit.scale is None else f"{group.fit.scale:.3f}",
        f"{bucket.low} or more" if bucket.high is None else several,
        f"{bucket.measured.n:,}",
        percent(bucket.predicted),
        with_interval(bucket.measured),
        {True: "yes", False: "NO", None: "-"}[bucket.within],
        f"{bucket.n_cut_short:,}",
    ]
