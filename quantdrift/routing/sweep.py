"""What routing gives back at several thresholds, each set on one part and measured on the other.

    recovered accuracy = (accuracy with routing - candidate's) / (reference's - candidate's)
    recovered changes  = changed answers that were routed / changed answers

A routed input answers as the reference does. Over the splits of a run both are ratios of sums (of
gains, and of what there was to gain), so a split with little to gain counts little. Over several
runs they are plain means.

Source: paper, section 5.3 and the appendix's table of routing scores and thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.confidence import ConfidenceName
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.evidence import Evidence
from quantdrift.routing.answers import Answers, accuracy_reason, answers_of
from quantdrift.routing.router import percentile_threshold

__all__ = ["PERCENTILES", "Share", "SweepPoint", "mean_sweep", "sweep"]

PERCENTILES = (10.0, 25.0, 50.0)
N_SPLITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share with its spread.

    Attributes:
        value: the share, or None if it is undefined.
        sd: standard deviation, over the splits of one run or over several runs; None for fewer than
            two. Of a ratio of sums R it is that of (gain - R headroom) / mean headroom, which stays
            finite where a split has nothing to gain.
        n: how many splits or runs it is of.
        reason: why value is None.
    """

    value: float | None
    sd: float | None = None
    n: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One confidence at one percentile.

    Attributes:
        score: which confidence.
        percentile: of it on the slice, where the threshold is set.
        routed: share of the other inputs that are routed, 0 to 1.
        accuracy: recovered share of the accuracy loss; 1 is all of it, and beyond 1 or below 0 is
            possible where changed answers were better than before, or are.
        changes: recovered share of the changed answers, 0 to 1.
    """

    score: ConfidenceName
    percentile: float
    routed: Share
    accuracy: Share
    changes: Share

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def sweep(
    evidence: Evidence,
    *,
    scores: Sequence[ConfidenceName] = ("gap", "msp", "entropy"),
    percentiles: Sequence[float] = PERCENTILES,
    share: float = 0.5,
    n_splits: int = N_SPLITS,
    seed: int = 0,
) -> tuple[SweepPoint, ...]:
    """Route one run at several percentiles of several confidences.

    All of them see the same splits.

    Args:
        evidence: of one run.
        scores: which confidences.
        percentiles: where thresholds are set.
        share: of the inputs that a threshold is set on, above 0 and below 1.
        n_splits: how many random splits, at least 1.
        seed: of the splits.

    Returns:
        One point per confidence and percentile, in that order.

    Raises:
        RunError: the run has no such confidence, or too few inputs to split.
        QuantDriftError: a setting is out of range.
    """
    if not 0 < share < 1 or n_splits < 1:
        raise QuantDriftError(
            f"expected a share above 0 and below 1 and at least one split; got {share}, {n_splits}"
        )
    points: list[SweepPoint] = []
    splits: list[tuple[NDArray[np.int64], NDArray[np.int64]]] | None = None
    for score in scores:
        answers = answers_of(evidence, score)
        splits = splits or _splits(answers.n, share, n_splits, seed)
        points += [_point(answers, score, percentile, splits) for percentile in percentiles]
    return tuple(points)


def _splits(
    n: int, share: float, n_splits: int, seed: int
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    if n < 2:  # noqa: PLR2004 -- one to set the threshold on, one to measure it on
        raise RunError(f"expected at least two inputs to split; got {n}")
    rng, cut = np.random.default_rng(seed), min(max(1, round(n * share)), n - 1)
    orders = [rng.permutation(n) for _ in range(n_splits)]
    return [(order[:cut], order[cut:]) for order in orders]


def _point(
    answers: Answers,
    score: ConfidenceName,
    percentile: float,
    splits: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> SweepPoint:
    routed, n, gain, loss, back, changed = (np.zeros(len(splits)) for _ in range(6))
    for number, (slice_, rest) in enumerate(splits):
        threshold = percentile_threshold(answers.confidence[slice_], percentile)
        below = answers.confidence[rest] < threshold
        routed[number], n[number] = below.sum(), len(rest)
        gain[number], loss[number] = (
            np.nansum(answers.gain[rest[below]]),
            np.nansum(answers.gain[rest]),
        )
        back[number] = answers.changed[rest[below]].sum()
        changed[number] = answers.changed[rest].sum()
    return SweepPoint(
        score=score,
        percentile=percentile,
        routed=_ratio(routed, n, None),
        accuracy=_ratio(gain, loss, accuracy_reason(answers)),
        changes=_ratio(back, changed, None if answers.changed.any() else "no answer changed"),
    )


def _ratio(gains: NDArray[np.float64], headrooms: NDArray[np.float64], reason: str | None) -> Share:
    """Sum of gains over sum of headrooms, with its spread over the splits."""
    if reason is None and headrooms.sum() <= 0:
        reason = "the parts measured on have nothing to gain, in sum"
    if reason is not None:
        return Share(value=None, reason=reason)
    ratio = float(gains.sum() / headrooms.sum())
    apart = (gains - ratio * headrooms) / headrooms.mean()
    sd = float(apart.std(ddof=1)) if len(apart) > 1 else None
    return Share(value=ratio, sd=sd, n=len(gains))


def mean_sweep(sweeps: Sequence[Sequence[SweepPoint]]) -> tuple[SweepPoint, ...]:
    """The mean over several runs, as in the paper's table.

    Each share is averaged over the runs that have it; how many these are stands beside it.

    Args:
        sweeps: of at least one run each, of the same confidences and percentiles.
    """
    return tuple(
        SweepPoint(
            score=points[0].score,
            percentile=points[0].percentile,
            routed=_mean([point.routed for point in points]),
            accuracy=_mean([point.accuracy for point in points]),
            changes=_mean([point.changes for point in points]),
        )
        for points in zip(*sweeps, strict=True)
    )


def _mean(shares: Sequence[Share]) -> Share:
    if len(shares) == 1:
        return shares[0]
    values = [share.value for share in shares if share.value is not None]
    if not values:
        return Share(value=None, reason=f"in none of {len(shares)} runs: {shares[0].reason}")
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Share(value=float(np.mean(values)), sd=sd, n=len(values))
