"""Everything routing says of finished runs, one by one and averaged over the runs of one spec.

Source: paper, section 5.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.conformal import CONFIDENCES, ConfidenceName, confidence_in
from quantdrift.errors import QuantDriftError, RunError, SpecError
from quantdrift.evidence import Evidence
from quantdrift.metrics import parse_metric
from quantdrift.runs import Run
from quantdrift.spec import MAX_BITS, parse
from quantdrift.statistics.estimates import Estimate, as_json, rate_estimate, undefined
from quantdrift.statistics.paired import mcnemar_exact
from quantdrift.trust.certify import random_splits
from quantdrift.trust.rescoring import Rescoring, Restoring, rescore, restoring_point
from quantdrift.trust.router import percentile_threshold

Floats = NDArray[np.float64]

PERCENTILES = (10.0, 25.0, 50.0)
N_SPLITS = 20
SPEED_UP = 4.5
"""Of a 4-bit model over full precision, as GPTQ's authors report it and the paper uses it."""
LEAST_LOSS = 0.005
"""Accuracy that quantization has to cost over a run before a share of the loss is told."""

# --- what routing needs of a run ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """The inputs of a run that could be routed (those with at least two items).

    Attributes:
        confidence: float64 [n], of the candidate, larger is surer.
        changed: bool [n], whether the first answer differs.
        gain: float64 [n], by how much the accuracy of the input rises if it is routed: 1, 0 or -1; NaN where it has
            no label.
    """

    confidence: Floats
    changed: NDArray[np.bool_]
    gain: Floats

    @property
    def accuracy_reason(self) -> str | None:
        """Why there is no loss of accuracy to give back, or None if there is at least `LEAST_LOSS` of it."""
        labelled = self.gain[~np.isnan(self.gain)]
        if not len(labelled):
            return "no input has a label"
        lost = float(labelled.sum())
        if lost <= 0:
            moved = f"rises by {-100 * lost / len(labelled):.2f} points" if lost else "is the same"
            return f"accuracy {moved}, so nothing was lost"
        if lost < LEAST_LOSS * len(labelled) * (1 - 1e-12):
            return (
                f"accuracy falls by {100 * lost / len(labelled):.2f} points, less than the "
                f"{100 * LEAST_LOSS:g} of which a share can be told"
            )
        return None


def answers_of(evidence: Evidence, score: ConfidenceName = "gap") -> Answers:
    """Confidence, changes and labels of a run."""
    confidence = confidence_in(evidence, score)
    known = ~np.isnan(confidence)
    if not known.any():
        raise RunError("expected a run with an input of at least two items; there is none")
    gain = -parse_metric("change.accuracy").per_input(evidence)
    return Answers(confidence=confidence[known], changed=perturbation.flips(evidence)[known], gain=gain[known])


# --- the sweep: thresholds set on one part of the inputs, measured on the rest --------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share with its spread.

    Attributes:
        value: the share, or None if it is undefined.
        sd: standard deviation, over the splits of one run or over several runs; None for fewer than two. Of a ratio
            of sums R it is that of (gain - R headroom) / mean headroom, which stays finite where a split has nothing
            to gain.
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
        accuracy: recovered share of the accuracy loss; 1 is all of it, and beyond 1 or below 0 is possible where
            changed answers were better than before, or are.
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
    scores: Sequence[ConfidenceName] = CONFIDENCES,
    percentiles: Sequence[float] = PERCENTILES,
    share: float = 0.5,
    n_splits: int = N_SPLITS,
    seed: int = 0,
) -> tuple[SweepPoint, ...]:
    """Route one run at several percentiles of several confidences; all see the same splits."""
    points = []
    for score in scores:
        answers = answers_of(evidence, score)
        cut, orders = random_splits(len(answers.gain), share, n_splits, seed)
        for percentile in percentiles:
            found = []
            for order in orders:
                slice_, rest = order[:cut], order[cut:]
                below = answers.confidence[rest] < percentile_threshold(answers.confidence[slice_], percentile)
                gain, changed = np.nan_to_num(answers.gain[rest]), answers.changed[rest]
                sums = [(v[below].sum(), v.sum()) for v in (np.ones(len(rest)), gain, changed)]
                found.append(sums)
            routed, accuracy, changes = np.array(found, dtype=np.float64).transpose(1, 2, 0)
            reason = None if answers.changed.any() else "no answer changed"
            points.append(
                SweepPoint(
                    score=score,
                    percentile=percentile,
                    routed=_ratio(routed, None),
                    accuracy=_ratio(accuracy, answers.accuracy_reason),
                    changes=_ratio(changes, reason),
                )
            )
    return tuple(points)


def _ratio(parts: Floats, reason: str | None) -> Share:
    """Sum of gains over sum of headrooms, of [2, n_splits], with its spread over the splits."""
    gains, headrooms = parts
    if reason is None and headrooms.sum() <= 0:
        reason = "the parts measured on have nothing to gain, in sum"
    if reason is not None:
        return Share(value=None, reason=reason)
    ratio = float(gains.sum() / headrooms.sum())
    apart = (gains - ratio * headrooms) / headrooms.mean()
    return Share(value=ratio, sd=float(apart.std(ddof=1)) if len(apart) > 1 else None, n=len(gains))


def mean_sweep(sweeps: Sequence[Sequence[SweepPoint]]) -> tuple[SweepPoint, ...]:
    """The mean over several runs, as in the paper's table: each share over the runs that have it."""

    def mean(shares: Sequence[Share]) -> Share:
        values = [share.value for share in shares if share.value is not None]
        if len(shares) == 1:
            return shares[0]
        if not values:
            return Share(value=None, reason=f"in none of {len(shares)} runs: {shares[0].reason}")
        sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return Share(value=float(np.mean(values)), sd=sd, n=len(values))

    return tuple(
        replace(
            points[0],
            routed=mean([point.routed for point in points]),
            accuracy=mean([point.accuracy for point in points]),
            changes=mean([point.changes for point in points]),
        )
        for points in zip(*sweeps, strict=True)
    )


# --- the cost: an exact curve of the run's own inputs ---------------------------------------------

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Routed shares at which a cost curve is told."""


def relative_cost(routed_share: float, speed_up: float = SPEED_UP) -> float:
    """Cost per input of candidate plus routed reference: 1 / speed_up + routed_share; full precision alone is 1.

    >>> round(relative_cost(0.25), 3)
    0.472
    """
    if not (np.isfinite(speed_up) and speed_up >= 1):
        raise QuantDriftError(f"expected a speed-up of 1 or more (the candidate over full precision); got {speed_up}")
    return 1 / speed_up + routed_share


def break_even_share(speed_up: float = SPEED_UP) -> float:
    """The routed share at which routing costs as much as full precision alone; raises as `relative_cost`."""
    return 1 - relative_cost(0, speed_up)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostCurve:
    """Every threshold that makes a difference on a run, from routing nothing to everything.

    Attributes:
        score: which confidence.
        routed: float64 [n_points], share routed, increasing from 0 to 1. Inputs that tie in confidence are routed
            together, so that there are as many points as thresholds.
        cost: float64 [n_points], relative to full precision.
        changes: float64 [n_points], recovered share of the changed answers, 0 to 1, never falling; None if none
            changed.
        accuracy: float64 [n_points], recovered share of the accuracy loss, or None.
    """

    score: ConfidenceName
    routed: Floats
    cost: Floats
    changes: Floats | None
    accuracy: Floats | None

    def at(self, share: float) -> int:
        """The point that routes most without routing more than a share."""
        return int(np.searchsorted(self.routed, share * (1 + 1e-12), side="right")) - 1

    def for_changes(self, share: float) -> int | None:
        """The first point that gives back at least a share of the changed answers."""
        return None if self.changes is None else int(np.searchsorted(self.changes, share * (1 - 1e-12), side="left"))

    def row(self, point: int) -> dict[str, Any]:
        """One point, as a JSON object."""
        columns = {name: getattr(self, name) for name in ("routed", "cost", "changes", "accuracy")}
        return {name: None if column is None else float(column[point]) for name, column in columns.items()}

    def rows(self, shares: Sequence[float] = SHARES) -> list[dict[str, Any]]:
        """The points `at` these shares, as JSON objects."""
        return [self.row(self.at(share)) for share in shares]


def cost_curve(evidence: Evidence, *, score: ConfidenceName = "gap", speed_up: float = SPEED_UP) -> CostCurve:
    """Route the inputs of a run in order of confidence, the least sure first.

    Exact, but of this very run: a threshold that is to be used is set on one part of the inputs and judged on another
    (`sweep`).
    """
    base, answers = relative_cost(0, speed_up), answers_of(evidence, score)
    order = np.argsort(answers.confidence, kind="stable")
    # a point after the last input of each value, and one before all
    ends = np.flatnonzero(np.diff(answers.confidence[order]) > 0) + 1
    points = np.array([0, *ends, len(order)])

    def gained(values: NDArray[Any]) -> Floats:
        sums = np.insert(np.cumsum(values[order].astype(np.float64)), 0, 0.0)
        return np.asarray(sums[points] / sums[-1])

    routed = points / len(order)
    return CostCurve(
        score=score,
        routed=routed,
        cost=base + routed,
        changes=gained(answers.changed) if answers.changed.any() else None,
        accuracy=gained(np.nan_to_num(answers.gain)) if answers.accuracy_reason is None else None,
    )


# --- the advice: route unsure inputs, or spend more bits ------------------------------------------

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
        limit: share at risk from which on routing is not advised: break_even or the majority, whichever is less.
        break_even: routed share at which routing costs what full precision does.
        straddles: whether the interval of at_risk holds the limit, so that more inputs could change the advice.
        above_noise: whether the exact McNemar test tells the flips from the noise floor (p < 0.05); None if that was
            not measured.
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
        return dict(as_json(self))

    def sentences(self, allocate: str | None = None) -> list[str]:
        """The advice in words; `allocate` is the command that allocates, where there is one."""
        changed, risk = self.flip_rate, self.at_risk
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
        if risk.value is None:
            return ["No recommendation: no input has two items, so none can change."]
        told = (
            f"Recommended: {self.fix}. {_percent(risk.value)} of {risk.n:,} inputs are at risk (95 % "
            f"interval {_percent(risk.low)} to {_percent(risk.high)}), "
        )
        limit = f"the {_percent(self.limit)} at which routing costs what full precision does"
        if self.limit < self.break_even:
            limit = "half of them"
        if self.fix == "route":
            lines = [f"{told}which is less than {limit}: most inputs can be left to the candidate."]
        else:
            why = "full precision for all of them costs less"
            if risk.value >= MAJORITY:
                why = "most inputs would be asked twice"
            how = f": {allocate}" if allocate else ""
            lines = [
                f"{told}not less than {limit}: {why}. Spend more bits, and spend them on the layers that move the "
                f"gap{how}."
            ]
        if self.straddles:
            lines.append(
                f"The interval holds the limit of {_percent(self.limit)}, so these inputs are too "
                "few to be sure of that; the other fix may do as well."
            )
        if self.above_noise is False:
            lines.append(
                f"The changes ({_percent(changed.value)}) are not shown to be more than noise "
                f"alone makes ({_percent(self.noise_floor.value)}); maybe nothing need be done."
            )
        return lines


def advise(evidence: Evidence, *, speed_up: float = SPEED_UP) -> Advice:
    """Decide between routing, more bits and nothing.

    Nothing, if no answer changed or no more than between two runs of the reference; routing, if fewer are at risk
    than both the break-even share and a half; allocation otherwise.
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
    fix: Fix = "allocate"
    if (flip_rate.value or 0.0) <= (noise_floor.value or 0.0):
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

    >>> allocate_command("minilm@W3-gptq", classes=False)
    'quantdrift allocate minilm@W3.5-g128-gptq+gap --data FOLDER'
    """
    try:
        whole = parse(spec)
        scheme = whole.scheme
        if scheme.criterion is not None or scheme.weight_bits + EXTRA_BITS > MAX_BITS:
            return None
        rest = str(scheme).removeprefix(f"W{scheme.weight_bits:g}")
        head, plus, options = rest.partition("+")
        more = parse(f"{whole.model}@W{scheme.weight_bits + EXTRA_BITS:g}{head}+gap{plus}{options}")
    except SpecError:  # two models, say, or an option that a criterion does not go with
        return None
    return f"quantdrift {'run' if classes else 'allocate'} {more} --data FOLDER"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.1f} %"


# --- runs and groups of them ----------------------------------------------------------------------


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

    scores: Sequence[ConfidenceName] = CONFIDENCES
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
    points: Sequence[SweepPoint] = ()
    rescoring: Sequence[Rescoring] = ()
    restoring: Restoring | None = None
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
        point = self.curves[0].for_changes(self.recover)
        if point is None:
            return None
        row = {name: value for name, value in self.curves[0].row(point).items() if name != "accuracy"}
        return {"score": self.curves[0].score, **row}

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        record = self.run.record
        told = self.advice.sentences(allocate_command(record["spec"], classes=self.logits))
        return {
            "path": str(self.run.path),
            "spec": record["spec"],
            "data": record["data"]["name"],
            "n_inputs": self.n_inputs,
            "scores_are": "logits" if self.logits else "similarities",
            "similarity": self.similarity,
            "advice": {**self.advice.to_json(), "sentences": told},
            "operating_point": self.operating,
            "sweep": as_json(self.points),
            "cost_curves": {curve.score: curve.rows() for curve in self.curves},
            "rescoring": as_json(self.rescoring),
        }


def study_run(run: Run, settings: RouteSettings) -> RoutedRun:
    """Look at one run.

    For logits: the sweep and the cost curves of every confidence. For similarities only the gap is one, and the first
    items are rescored instead.
    """
    evidence, speed_up = run.exact_evidence("the advice of what to do"), settings.speed_up
    if evidence.n_inputs == 0:
        raise RunError(f"{run.path} has no inputs")
    logits = evidence.confidence is not None
    scores = [score for score in settings.scores if logits or score == "gap"]
    if not scores:
        raise RunError(
            f"{run.path} ranks by similarities, whose softmax is no probability, so "
            f"{' and '.join(settings.scores)} cannot be read; expected --score gap"
        )
    found = RoutedRun(
        run=run,
        n_inputs=evidence.n_inputs,
        logits=logits,
        advice=advise(evidence, speed_up=speed_up),
        curves=[cost_curve(evidence, score=score, speed_up=speed_up) for score in scores],
        recover=settings.recover,
        two_classes=int(evidence.n_items.max()) == 2,  # noqa: PLR2004 -- two
    )
    if logits:
        how = {name: getattr(settings, name) for name in ("percentiles", "share", "n_splits", "seed")}
        return replace(found, points=sweep(evidence, scores=scores, **how))
    return replace(
        found,
        rescoring=rescore(evidence, percentiles=sorted({*settings.percentiles, 100.0})),
        restoring=restoring_point(evidence, settings.recover, base_cost=relative_cost(0, speed_up)),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutedGroup:
    """The runs of one spec, at least one, and whether they rank by logits."""

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


def mean_curve(curves: Sequence[CostCurve], shares: Sequence[float] = SHARES) -> list[dict[str, Any]]:
    """Points of several cost curves at the same routed shares, each column averaged over the runs that have it."""
    tables = zip(*(curve.rows(shares) for curve in curves), strict=True)
    return [{name: _mean_of_known([row[name] for row in rows]) for name in rows[0]} for rows in tables]


def mean_rescoring(tables: Sequence[Sequence[Rescoring]]) -> list[Rescoring]:
    """The mean of rescoring tables, for each percentile and depth that all of them have."""
    by_place: dict[tuple[float, int], list[Rescoring]] = {}
    for entry in (entry for table in tables for entry in table):
        by_place.setdefault((entry.percentile, entry.k), []).append(entry)
    found = []
    for entries in by_place.values():
        names = ["encoded", "documents", "restored", "ceiling", "change", "loss"]
        means: dict[str, Any] = {name: _mean_of_known([getattr(entry, name) for entry in entries]) for name in names}
        metrics = {entry.metric for entry in entries} - {None}
        if len(metrics) > 1:  # means of two would be of neither
            means |= {"change": None, "loss": None}
        if len(entries) == len(tables):
            found.append(replace(entries[0], metric=metrics.pop() if len(metrics) == 1 else None, **means))
    return found


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
