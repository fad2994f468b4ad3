"""Everything routing says of finished runs, one by one and averaged over the runs of one spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from threading import Lock
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.conformal import CONFIDENCES, ConfidenceName, confidence_in
from quantdrift.errors import QuantDriftError, RunError, SpecError
from quantdrift.evidence import Evidence
from quantdrift.perturbation import flips
from quantdrift.runs import Run
from quantdrift.spec import MAX_BITS, parse
from quantdrift.statistics import Estimate, mcnemar_exact, rate_estimate, undefined
from quantdrift.trust.rescoring import Rescoring, rescore, stored_depths, within
from quantdrift.trust.router import (
    Answers,
    accuracy_reason,
    answers_of,
    percentile_threshold,
    recovery_threshold,
    scores_for,
)

# --- sweep ----------------------------------------------------------------------------------------

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
        raise QuantDriftError(f"expected a share above 0 and below 1 and at least one split; got {share}, {n_splits}")
    points: list[SweepPoint] = []
    splits: list[tuple[NDArray[np.int64], NDArray[np.int64]]] | None = None
    for score in scores:
        answers = answers_of(evidence, score)
        splits = splits or _splits(answers.n, share, n_splits, seed)
        points += [_point(answers, score, percentile, splits) for percentile in percentiles]
    return tuple(points)


def _splits(n: int, share: float, n_splits: int, seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
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
        gain[number], loss[number] = (np.nansum(answers.gain[rest[below]]), np.nansum(answers.gain[rest]))
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


# --- What routing costs, and what it gives back for that: an exact curve from a run's evidence ----

SPEED_UP = 4.5
"""Of a 4-bit model over full precision, as GPTQ's authors report it and the paper uses it."""

Floats = NDArray[np.float64]


def relative_cost(routed_share: float, speed_up: float = SPEED_UP) -> float:
    """Cost per input of candidate plus routed reference, full precision = 1.

    Args:
        routed_share: from 0 to 1.
        speed_up: of the candidate, at least 1.

    Returns:
        1 / speed_up + routed_share; above 1 routing costs more than full precision alone.

    Raises:
        QuantDriftError: speed_up is below 1 or not finite.

    >>> round(relative_cost(0.25), 3)
    0.472
    """
    return _candidate_cost(speed_up) + routed_share


def break_even_share(speed_up: float = SPEED_UP) -> float:
    """The routed share at which routing costs as much as full precision alone.

    Raises:
        QuantDriftError: speed_up is below 1 or not finite.
    """
    return 1 - _candidate_cost(speed_up)


def _candidate_cost(speed_up: float) -> float:
    if not (np.isfinite(speed_up) and speed_up >= 1):
        raise QuantDriftError(f"expected a speed-up of 1 or more (the candidate over full precision); got {speed_up}")
    return 1 / speed_up


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostCurve:
    """Every threshold that makes a difference on a run, from routing nothing to everything.

    Attributes:
        score: which confidence.
        n: number of inputs.
        routed: float64 [n_points], share routed, increasing from 0 to 1. Inputs that tie in
            confidence are routed together, so that there are as many points as thresholds.
        cost: float64 [n_points], relative to full precision.
        changes: float64 [n_points], recovered share of the changed answers, 0 to 1, never falling;
            None if none changed.
        accuracy: float64 [n_points], recovered share of the accuracy loss, or None.
        accuracy_reason: why there is none.
    """

    score: ConfidenceName
    n: int
    routed: Floats
    cost: Floats
    changes: Floats | None
    accuracy: Floats | None
    accuracy_reason: str | None

    def at(self, share: float) -> int:
        """The point that routes most without routing more than a share."""
        return int(np.searchsorted(self.routed, share * (1 + 1e-12), side="right")) - 1

    def for_changes(self, share: float) -> int | None:
        """The first point that gives back at least a share of the changed answers."""
        if self.changes is None:
            return None
        return int(np.searchsorted(self.changes, share * (1 - 1e-12), side="left"))

    def rows(self, shares: Sequence[float]) -> list[dict[str, Any]]:
        """The points `at` these shares, as JSON objects."""
        return [
            {
                "routed": float(self.routed[point]),
                "cost": float(self.cost[point]),
                "changes": None if self.changes is None else float(self.changes[point]),
                "accuracy": None if self.accuracy is None else float(self.accuracy[point]),
            }
            for point in (self.at(share) for share in shares)
        ]


def cost_curve(evidence: Evidence, *, score: ConfidenceName = "gap", speed_up: float = SPEED_UP) -> CostCurve:
    """Route the inputs of a run in order of confidence, the least sure first.

    Exact, but of this very run: a threshold that is to be used is set on one part of the inputs and
    judged on another (`sweep`).

    Args:
        evidence: of one run.
        score: which confidence.
        speed_up: of the candidate, at least 1.

    Raises:
        RunError: the run has no such confidence, or no input with two items.
        QuantDriftError: speed_up is below 1 or not finite.
    """
    base = _candidate_cost(speed_up)
    answers = answers_of(evidence, score)
    order = np.argsort(answers.confidence, kind="stable")
    ordered = answers.confidence[order]
    # a point after the last input of each value, and one before all
    ends = np.append(np.flatnonzero(np.diff(ordered) > 0) + 1, answers.n)
    points = np.insert(ends, 0, 0)

    def gained(values: NDArray[Any]) -> Floats:
        sums = np.insert(np.cumsum(values[order].astype(np.float64)), 0, 0.0)
        return np.asarray(sums[points] / sums[-1])

    routed = points / answers.n
    reason = accuracy_reason(answers)
    return CostCurve(
        score=score,
        n=answers.n,
        routed=routed,
        cost=base + routed,
        changes=gained(answers.changed) if answers.changed.any() else None,
        accuracy=gained(np.nan_to_num(answers.gain)) if reason is None else None,
        accuracy_reason=reason,
    )


# --- Which of the two fixes a run asks for: route its unsure inputs, or spend more bits -----------

Fix = Literal["route", "allocate", "nothing"]

MAJORITY = 0.5
"""From this share of inputs at risk on, routing is no longer the exception."""

ALPHA = 0.05
EXTRA_BITS = 0.5
"""What the paper's allocations add to a whole width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about a run.

    Attributes:
        fix: "route", "allocate" or "nothing".
        flip_rate: share of the inputs whose first answer changed.
        noise_floor: the same of the reference against itself, if measured.
        at_risk: share of the inputs whose separation ratio is below 1.
        limit: share at risk from which on routing is not advised: break_even or the majority,
            whichever is less.
        break_even: routed share at which routing costs what full precision does.
        straddles: whether the interval of at_risk holds the limit, so that more inputs could change
            the advice.
        above_noise: whether the exact McNemar test tells the flips from the noise floor (p < 0.05);
            None if that was not measured.
    """

    fix: Fix
    flip_rate: Estimate
    noise_floor: Estimate
    at_risk: Estimate
    limit: float
    break_even: float
    straddles: bool
    above_noise: bool | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        estimates = ("flip_rate", "noise_floor", "at_risk")
        return {**asdict(self), **{name: getattr(self, name).to_json() for name in estimates}}

    def sentences(self, allocate: str | None = None) -> list[str]:
        """The advice in words.

        Args:
            allocate: the command that allocates, where there is one.
        """
        changed, told = self.flip_rate, []
        assert changed.value is not None  # a run has an input
        if changed.value == 0:
            return [
                f"Recommended: nothing. None of {changed.n:,} first answers changed (at most "
                f"{_percent(changed.high)} do, with 95 % confidence)."
            ]
        if self.fix == "nothing":
            return [
                f"Recommended: nothing. {_percent(changed.value)} of {changed.n:,} first answers "
                f"changed, and noise alone changes {_percent(self.noise_floor.value)}."
            ]
        if self.at_risk.value is None:
            return ["No recommendation: no input has two items, so none can change."]
        risk = (
            f"{_percent(self.at_risk.value)} of {self.at_risk.n:,} inputs are at risk (95 % "
            f"interval {_percent(self.at_risk.low)} to {_percent(self.at_risk.high)})"
        )
        if self.fix == "route":
            told.append(
                f"Recommended: route. {risk}, which is less than {self._what_limit()}: most inputs "
                "can be left to the candidate."
            )
        else:
            why = (
                "most inputs would be asked twice"
                if self.at_risk.value >= MAJORITY
                else "full precision for all of them costs less"
            )
            how = f": {allocate}" if allocate else ""
            told.append(
                f"Recommended: allocate. {risk}, not less than {self._what_limit()}: {why}. Spend "
                f"more bits, and spend them on the layers that move the gap{how}."
            )
        if self.straddles:
            told.append(
                f"The interval holds the limit of {_percent(self.limit)}, so these inputs are too "
                "few to be sure of that; the other fix may do as well."
            )
        if self.above_noise is False:
            told.append(
                f"The changes ({_percent(changed.value)}) are not shown to be more than noise "
                f"alone makes ({_percent(self.noise_floor.value)}); maybe nothing need be done."
            )
        return told

    def _what_limit(self) -> str:
        if self.limit < self.break_even:
            return "half of them"
        return f"the {_percent(self.limit)} at which routing costs what full precision does"


def advise(evidence: Evidence, *, speed_up: float = SPEED_UP) -> Advice:
    """Decide between routing, more bits and nothing.

    Nothing, if no answer changed or no more than between two runs of the reference; routing, if
    fewer are at risk than both the break-even share and a half; allocation otherwise.

    Args:
        evidence: of one run, with at least one input.
        speed_up: of the candidate, at least 1.

    Raises:
        QuantDriftError: speed_up is below 1 or not finite.
    """
    break_even = break_even_share(speed_up)
    limit = min(break_even, MAJORITY)
    changed = perturbation.flips(evidence).astype(np.float64)
    flip_rate, noise_floor, above = rate_estimate(changed), undefined("not measured"), None
    if evidence.noise is not None:
        noise = evidence.noise.flips.astype(np.float64)
        noise_floor = rate_estimate(noise)
        above = bool(changed.sum() > noise.sum() and mcnemar_exact(noise, changed).p_value < ALPHA)
    risks = perturbation.at_risk(evidence)
    risks = risks[~np.isnan(risks)]
    at_risk = rate_estimate(risks) if len(risks) else undefined("no input has two items")
    assert flip_rate.value is not None
    fix: Fix = "allocate"
    if flip_rate.value <= (noise_floor.value or 0.0):
        fix = "nothing"
    elif at_risk.value is not None and at_risk.value < limit:
        fix = "route"
    low, high = at_risk.low, at_risk.high
    return Advice(
        fix=fix,
        flip_rate=flip_rate,
        noise_floor=noise_floor,
        at_risk=at_risk,
        limit=limit,
        break_even=break_even,
        straddles=fix != "nothing" and low is not None and high is not None and low < limit <= high,
        above_noise=above,
    )


def allocate_command(spec: str, *, classes: bool) -> str | None:
    """What spends half a bit more than a spec does, by the gap; None where that makes no spec.

    Args:
        spec: of a run.
        classes: whether it is on classification data, where the run itself measures the layers.

    >>> allocate_command("minilm@W3-gptq", classes=False)
    'quantdrift allocate minilm@W3.5-g128-gptq+gap --data FOLDER'
    """
    try:
        whole = parse(spec)
        scheme = whole.scheme
        if scheme.criterion is not None or scheme.weight_bits + EXTRA_BITS > MAX_BITS:
            return None
        bits = f"W{scheme.weight_bits + EXTRA_BITS:g}"
        rest = str(scheme).removeprefix(f"W{scheme.weight_bits:g}")
        head, plus, options = rest.partition("+")
        more = parse(f"{whole.model}@{bits}{head}+gap{plus}{options}")
    except SpecError:  # two models, say, or an option that a criterion does not go with
        return None
    return f"quantdrift {'run' if classes else 'allocate'} {more} --data FOLDER"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.1f} %"


# --- Cost curves and rescoring, averaged over several runs ----------------------------------------

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Routed shares at which a cost curve is told."""


def mean_curve(curves: Sequence[CostCurve], shares: Sequence[float] = SHARES) -> list[Any]:
    """Points of several cost curves at the same routed shares, averaged.

    Each column is averaged over the runs that have it, and is None if none has.
    """
    tables = [curve.rows(shares) for curve in curves]
    return [{name: _means_mean([row[name] for row in rows]) for name in rows[0]} for rows in zip(*tables, strict=True)]


def mean_rescoring(tables: Sequence[Sequence[Rescoring]]) -> list[Rescoring]:
    """The mean of rescoring tables, for each percentile and depth that all of them have."""
    by_place = [{(entry.percentile, entry.k): entry for entry in table} for table in tables]
    return [
        _mean_entry([table[place] for table in by_place])
        for place in by_place[0]
        if all(place in table for table in by_place)
    ]


def _mean_entry(entries: Sequence[Rescoring]) -> Rescoring:
    # means of two metrics would be of neither
    same = len({entry.metric for entry in entries} - {None}) <= 1
    names = ("encoded", "documents", "restored", "ceiling", *(("change", "loss") if same else ()))
    means = {name: _means_mean([getattr(entry, name) for entry in entries]) for name in names}
    metric = next((entry.metric for entry in entries if entry.metric), None) if same else None
    blank = replace(entries[0], metric=metric, change=None, loss=None)
    return replace(blank, **means)  # type: ignore[arg-type]  # shares of every entry are defined


def _means_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


# --- restoring ------------------------------------------------------------------------------------

K = 10
"""How many first items are rescored, if as many ranks are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """The least that is rescored to give back a share of the changed answers.

    Attributes:
        k: how many of the candidate's first items are rescored.
        threshold: of the candidate gap; queries below it are rescored.
        counts: what the share is of: "restored" answers, or "caught" ones (changed, and rescored)
            where fewer than that share can be restored.
        routed: share of the queries that are rescored, 0 to 1.
        cost: of encoding queries, relative to full precision alone.
        caught: share of the changed answers whose query is rescored.
        restored: share of the changed answers that are the reference's again.
        ceiling: the same if every query were rescored.
    """

    k: int
    threshold: float
    counts: Literal["restored", "caught"]
    routed: float
    cost: float
    caught: float
    restored: float
    ceiling: float

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"score": "gap", **asdict(self)}


def restoring_point(evidence: Evidence, share: float = 0.9, *, speed_up: float = SPEED_UP) -> Restoring | None:
    """The smallest threshold of the gap whose rescoring restores a share of the changed answers.

    Args:
        evidence: of one run on similarities.
        share: of the inputs whose first answer changed, above 0 and at most 1.
        speed_up: of the candidate, at least 1.

    Returns:
        The point, or None if no answer changed.

    Raises:
        QuantDriftError: no such share or speed-up, or fewer ranks are stored than the least depth.
    """
    k = max(depth for depth in stored_depths(evidence) if depth <= K)
    changed, gaps = flips(evidence), confidence_in(evidence, "gap")
    if not changed.any():
        return None
    back = changed & within(evidence, k)
    n_changed, n_back = int(changed.sum()), int(back.sum())
    # rounded, as 0.9 of 10 is 9 and not the next number above
    reachable = n_back > 0 and round(share * n_changed, 9) <= n_back
    if reachable:
        threshold = recovery_threshold(gaps, back, min(1.0, share * n_changed / n_back))
    else:
        threshold = recovery_threshold(gaps, changed, share)
    rows = gaps < threshold
    return Restoring(
        k=k,
        threshold=threshold,
        counts="restored" if reachable else "caught",
        routed=float(rows.mean()),
        cost=relative_cost(float(rows.mean()), speed_up),
        caught=float(rows[changed].mean()),
        restored=float((rows & back)[changed].mean()),
        ceiling=float(np.mean(back[changed])),
    )


# --- study ----------------------------------------------------------------------------------------

EVERYTHING = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSettings:
    """How runs are looked at.

    Attributes:
        scores: confidences, the first of which the cost curve is of.
        percentiles: where thresholds are set.
        share: of the inputs that a threshold is set on.
        n_splits: random splits.
        seed: of the splits.
        speed_up: of the candidate over full precision, stated.
        recover: share of the changed answers that the operating point gives back.
    """

    scores: Sequence[ConfidenceName] = ("gap", "msp", "entropy")
    percentiles: Sequence[float] = PERCENTILES
    share: float = 0.5
    n_splits: int = N_SPLITS
    seed: int = 0
    speed_up: float = SPEED_UP
    recover: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutedRun:
    """What routing says of one run.

    Attributes:
        run: the run.
        n_inputs: of its evidence.
        logits: whether it ranks by logits; else by similarities.
        advice: which fix it asks for.
        curves: cost curves, one per confidence.
        points: of the sweep; empty for similarities.
        rescoring: of the first items; empty for logits.
        restoring: the operating point of a search; None for logits, or if no answer changed.
        recover: share of the changed answers that `operating` gives back.
        two_classes: whether the inputs have two items, so that all confidences order them alike.
    """

    run: Run
    n_inputs: int
    logits: bool
    advice: Advice
    curves: Sequence[CostCurve]
    points: Sequence[SweepPoint]
    rescoring: Sequence[Rescoring]
    restoring: Restoring | None
    recover: float
    two_classes: bool

    @property
    def similarity(self) -> str | None:
        """How the run compared embeddings, if it did and says so."""
        named = self.run.record.get("settings", {}).get("similarity")
        return None if named is None else str(named)

    @property
    def operating(self) -> dict[str, Any] | None:
        """Least routed share that gives back `recover` of the changes, and its cost."""
        if not self.logits:
            return None if self.restoring is None else self.restoring.to_json()
        curve = self.curves[0]
        point = curve.for_changes(self.recover)
        if point is None or curve.changes is None:
            return None
        return {
            "score": curve.score,
            "routed": float(curve.routed[point]),
            "cost": float(curve.cost[point]),
            "changes": float(curve.changes[point]),
        }

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        record = self.run.record
        return {
            "path": str(self.run.path),
            "spec": record["spec"],
            "data": record["data"]["name"],
            "n_inputs": self.n_inputs,
            "scores_are": "logits" if self.logits else "similarities",
            "similarity": self.similarity,
            "advice": {
                **self.advice.to_json(),
                "sentences": self.advice.sentences(allocate_command(record["spec"], classes=self.logits)),
            },
            "operating_point": self.operating,
            "sweep": [point.to_json() for point in self.points],
            "cost_curves": {curve.score: curve.rows(SHARES) for curve in self.curves},
            "rescoring": [entry.to_json() for entry in self.rescoring],
        }


def study_run(run: Run, settings: RouteSettings) -> RoutedRun:
    """Look at one run.

    For logits: the sweep and the cost curves of every confidence. For similarities only the gap is
    one, and the first items are rescored instead.

    Args:
        run: a finished run.
        settings: how to look.

    Raises:
        RunError: only softmax confidences are asked of a run on similarities, or the run is too
            small.
        QuantDriftError: a setting is out of range.
    """
    evidence = run.exact_evidence("the advice of what to do")
    if evidence.n_inputs == 0:
        raise RunError(f"{run.path} has no inputs")
    logits = evidence.confidence is not None
    scores = [score for score in settings.scores if score in scores_for(evidence)]
    if not scores:
        raise RunError(
            f"{run.path} ranks by similarities, whose softmax is no probability, so "
            f"{' and '.join(settings.scores)} cannot be read; expected --score gap"
        )
    points: Sequence[SweepPoint] = ()
    rescoring: Sequence[Rescoring] = ()
    restoring = None
    if logits:
        points = sweep(
            evidence,
            scores=scores,
            percentiles=settings.percentiles,
            share=settings.share,
            n_splits=settings.n_splits,
            seed=settings.seed,
        )
    else:
        rescoring = rescore(evidence, percentiles=sorted({*settings.percentiles, EVERYTHING}))
        restoring = restoring_point(evidence, settings.recover, speed_up=settings.speed_up)
    return RoutedRun(
        run=run,
        n_inputs=evidence.n_inputs,
        logits=logits,
        advice=advise(evidence, speed_up=settings.speed_up),
        curves=[cost_curve(evidence, score=s, speed_up=settings.speed_up) for s in scores],
        points=points,
        rescoring=rescoring,
        restoring=restoring,
        recover=settings.recover,
        two_classes=int(evidence.n_items.max()) == 2,  # noqa: PLR2004 -- two
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutedGroup:
    """The runs of one spec, and their mean.

    Attributes:
        spec: of all of them.
        logits: whether they rank by logits.
        runs: at least one.
    """

    spec: str
    logits: bool
    runs: Sequence[RoutedRun]

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """The sweep, averaged over the runs that each share is defined for."""
        return mean_sweep([run.points for run in self.runs])


def group_runs(runs: Sequence[RoutedRun]) -> list[RoutedGroup]:
    """The runs by spec, and by whether they rank by logits, in order of appearance."""
    found: dict[tuple[str, bool], list[RoutedRun]] = {}
    for run in runs:
        found.setdefault((str(run.run.record["spec"]), run.logits), []).append(run)
    return [RoutedGroup(spec=spec, logits=logits, runs=group) for (spec, logits), group in found.items()]


# --- What decides which inputs of a batch a candidate answers alone: a router, or a check ---------


@runtime_checkable
class Routes(Protocol):
    """Says which inputs go to full precision, as `GapRouter` does."""

    def routes(self, scores: Any, /) -> Any:
        """Bool [n], true for full precision."""
        ...


@runtime_checkable
class Accepts(Protocol):
    """Says which answers of the candidate can stand, as a stability check does."""

    def accepts(self, scores: Any, /) -> Any:
        """Bool [n], true where the answer stands."""
        ...


Gate = Routes | Accepts


def score_of(gate: Gate) -> ConfidenceName:
    """Which confidence a gate looks at: its `score`, or its `statistic` if that is one; or gap."""
    named = getattr(gate, "score", None) or getattr(gate, "statistic", None)
    return named if named in CONFIDENCES else "gap"


def routed_by(gate: Gate, scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Which inputs go to full precision: those a router routes, or a check does not accept.

    Args:
        gate: a router or a check; one that is both is taken as a router.
        scores: [n, n_items], the candidate's.

    Returns:
        bool [n].

    Raises:
        QuantDriftError: it is neither, or does not answer with one value per input.
    """
    if isinstance(gate, Routes):
        routed = np.asarray(gate.routes(scores), dtype=bool)
    elif isinstance(gate, Accepts):
        routed = ~np.asarray(gate.accepts(scores), dtype=bool)
    else:
        raise QuantDriftError(
            f"expected a router (with routes(scores)) or a check (with accepts(scores)); got {type(gate).__name__}"
        )
    if routed.shape != (len(scores),):
        raise QuantDriftError(
            f"expected one decision for each of {len(scores)} inputs from "
            f"{type(gate).__name__}; got shape {routed.shape}"
        )
    return routed


@dataclass(slots=True)
class Traffic:
    """Counts inputs and how many of them went to full precision; threads may share it."""

    _seen: int = 0
    _routed: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add(self, routed: NDArray[np.bool_]) -> None:
        """Count one batch, bool [n]."""
        with self._lock:
            self._seen += len(routed)
            self._routed += int(routed.sum())

    def counts(self) -> tuple[int, int]:
        """(inputs seen, of these routed), of the same moment."""
        with self._lock:
            return self._seen, self._routed
