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
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift import perturbation
from quantdrift.compare.law import spec_of
from quantdrift.errors import TheoryError, UnknownNameError
from quantdrift.evidence import Evidence
from quantdrift.progress import Progress, Silent
from quantdrift.runs import Run, refuse_copies
from quantdrift.spec import Versus
from quantdrift.statistics import Estimate, rate_estimate, undefined

# --- flip probability -----------------------------------------------------------------------------

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
        raise TheoryError(f"the scale must be one number or one per input ({len(table)}); got {widths.shape}")
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


# --- effective scale ------------------------------------------------------------------------------

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
    gaps = np.concatenate([np.empty((0, depth - 1)), *(_padded(relative_gaps(run), depth - 1) for run in group)])
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
        rows.append(_bucket(low, high, inside=inside, flips=flips, predicted=predicted, cut_short=cut_short))
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


# --- contender groups -----------------------------------------------------------------------------

GroupBy = Literal["scheme", "data", "none"]
"""Which runs share a scale: those of one scheme, those on one corpus, all of them."""

ALL = "all runs"
ENOUGH = 30
"""Inputs from which a bucket is a test; the interval of fewer is wider than most predictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderGroup:
    """Runs that share one scale.

    Attributes:
        name: the scheme, the corpus, or "all runs".
        paths: folders of its runs.
        prediction: predicted and measured flip rate per contender count.
        n_list_full: inputs of which every stored rank is a contender, while more items were scored:
            their count is a lower bound, and they may belong in a higher bucket.
        repeated: whether some corpus occurs in several of its runs, so that the same inputs count
            more than once and the intervals are too narrow.
    """

    name: str
    paths: tuple[str, ...]
    prediction: ContenderPrediction
    n_list_full: int
    repeated: bool


def contender_groups(
    runs: Sequence[Run], *, group_by: str = "scheme", progress: Progress | None = None
) -> list[ContenderGroup]:
    """Fit one scale per group, and predict flip rates per contender count.

    Args:
        runs: as found on disk.
        group_by: one of GroupBy.
        progress: where progress is shown; nowhere if not given.

    Returns:
        Groups in order of their first run.

    Raises:
        UnknownNameError: `group_by` is none of GroupBy.
        RunError: a run lies there twice, or one cannot be read.
        TheoryError: no input of a group has an item.

    Source: paper, appendix A ("The predicted curve").
    """
    if group_by not in get_args(GroupBy):
        known = get_args(GroupBy)
        raise UnknownNameError("grouping", group_by, known, hint=f"(--group-by {', '.join(known)})")
    members: dict[str, list[Run]] = {}
    for run in runs:
        names = {"scheme": _scheme(run), "data": str(run.record["data"]["name"]), "none": ALL}
        members.setdefault(names[group_by], []).append(run)
    refuse_copies(runs)
    groups = []
    with (progress or Silent()).stage("one scale per group", len(members)) as tell:
        for name, group in members.items():
            groups.append(_group(name, group))
            tell(1)
    return groups


def _scheme(run: Run) -> str:
    spec = spec_of(run)
    return f"vs {spec.candidate}" if isinstance(spec, Versus) else str(spec.scheme)


def _group(name: str, runs: Sequence[Run]) -> ContenderGroup:
    evidence = [run.exact_evidence("the number of contenders") for run in runs]
    corpora = [(run.record["data"]["name"], run.record["data"].get("fingerprint")) for run in runs]
    return ContenderGroup(
        name=name,
        paths=tuple(str(run.path) for run in runs),
        prediction=predicted_by_contender_count(evidence),
        n_list_full=sum(int(perturbation.contenders_cut_short(one).sum()) for one in evidence),
        repeated=len(set(corpora)) < len(corpora),
    )


def buckets_with_inputs(group: ContenderGroup) -> list[ContenderBucket]:
    """The buckets that hold an input, in order."""
    return [bucket for bucket in group.prediction.buckets if bucket.measured.value is not None]


def lies_within(bucket: ContenderBucket) -> bool | None:
    """Whether the prediction lies in the 95 % interval of the measured rate; None without either.

    For no contenders this is no test: neither the model nor anything else can flip these.
    """
    low, high = bucket.measured.low, bucket.measured.high
    if bucket.predicted is None or low is None or high is None:
        return None
    return low <= bucket.predicted <= high


def contender_findings(groups: Sequence[ContenderGroup]) -> list[str]:
    """What predicted and measured rates say of the model, in plain sentences.

    Counted are buckets with at least 30 inputs: any prediction lies in the interval of a few.
    Those without contenders are not: nothing can flip there, in the model neither.
    """
    tested = [
        (bucket, group)
        for group in groups
        for bucket in buckets_with_inputs(group)
        if bucket.low > 0 and bucket.predicted is not None and bucket.measured.n >= ENOUGH
    ]
    lines = []
    if tested:
        inside = sum(bool(lies_within(bucket)) for bucket, _ in tested)
        over = sum(_is_over(bucket) for bucket, _ in tested)
        lines.append(
            f"Where {ENOUGH} inputs or more have contenders, {inside} of {len(tested)} predictions "
            "lie in the 95 % interval of the measured rate. " + _verdict(inside, over, len(tested))
        )
        fitted = sum(_holds_most_flips(bucket, group) for bucket, group in tested)
        if fitted:
            lines.append(
                f"{fitted} of these rows hold more than half of the flips that their group's scale "
                "was fitted on, so they are close by construction."
            )
    else:
        lines.append(
            f"No prediction for {ENOUGH} inputs or more with contenders, so the model was not put to the test."
        )
    for group in groups:
        fit = group.prediction.fit
        if fit.scale is None:
            lines.append(f"{group.name}: no scale, because {fit.reason}.")
        elif fit.scale > 1:
            lines.append(
                f"{group.name}: the scale is above 1, farther than any score moved. The model does NOT fit this group."
            )
    cut = sum(bucket.n_cut_short for group in groups for bucket in group.prediction.buckets)
    if cut:
        lines.append(
            f"For {cut:,} inputs the stored list ends among items that could still overtake; "
            "their prediction is too low. Run again with a larger --k."
        )
    full = sum(group.n_list_full for group in groups)
    if full:
        lines.append(
            f"{full:,} inputs have more contenders than stored ranks, and stand in the bucket of "
            "the last rank stored. Run again with a larger --k to see how many."
        )
    if any(group.repeated for group in groups):
        lines.append(
            "Some groups hold several runs on one corpus: the same inputs count in each, so the "
            "intervals are narrower than they should be."
        )
    return lines


def _is_over(bucket: ContenderBucket) -> bool:
    high = bucket.measured.high
    return bucket.predicted is not None and high is not None and bucket.predicted > high


def _holds_most_flips(bucket: ContenderBucket, group: ContenderGroup) -> bool:
    flips = float(bucket.measured.value or 0) * bucket.measured.n
    return 2 * flips > group.prediction.fit.observed * group.prediction.fit.n


def _verdict(inside: int, over: int, n: int) -> str:
    if inside == n:
        return "The model is in line with everything measured."
    missed = n - inside
    text = f"Of the other {missed}, {over} are too high and {missed - over} too low."
    return text if 2 * inside >= n else text + " The model does NOT describe these runs."
