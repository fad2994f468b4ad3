"""Verdicts on two systems: worse, no worse by a margin, and the inputs that takes."""

import math
from bisect import bisect_left
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError
from quantdrift.statistics import estimates, paired
from quantdrift.statistics.estimates import FEW, Estimate, undefined

# --- Is the second system no worse than the first, by some margin or more? ------------------------

Better = Literal["lower", "higher"]
"""The better direction."""

Values = NDArray[Any]


def rate_no_worse(a: Values, b: Values, *, margin: float, better: Better) -> float:
    """One-sided p-value of "the second rate is worse by the margin or more".

    Tango's score test. If fewer than 10 inputs differ, or all that differ are worse, the larger of its p-value and that
    of the exact binomial bound. (If all that differ are worse, the score test alone rejects a true hypothesis in up to
    6.8 % of cases at alpha = 5 %.)

    Args:
        a: bool, or 0 and 1, [n_inputs].
        b: likewise, the same inputs.
        margin: smallest difference that matters, in units of the rate (0.02: 2 percentage points).
        better: the better direction.

    Returns:
        From 0 to 1; below alpha, the second is shown to be worse by less than the margin.

    Raises:
        QuantDriftError: values are not 0 and 1, or the margin is not between 0 and 1.
    """
    _check(margin, span=1)
    only_a, only_b, n = paired.discordant(a, b)
    worse, improved = (only_b, only_a) if better == "lower" else (only_a, only_b)
    p_value = NormalDist().cdf(paired.tango_z(worse, improved, n, margin))
    if worse + improved < FEW or not improved:
        return max(p_value, float(estimates.at_most(worse, n, margin)))
    return p_value


def mean_no_worse(a: Values, b: Values, *, margin: float, better: Better, span: float) -> float | None:
    """One-sided p-value of "the second mean is worse by the margin or more".

    A paired t-test on the differences and a few added ones of the worst possible size (`estimates.mean_below`), which
    stand for rare large losses that a sample may miss. Their number, ceil(-ln(alpha) / 2), depends on the level: with
    only one, for many small gains and few large losses, the test rejects a true hypothesis in up to 7 % of cases at
    5 %, and in 2.7 % at the 5 % / 8 of Holm's method. If fewer than 10 inputs differ, an exact binomial bound replaces
    the t-test.

    Args:
        a: float [n_inputs], finite.
        b: likewise, the same inputs.
        margin: smallest difference that matters, in the unit of the values.
        better: the better direction.
        span: greatest possible difference of two values; if it is infinite, there is neither a bound nor a worst
            difference to add.

    Returns:
        From 0 to 1; None if nothing bounds a difference, and too few inputs differ, or all alike.

    Raises:
        QuantDriftError: not one finite value per input and system, or the margin is not between 0 and the span.
    """
    _check(margin, span=span)
    harm = paired.differences(a, b) if better == "lower" else paired.differences(b, a)
    return estimates.mean_below(harm, margin, worst=span)


def _check(margin: float, *, span: float) -> None:
    if not 0 < margin < span:
        raise QuantDriftError(
            f"a margin lies above 0 and below the greatest difference there can be ({span:g}); "
            f"got {margin:g}. For 2 percentage points of a rate give 0.02"
        )


# --- samples, comparisons and their verdict -------------------------------------------------------

Kind = Literal["rate", "mean", "quantile"]

Verdict = Literal["no worse", "worse", "underpowered", "inconclusive", "better", "no difference shown"]
"""With a margin: "no worse" (shown to be worse by less than it), "worse" (not that, and
significantly worse), "underpowered" (neither, with fewer inputs than it takes) or "inconclusive"
(neither, with enough). Without one: "worse", "better" (significantly) or "no difference shown"."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedSample:
    """The values of one metric for two systems on the same inputs.

    Attributes:
        metric: its string.
        kind: kind of value: a rate (values 0 and 1), a mean or a quantile.
        better: the better direction; None if neither.
        a: float64 [n_inputs], values of the first system.
        b: float64 [n_inputs], values of the second system.
        span: greatest possible difference of two values; may be infinite.
        q: the quantile, for that kind.
        reason: why there is nothing to compare, or a remark on the comparison.
    """

    metric: str
    kind: Kind
    better: Better | None
    a: NDArray[np.float64]
    b: NDArray[np.float64]
    span: float = 1.0
    q: float = 0.5
    reason: str | None = None

    @property
    def tested(self) -> bool:
        """Whether there is a test: for rates and means of finite values."""
        finite = bool(np.isfinite(self.a).all() and np.isfinite(self.b).all())
        return self.kind != "quantile" and len(self.a) > 0 and finite


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """The comparison by one metric of two systems; B is compared with A.

    Attributes:
        metric: its string.
        n: inputs with a value from both.
        value_a: the rate, mean or quantile of A.
        value_b: of B.
        difference: B minus A, with its 95 % interval.
        higher_a: number of inputs with a higher value of A (for a rate: only A has the event).
        higher_b: number of inputs with a higher value of B.
        p_value: two-sided, of no difference: McNemar's exact test or a randomization test.
        p_holm: the same, adjusted for the number of metrics that are judged.
        p_worse_holm: one-sided, of "B is no worse", adjusted likewise: the test of a gate.
        p_no_worse: one-sided, of "B is worse by the margin or more".
        p_no_worse_holm: the same, adjusted.
        inputs_needed: inputs to show "no worse" with power 0.8 if there is no difference, at alpha over the number of
            metrics, as Holm's adjustment requires for the first of them.
        verdict: None if there is no test.
        reason: why something is None, or a remark on it.
    """

    metric: str
    n: int
    value_a: float | None
    value_b: float | None
    difference: Estimate
    higher_a: int = 0
    higher_b: int = 0
    p_value: float | None = None
    p_holm: float | None = None
    p_worse_holm: float | None = None
    p_no_worse: float | None = None
    p_no_worse_holm: float | None = None
    inputs_needed: int | None = None
    verdict: Verdict | None = None
    reason: str | None = None


def verdict_of(pair: PairedComparison, *, better: Better | None, margin: float | None, alpha: float) -> Verdict | None:
    """The verdict from adjusted p-values, difference and sample size."""
    change = pair.difference.value
    if better is None or pair.p_holm is None or change is None:
        return None
    worse = pair.p_worse_holm is not None and pair.p_worse_holm < alpha
    significant = pair.p_holm < alpha and (change < 0 if better == "lower" else change > 0)
    if margin is None:
        return "worse" if worse else "better" if significant else "no difference shown"
    if pair.p_no_worse_holm is not None and pair.p_no_worse_holm < alpha:
        return "no worse"
    if worse:
        return "worse"
    if pair.inputs_needed is None:
        return None
    return "underpowered" if pair.n < pair.inputs_needed else "inconclusive"


# --- one sided ------------------------------------------------------------------------------------


def rate_worse(a: Values, b: Values, *, better: Better) -> float:
    """One-sided p-value of "the second rate is no worse than the first": McNemar's test, exact.

    P(X >= w), where w is the number of inputs on which the second system is worse, and X is binomial over all inputs on
    which the two differ, with share 1/2.

    Args:
        a: bool, or 0 and 1, [n_inputs].
        b: likewise, the same inputs.
        better: the better direction.

    Returns:
        Above 0 and up to 1; below alpha, the second is shown to be worse. 1 if no input differs.

    Raises:
        QuantDriftError: not one value of 0 or 1 per input and system.

    Source: Q. McNemar, Note on the sampling error of the difference between correlated proportions or percentages,
    Psychometrika 12 (1947), 153-157.
    """
    only_a, only_b, _ = paired.discordant(a, b)
    worse = only_b if better == "lower" else only_a
    return float(estimates.at_least(worse, only_a + only_b, 0.5)) if only_a + only_b else 1.0


def mean_worse(a: Values, b: Values, *, better: Better, seed: int = 0) -> float:
    """One-sided p-value of "the second mean is no worse than the first": a randomization test.

    If the systems are exchangeable, each difference could as well have the other sign. The p-value is the share of all
    changes of sign with a total harm at least as large as the observed one (up to 13 differing inputs), or (1 + c) / (1
    + 9,999) if c of the drawn ones have one. The draws are those of `randomization_test`, whose p-value is twice the
    smaller one-sided one.

    It keeps its level if a harm of each size is at most as likely as a gain of that size. That does not hold for a mean
    difference of 0 from many small gains and few large losses.

    Args:
        a: float [n_inputs], finite.
        b: likewise, the same inputs.
        better: the better direction.
        seed: of the draws.

    Returns:
        Above 0 and up to 1; below alpha, the second is shown to be worse. 1 if no input differs.

    Raises:
        QuantDriftError: not one finite value per input and system.

    Source: R. A. Fisher, The Design of Experiments (1935), section 21.
    """
    as_small, as_large = paired.difference_tails(a, b, seed=seed)
    return as_large if better == "lower" else as_small


# --- multiplicity ---------------------------------------------------------------------------------


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjusted p-values, in the order given.

    The i-th smallest of m is multiplied by m - i + 1, and no adjusted value is below that of a smaller one. Valid
    whatever the dependence between the tests.

    Args:
        p_values: from 0 to 1; None for a test that was not possible, which does not count in m.

    Returns:
        From 0 to 1, never below the given value; None for None.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6
    (1979), 65-70.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    made = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(made):
        least = max(least, min(1.0, p * (len(made) - rank)))
        adjusted[place] = least
    return adjusted


# --- the inputs it takes to show that a system is no worse, if it is exactly as good --------------

POWER = 0.8

ENOUGH = 15
"""Expected number of differing inputs at which 93 % of samples have 10 or more, enough for the normal approximation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Spread of the differences of two systems from input to input.

    Attributes:
        share: share of the inputs that differ; for a rate, the discordance rate.
        mean_square: mean square of all differences, zeros included.
    """

    share: float
    mean_square: float


def shrunken_spread(differences: NDArray[Any], *, span: float) -> Spread | None:
    """The spread of differences, shrunken so that it is never 0.

    A few inputs without a difference do not show that none differs. So two inputs that differ and two that do not are
    added: the share is (d + 2) / (n + 4) if d of n differ (the centre of the Agresti-Coull interval). The added
    differences have the mean square of the observed ones and one of the full span.

    Args:
        differences: float [n_inputs].
        span: greatest possible difference; if infinite, none of that size is counted.

    Returns:
        None if there is neither a difference nor a finite span.
    """
    squares = np.square(differences[differences != 0], dtype=np.float64)
    prior = [span * span] if math.isfinite(span) else []
    if not len(squares) and not prior:
        return None
    total, n = float(np.sort(squares).sum()), len(differences) + 4
    typical = (total + sum(prior)) / (len(squares) + len(prior))
    return Spread(share=(len(squares) + 2) / n, mean_square=(total + 2 * typical) / n)


def inputs_for_rate(share: float, *, margin: float, alpha: float = 0.05, power: float = POWER) -> int:
    """Inputs with which a rate is shown to be no worse, at a true difference of 0.

    n = (z(1 - alpha) sqrt(v) + z(power) sqrt(share))^2 / margin^2, with normal quantiles z and the variance v of one
    difference under the hypothesis. For a margin much smaller than the discordance rate v is that rate, and n is
    (z(1 - alpha) + z(power))^2 share / margin^2. If fewer than 15 inputs would then differ, n is the number that the
    exact bound needs, or the number with which 15 differ, whichever is smaller.

    Args:
        share: the discordance rate.
        margin: smallest difference that matters.
        alpha: one-sided level.
        power: probability of showing it.

    Raises:
        QuantDriftError: alpha, power or margin is out of its range.

    Source: J. Nam, Establishing equivalence of two treatments and sample size requirements in matched-pairs design,
    Biometrics 53 (1997), 1422-1430.
    """
    z_alpha, z_power = _quantiles(alpha, power, margin, span=1)
    large = 1e9  # the variance at the expected counts of a sample so large that they are exact
    under = paired.tango_variance(share / 2 * large, share / 2 * large, large, margin)
    n = ((z_alpha * math.sqrt(under) + z_power * math.sqrt(share)) / margin) ** 2
    return _with_few(n, share, worse=margin, alpha=alpha, power=power)


def inputs_for_mean(spread: Spread, *, margin: float, span: float, alpha: float = 0.05, power: float = POWER) -> int:
    """Inputs with which a mean is shown to be no worse, at a true difference of 0.

    (z(1 - alpha) + z(power))^2 mean_square / margin^2 for a plain t-test. The test here adds k worst differences
    (`estimates.worst_added`), which widen it and never vary, so that n solves

        (n + k) margin - k span = z(1 - alpha) sqrt(n mean_square + k span^2) + z(power) sqrt(n mean_square)

    If fewer than 15 inputs would then differ, n is as for a rate.

    Args:
        spread: of the differences.
        margin: smallest difference that matters.
        span: greatest possible difference; may be infinite.
        alpha: one-sided level.
        power: probability of showing it.

    Raises:
        QuantDriftError: alpha, power or margin is out of its range.
    """
    z_alpha, z_power = _quantiles(alpha, power, margin, span=span)
    worst, k = (span, estimates.worst_added(alpha)) if math.isfinite(span) else (0.0, 0)

    def short(n: float) -> float:
        drawn, tested = n * spread.mean_square, n * spread.mean_square + k * worst**2
        return z_alpha * math.sqrt(tested) + z_power * math.sqrt(drawn) + k * worst - (n + k) * margin

    low, high = 0.0, 1.0
    while short(high) > 0:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) > 0 else (low, middle)
    return _with_few(high, spread.share, worse=margin / span, alpha=alpha, power=power)


def _quantiles(alpha: float, power: float, margin: float, *, span: float) -> tuple[float, float]:
    if not (0 < alpha < power < 1 and 0 < margin < span):
        raise QuantDriftError(
            "a sample size needs 0 < alpha < power < 1 and a margin above 0 and below "
            f"{span:g}; got alpha {alpha:g}, power {power:g}, margin {margin:g}"
        )
    normal = NormalDist()
    return normal.inv_cdf(1 - alpha), normal.inv_cdf(power)


def _with_few(n: float, share: float, *, worse: float, alpha: float, power: float) -> int:
    """Raise n to the number with which 15 inputs differ, or that the exact bound needs, whichever is smaller."""
    least = max(2, math.ceil(n))
    enough = math.ceil(ENOUGH / share) if share else 10**6
    if least >= enough:
        return least
    if not worse:
        return enough
    first = max(least, math.ceil(math.log(alpha) / math.log1p(-worse)))
    last = max(first, enough)
    while first <= last:
        # the most worse inputs with a probability of `power`
        most = estimates.lower_quantile(power, first, share / 2)
        # from `more` inputs on it is one more; until then p falls as the number of inputs rises
        more = first + bisect_left(
            range(first, last + 1), True, key=lambda n: bool(estimates.at_most(most, n, share / 2) < power)
        )
        shown = first + bisect_left(
            range(first, more), True, key=lambda n: bool(estimates.at_most(most, n, worse) <= alpha)
        )
        if shown < more:
            return shown
        first = more
    return max(least, enough)


def inputs_needed(step: NDArray[Any], *, rate: bool, margin: float, span: float, alpha: float) -> int | None:
    """Inputs to show "no worse" if there is no difference, from the spread of differences; None if unknown."""
    spread = shrunken_spread(step, span=span)
    if spread is None:
        return None
    if rate:
        return inputs_for_rate(spread.share, margin=margin, alpha=alpha)
    return inputs_for_mean(spread, margin=margin, span=span, alpha=alpha)


# --- several metrics ------------------------------------------------------------------------------


def compare_samples(
    samples: Sequence[PairedSample],
    *,
    margin: float | None = None,
    alpha: float = 0.05,
    seed: int = 0,
    judged: Container[str] | None = None,
) -> tuple[PairedComparison, ...]:
    """Compare two systems by several metrics.

    Args:
        samples: one per metric.
        margin: the difference by which B may be worse, in each metric's own unit; None for no such test.
        alpha: level of the verdicts: the probability of any wrong "no worse" stays below it, and so does that of any
            wrong "worse" or "better".
        seed: seed of resampling and permutations.
        judged: the metrics that get a verdict, to whose number p-values are adjusted; by default all. "Worse" uses the
            one-sided tests of a gate, so that the two always agree.

    Returns:
        One comparison per sample, in that order.

    Raises:
        QuantDriftError: the margin does not fit a metric.
    """
    plain = [_compare(sample, margin=margin, seed=seed) for sample in samples]
    # p-values are adjusted only for metrics that can get a verdict
    counts = [sample.better is not None and (judged is None or sample.metric in judged) for sample in samples]
    two_sided, worse, no_worse = (
        [getattr(pair, name) if counted else None for pair, counted in zip(plain, counts, strict=True)]
        for name in ("p_value", "p_worse_holm", "p_no_worse")
    )
    level = alpha / max(1, sum(p is not None for p in no_worse))
    results = []
    for sample, pair, p, w, q in zip(samples, plain, holm(two_sided), holm(worse), holm(no_worse), strict=True):
        needed = None
        if margin is not None and q is not None:
            rate = sample.kind == "rate"
            needed = inputs_needed(sample.b - sample.a, rate=rate, margin=margin, span=sample.span, alpha=level)
        full = replace(pair, p_holm=p, p_worse_holm=w, p_no_worse_holm=q, inputs_needed=needed)
        verdict = verdict_of(full, better=sample.better, margin=margin, alpha=alpha)
        results.append(replace(full, verdict=verdict))
    return tuple(results)


def _compare(sample: PairedSample, *, margin: float | None, seed: int) -> PairedComparison:
    """Compare one metric, without the fields that depend on the other metrics."""
    a, b = sample.a, sample.b
    comparison = PairedComparison(
        metric=sample.metric,
        n=len(a),
        value_a=None,
        value_b=None,
        difference=undefined(sample.reason or "no input has a value from both"),
        higher_a=int((a > b).sum()),
        higher_b=int((b > a).sum()),
        reason=sample.reason,
    )
    if not len(a):
        return replace(comparison, reason=comparison.difference.reason)
    if sample.kind == "quantile":
        step = paired.paired_quantile_difference(a, b, q=sample.q, seed=seed)
        return replace(
            comparison,
            value_a=float(estimates.quantile(a, sample.q)),
            value_b=float(estimates.quantile(b, sample.q)),
            difference=step,
            reason=sample.reason or step.reason or "a median or quantile has an interval here, no test",
        )
    comparison = replace(comparison, value_a=float(a.mean()), value_b=float(b.mean()))
    if not sample.tested:
        reason = "infinite for some inputs, so there is no mean to compare"
        return replace(comparison, difference=undefined(reason), reason=reason)
    if sample.kind == "rate":
        difference, p_value = paired.paired_rate_difference(a, b), paired.mcnemar_exact(a, b).p_value
    else:
        difference = paired.paired_mean_difference(a, b, seed=seed)
        p_value = paired.randomization_test(a, b, seed=seed)
    comparison = replace(comparison, difference=difference, p_value=p_value)
    if sample.better is not None:
        one_sided = rate_worse if sample.kind == "rate" else partial(mean_worse, seed=seed)
        comparison = replace(comparison, p_worse_holm=one_sided(a, b, better=sample.better))
    if sample.better is None or margin is None:
        why = "neither way is better: no verdict" if sample.better is None else None
        return replace(comparison, reason=sample.reason or why)
    if sample.kind == "rate":
        return replace(comparison, p_no_worse=rate_no_worse(a, b, margin=margin, better=sample.better))
    p_no_worse = mean_no_worse(a, b, margin=margin, better=sample.better, span=sample.span)
    why = None if p_no_worse is not None else "too few inputs differ, and the metric has no upper end that bounds them"
    return replace(comparison, p_no_worse=p_no_worse, reason=why or sample.reason)
