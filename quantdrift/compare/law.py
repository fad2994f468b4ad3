"""The law over many runs: the larger the median separation ratio, the fewer answers change.

Unlike reachability this is an observation. It is worth as much as the runs it is computed from, so
a line is judged on runs it never saw (`r_squared`), and beside its rivals (`held_out`).

Source: paper, section 5.2 (the contender set is the mechanism).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.errors import TheoryError, UnknownNameError
from quantdrift.evidence import Evidence
from quantdrift.runs import Run, refuse_copies
from quantdrift.spec import FULL_BITS, Spec, Versus, parse_pair
from quantdrift.statistics import Estimate, rate_estimate, undefined

# --- The law over many runs: the larger the median separation ratio, the fewer answers change -----

Floats = NDArray[np.float64]

Predictor = Literal["separation", "gap", "epsilon", "n_items"]
"""What a change rate is explained by; the first is the law's, the others are its rivals."""

PREDICTORS: tuple[Predictor, ...] = get_args(Predictor)

LEAST_RUNS = 3  # two points always correlate perfectly
_LEAST_FOR_LINE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LawPoint:
    """One run as a point: medians over its inputs, and its change rate.

    Attributes:
        label: names the run; unique among the points that are compared.
        separation: median separation ratio, at least 0; +inf for an exact copy.
        gap: median gap of the reference, in score units, at least 0.
        epsilon: median epsilon, in score units, at least 0.
        n_items: median number of items scored, at least 1.
        change_rate: share of inputs whose top-1 changed, in [0, 1].
    """

    label: str
    separation: float
    gap: float
    epsilon: float
    n_items: float
    change_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A least-squares line: change rate = intercept + slope * log10(predictor).

    Attributes:
        predictor: what it reads.
        slope: change of the rate per factor of ten.
        intercept: rate at a predictor of 1.
        pearson: correlation of rate and log10(predictor) on the points fitted, in [-1, 1]; 0 if
            all rates are equal.
        n: number of points fitted.
    """

    predictor: Predictor
    slope: float
    intercept: float
    pearson: float
    n: int

    def predict(self, points: Sequence[LawPoint]) -> Floats:
        """The rate the line gives each point, float64 [n_points].

        It is a straight line: far out it leaves [0, 1], and it is not clipped. Infinite or NaN
        where the predictor has no finite logarithm.
        """
        return self.intercept + self.slope * _logarithms(points, self.predictor)


def law_point(evidence: Evidence, *, label: str) -> LawPoint:
    """One run as a point of the law.

    Args:
        evidence: of the run.
        label: names it.

    Raises:
        TheoryError: no input has two items, so that there is no gap.

    Source: paper, section 5.2.
    """
    separation, gap = perturbation.separation_ratio(evidence), perturbation.gap(evidence)
    defined, scored = ~np.isnan(separation), evidence.n_items > 0
    if not defined.any():
        raise TheoryError(f"{label}: a point needs an input with two items to compare; got none")
    return LawPoint(
        label=label,
        separation=float(np.median(separation[defined])),
        gap=float(np.median(gap[defined])),
        epsilon=float(np.median(perturbation.epsilon(evidence)[scored])),
        n_items=float(np.median(evidence.n_items[scored])),
        change_rate=float(perturbation.flips(evidence)[scored].mean()),
    )


def spearman(points: Sequence[LawPoint], predictor: Predictor = "separation") -> Estimate:
    """Rank correlation of a predictor with the change rate over runs.

    Pearson correlation of the ranks, ties sharing their mean rank. Infinite predictors count as
    the greatest. Runs that share a model or a corpus are not independent, so there is no p-value.

    Args:
        points: the runs.
        predictor: which of their quantities.

    Returns:
        From -1 to 1; the law says close to -1 for the separation. Undefined for fewer than three
        runs, and if either side is the same in all of them.

    Source: paper, section 5.2.
    """
    from scipy import stats  # noqa: PLC0415 -- takes long to import

    values, rates = _values(points, predictor), _rates(points)
    if len(points) < LEAST_RUNS:
        return undefined(f"a rank correlation needs {LEAST_RUNS} runs; got {len(points)}")
    for what, side in ((predictor, values), ("change rate", rates)):
        if (side == side[0]).all():
            return undefined(f"the {what} is the same in all runs")
    spearman: Any = stats.spearmanr  # the stubs for older numpy want a shape of known length
    result = spearman(values, rates)
    return Estimate(value=float(result.statistic), n=len(points))


def fit_line(points: Sequence[LawPoint], predictor: Predictor = "separation") -> Line:
    """The least-squares line of the change rate on log10 of a predictor.

    Args:
        points: the runs. One whose predictor is 0 or infinite has no logarithm and is left out.
        predictor: which of their quantities.

    Raises:
        TheoryError: fewer than two runs with different finite logarithms are left.

    Source: paper, section 5.2.

    >>> rates = {0.01: 0.5, 0.1: 0.3, 1: 0.1}
    >>> line = fit_line([LawPoint(label=str(x), separation=x, gap=1, epsilon=1, n_items=9,
    ...                           change_rate=y) for x, y in rates.items()])
    >>> round(line.slope, 6), round(line.intercept, 6), round(line.pearson, 6)
    (-0.2, 0.1, -1.0)
    """
    logarithms, rates = _usable(points, predictor)
    if len(np.unique(logarithms)) < _LEAST_FOR_LINE:
        raise TheoryError(
            f"a line on log10({predictor}) needs two runs with different finite values; "
            f"got {len(np.unique(logarithms))} among {len(points)} runs"
        )
    x, y = logarithms - logarithms.mean(), rates - rates.mean()
    slope = float(x @ y / (x @ x))
    spread = float(np.sqrt((x @ x) * (y @ y)))
    return Line(
        predictor=predictor,
        slope=slope,
        intercept=float(rates.mean() - slope * logarithms.mean()),
        pearson=float(x @ y) / spread if spread > 0 else 0.0,
        n=len(rates),
    )


def r_squared(line: Line, points: Sequence[LawPoint]) -> Estimate:
    """Share of the variance of the change rate that a line explains on these runs.

    1 - sum (rate - predicted)^2 / sum (rate - mean rate of these runs)^2. Nothing is fitted again.

    Args:
        line: fitted on other runs.
        points: the runs to judge it on; those without a finite logarithm are left out.

    Returns:
        At most 1 (exact); 0 is no better than the mean of these runs; can be negative. Undefined
        for fewer than two runs, and if all their rates are the same.

    Source: paper, section 5.2.
    """
    logarithms, rates = _usable(points, line.predictor)
    if len(rates) < _LEAST_FOR_LINE:
        return undefined(f"R2 needs two runs with a finite logarithm; got {len(rates)}")
    residuals = rates - (line.intercept + line.slope * logarithms)
    around_mean = rates - rates.mean()
    total = float(around_mean @ around_mean)
    if (rates == rates[0]).all():
        return undefined("the change rate is the same in all runs")
    return Estimate(value=1 - float(residuals @ residuals) / total, n=len(rates))


def _values(points: Sequence[LawPoint], predictor: Predictor) -> Floats:
    return np.array([getattr(point, predictor) for point in points], dtype=np.float64)


def _rates(points: Sequence[LawPoint]) -> Floats:
    return np.array([point.change_rate for point in points], dtype=np.float64)


def _logarithms(points: Sequence[LawPoint], predictor: Predictor) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log10(_values(points, predictor)))


def _usable(points: Sequence[LawPoint], predictor: Predictor) -> tuple[Floats, Floats]:
    logarithms = _logarithms(points, predictor)
    finite = np.isfinite(logarithms)
    return logarithms[finite], _rates(points)[finite]


# --- held out -------------------------------------------------------------------------------------

_LEAST_GROUPS = 2
_LEAST_FOR_R2 = 2  # one rate has no variance to explain


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutGroup:
    """Runs held out together, and what a line fitted on the other runs says of them.

    Attributes:
        name: of the group.
        line: fitted on the other runs, or None.
        predicted: rate the line gives each run with a finite logarithm, by label; not clipped.
        r_squared: of the line on these runs, around their own mean; at most 1, can be negative.
        mean_error: mean of abs(rate - predicted) over these runs, 0 is exact.
        reason: why there is no line.
    """

    name: str
    line: Line | None
    predicted: Mapping[str, float]
    r_squared: Estimate
    mean_error: Estimate
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """All groups held out, and how well their runs were predicted together.

    Attributes:
        predictor: what the lines read.
        groups: each with its own line.
        r_squared: pooled, as the module says; at most 1, can be negative.
        mean_error: mean of abs(rate - predicted) over all runs predicted, 0 is exact.
    """

    predictor: Predictor
    groups: tuple[HeldOutGroup, ...]
    r_squared: Estimate
    mean_error: Estimate


def leave_one_out(groups: Mapping[str, Sequence[LawPoint]], predictor: Predictor = "separation") -> HeldOut:
    """Hold out each group in turn, and predict it by the line through all the others.

    Args:
        groups: runs by the name of their group, e.g. their corpus; no run in two of them.
        predictor: what the lines read.

    Returns:
        One entry per group, in that order, and the pooled result. A group whose others give no
        line has the reason, and no part in the pooled result.

    Raises:
        TheoryError: fewer than two groups, or a label that occurs twice.

    Source: paper, section 5.2.

    >>> def at(x, rate):
    ...     return LawPoint(label=f"{x}", separation=x, gap=1, epsilon=1, n_items=9,
    ...                     change_rate=rate)
    >>> held = leave_one_out({"a": [at(0.1, 0.4), at(1, 0.2)], "b": [at(0.01, 0.6), at(10, 0.1)]})
    >>> [round(rate, 6) for group in held.groups for rate in group.predicted.values()]
    [0.433333, 0.266667, 0.6, 0.0]
    """
    if len(groups) < _LEAST_GROUPS:
        raise TheoryError(f"leaving one group out needs {_LEAST_GROUPS} groups; got {', '.join(groups) or 'none'}")
    _check_labels([point for members in groups.values() for point in members])
    judged = []
    for name, members in groups.items():
        others = [point for other in groups if other != name for point in groups[other]]
        judged.append((_judge(name, others, members, predictor), members))
    return _pooled(predictor, judged)


def hold_out(
    fitted: Sequence[LawPoint], held: Sequence[LawPoint], *, name: str, predictor: Predictor = "separation"
) -> HeldOut:
    """Predict some runs by the line through others.

    Args:
        fitted: runs the line is fitted on.
        held: runs it is judged on.
        name: says what is held out.
        predictor: what the line reads.

    Returns:
        One group; pooled and own result are the same.

    Raises:
        TheoryError: a label occurs twice, so that a run held out could have been fitted.

    Source: paper, section 5.2.
    """
    _check_labels([*fitted, *held])
    return _pooled(predictor, [(_judge(name, fitted, held, predictor), held)])


def split_by_patterns(points: Sequence[LawPoint], patterns: Sequence[str]) -> tuple[list[LawPoint], list[LawPoint]]:
    """Sort runs into those to fit and those to hold out, in that order.

    Args:
        points: the runs.
        patterns: a run is held out if its label holds one of them, or matches it as a whole with
            the wildcards *, ? and [...]; case counts.

    Raises:
        TheoryError: a pattern matches no run, or all of them leave none to fit.
    """
    held: set[str] = set()
    for pattern in patterns:
        matched = {point.label for point in points if pattern in point.label or fnmatchcase(point.label, pattern)}
        if not matched:
            few = "; ".join(point.label for point in points[:3])
            raise TheoryError(
                f"no run matches {pattern!r}; expected a part of a label, or wildcards for all of "
                f"it. Labels are like: {few}"
            )
        held |= matched
    if len(held) == len({point.label for point in points}):
        raise TheoryError(
            f"{', '.join(map(repr, patterns))} match{'' if len(patterns) > 1 else 'es'} every run, "
            "so that none is left to fit a line on; expected a narrower pattern"
        )
    return ([point for point in points if point.label not in held], [point for point in points if point.label in held])


def left_out_of_line(points: Sequence[LawPoint], predictor: Predictor = "separation") -> tuple[LawPoint, ...]:
    """Runs whose predictor is 0 or infinite: they have a rank, but no place on a line."""
    return tuple(point for point in points if not 0 < getattr(point, predictor) < np.inf)


def _judge(name: str, fitted: Sequence[LawPoint], held: Sequence[LawPoint], predictor: Predictor) -> HeldOutGroup:
    line, reason = None, None
    absent = set(left_out_of_line(held, predictor))
    usable = [point for point in held if point not in absent]
    predicted: NDArray[np.float64] = np.empty(0)
    try:
        line = fit_line(fitted, predictor)
        predicted = line.predict(usable)
    except TheoryError as error:
        reason, usable = str(error), []
    rates = np.array([point.change_rate for point in usable])
    none = undefined("there is no line")
    return HeldOutGroup(
        name=name,
        line=line,
        predicted=dict(zip((point.label for point in usable), predicted.tolist(), strict=True)),
        r_squared=none if line is None else r_squared(line, held),
        mean_error=none if line is None else _mean_error(rates - predicted),
        reason=reason,
    )


def _pooled(predictor: Predictor, judged: Sequence[tuple[HeldOutGroup, Sequence[LawPoint]]]) -> HeldOut:
    pairs = [
        (point.change_rate, group.predicted[point.label])
        for group, members in judged
        for point in members
        if point.label in group.predicted
    ]
    rates, predicted = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    residuals = rates - predicted
    if len(rates) < _LEAST_FOR_R2:
        score = undefined(f"R2 needs {_LEAST_FOR_R2} runs that were predicted; got {len(rates)}")
    elif (rates == rates[0]).all():
        score = undefined("the change rate is the same in all runs held out")
    else:
        around_mean = rates - rates.mean()
        explained = 1 - float(residuals @ residuals) / float(around_mean @ around_mean)
        score = Estimate(value=explained, n=len(rates))
    return HeldOut(
        predictor=predictor,
        groups=tuple(group for group, _ in judged),
        r_squared=score,
        mean_error=_mean_error(residuals),
    )


def _mean_error(residuals: NDArray[np.float64]) -> Estimate:
    if not len(residuals):
        return undefined("no run has a finite logarithm")
    return Estimate(value=float(np.abs(residuals).mean()), n=len(residuals))


def _check_labels(points: Sequence[LawPoint]) -> None:
    labels = [point.label for point in points]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise TheoryError(f"every run must be there once; these occur again: {', '.join(twice)}")


# --- law runs -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LawRun:
    """One run, and where it comes from.

    Attributes:
        path: its folder.
        point: medians and change rate, under a label no other run has.
        changed: the change rate with its 95 % Wilson interval, in [0, 1].
        spec: the pair.
        data: name of the corpus.
        n_documents: its size.
        stored_bits: weight bits of a candidate that was stored; None for one that a scheme made.
    """

    path: Path
    point: LawPoint
    changed: Estimate
    spec: Spec | Versus
    data: str
    n_documents: int
    stored_bits: float | None = None

    @property
    def bits(self) -> str:
        """Weight and activation bits as a spec spells them, e.g. W4 or W4A8."""
        if isinstance(self.spec, Versus):
            return "stored" if self.stored_bits is None else f"W{self.stored_bits:g}"
        return str(self.spec.scheme).partition("-")[0]

    @property
    def width(self) -> tuple[float, int]:
        """Weight and activation bits, by which runs are sorted; 16 are bits that are left alone."""
        if isinstance(self.spec, Versus):
            return self.stored_bits or FULL_BITS, FULL_BITS
        return self.spec.scheme.weight_bits, self.spec.scheme.activation_bits or FULL_BITS


def spec_of(run: Run) -> Spec | Versus:
    """The pair of a run.

    Raises:
        SpecError: this version cannot read what it names.
    """
    return parse_pair(run.record["spec"])


def law_runs(runs: Sequence[Run]) -> list[LawRun]:
    """Read runs as points.

    A label is `SPEC on DATA`; where two runs share it, the number of documents and then the folder
    are added.

    Args:
        runs: as found on disk; each folder once.

    Returns:
        One per run, in that order.

    Raises:
        RunError: a run lies there twice, or one cannot be read.
        TheoryError: a run has no input with two items.

    Source: paper, section 5.2.
    """
    specs = [spec_of(run) for run in runs]
    refuse_copies(runs)
    found = [_law_run(run, spec) for run, spec in zip(runs, specs, strict=True)]
    more: tuple[Callable[[LawRun], str], ...] = (
        lambda run: f"{run.n_documents:,} documents",
        lambda run: str(run.path),
    )
    for addition in more:
        times = Counter(run.point.label for run in found)
        found = [
            run
            if times[run.point.label] == 1
            else replace(run, point=replace(run.point, label=f"{run.point.label}, {addition(run)}"))
            for run in found
        ]
    return found


def _stored_bits(run: Run) -> float | None:
    """What its method calls itself, else what was counted in its files."""
    nominal = run.record.get("quantization", {}).get("nominal_bits")
    counted = run.record.get("bits_per_weight") or {}  # null where a server has the weights
    found = nominal or counted.get("linear")
    return None if found is None else round(float(found), 2)


def _law_run(run: Run, spec: Spec | Versus) -> LawRun:
    evidence = run.exact_evidence("the law")
    data = str(run.record["data"]["name"])
    n_documents = run.record["data"].get("n_documents")
    scored = evidence.n_items > 0
    point = law_point(evidence, label=f"{spec} on {data}")  # says so if nothing was scored
    return LawRun(
        path=run.path,
        point=point,
        changed=rate_estimate(perturbation.flips(evidence)[scored].astype(np.float64)),
        spec=spec,
        data=data,
        n_documents=int(evidence.n_items.max()) if n_documents is None else int(n_documents),
        stored_bits=_stored_bits(run) if isinstance(spec, Versus) else None,
    )


# --- The law on a set of runs: rank correlations, the line, and the line on runs it never saw -----

Grouping = Literal["data", "scheme"]
"""What is left out together: all runs on one corpus, or all runs at one number of bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LawStudy:
    """What the runs say of the law.

    Attributes:
        runs: all of them.
        left_out: "data" or "scheme" where each group is left out in turn, else the patterns.
        spearman: rank correlation of each predictor with the change rate over all runs.
        within: likewise over the runs of each corpus.
        line: on the median separation, through the runs that are not held out by a pattern (so
            through all runs where groups are left out in turn); None without one.
        held_out: by predictor, how lines predict runs they never saw; empty without any.
        reason: why there is no line, or nothing held out.
    """

    runs: tuple[LawRun, ...]
    left_out: Grouping | tuple[str, ...]
    spearman: Mapping[Predictor, Estimate]
    within: Mapping[str, Mapping[Predictor, Estimate]]
    line: Line | None
    held_out: Mapping[Predictor, HeldOut]
    reason: str | None = None


def study_law(runs: Sequence[LawRun], *, by: str = "data", patterns: Sequence[str] = ()) -> LawStudy:
    """Compute everything that is said of the law on some runs.

    Args:
        runs: at least one.
        by: "data" leaves each corpus out in turn, "scheme" each number of bits.
        patterns: hold out the runs whose label matches any, instead.

    Raises:
        UnknownNameError: `by` is neither.
        TheoryError: the patterns match nothing, or everything.

    Source: paper, section 5.2.
    """
    groups = grouped(runs, by)
    points = [run.point for run in runs]
    fitted, held = split_by_patterns(points, patterns) if patterns else (points, [])
    held_out: dict[Predictor, HeldOut] = {}
    line, reason = None, None
    try:
        line = fit_line(fitted)
    except TheoryError as error:
        reason = str(error)
    if patterns:
        name = " or ".join(patterns)
        held_out = {which: hold_out(fitted, held, name=name, predictor=which) for which in PREDICTORS}
    elif len(groups) >= _LEAST_GROUPS:
        held_out = {which: leave_one_out(groups, which) for which in PREDICTORS}
    elif reason is None:
        other = "--by scheme" if by == "data" else "--by data"
        reason = (
            f"all runs are on one corpus, {next(iter(groups))}"
            if by == "data"
            else f"all runs are at {next(iter(groups))}"
        ) + f", so none can be left out by {by}; try {other} or --hold-out PATTERN"
    return LawStudy(
        runs=tuple(runs),
        left_out=tuple(patterns) if patterns else "data" if by == "data" else "scheme",
        spearman=_spearman(points),
        within={name: _spearman(members) for name, members in grouped(runs, "data").items()},
        line=line,
        held_out=held_out,
        reason=reason,
    )


def grouped(runs: Sequence[LawRun], by: str) -> dict[str, list[LawPoint]]:
    """Points by the corpus or the bits of their run, in order of appearance.

    Raises:
        UnknownNameError: `by` is neither "data" nor "scheme".
    """
    if by not in get_args(Grouping):
        raise UnknownNameError("grouping", by, get_args(Grouping), hint="(--by data or scheme)")
    groups: dict[str, list[LawPoint]] = {}
    for run in runs:
        groups.setdefault(run.data if by == "data" else run.bits, []).append(run.point)
    return groups


def _spearman(points: Sequence[LawPoint]) -> dict[Predictor, Estimate]:
    return {predictor: spearman(points, predictor) for predictor in PREDICTORS}


# --- What runs say of the law, in plain sentences; above all where they do not bear it out --------

NAMES: dict[Predictor, str] = {
    "separation": "median separation ratio",
    "gap": "median gap alone",
    "epsilon": "median epsilon alone",
    "n_items": "number of items alone",
}

FEW = 10
"""Below this, one run more or less can move a rank correlation by tenths."""
ORDERED = -0.5
"""A Spearman correlation above this is not the order the law claims; the paper's are near -0.9."""
_NAMED = 4


def law_findings(study: LawStudy) -> list[str]:
    """The findings of a study, one sentence or two each.

    Args:
        study: as computed by `study_law`.
    """
    return [*_order(study), *_rivals(study), *_unseen(study), *_left_out(study)]


def _order(study: LawStudy) -> list[str]:
    n, value = len(study.runs), study.spearman["separation"].value
    if value is None:
        return [f"The law cannot be tried on these runs: {study.spearman['separation'].reason}."]
    over = f"Spearman {value:+.2f} over {n} runs"
    if value > ORDERED:
        lines = [f"The order is NOT as the law says: {over}, where the law says close to -1."]
    else:
        lines = [f"As the law says, runs with a larger separation change fewer answers ({over})."]
    if n < FEW:
        lines.append(f"{n} runs are too few to rely on that; {FEW} or more are better.")
    apart = {
        name: estimates["separation"].value
        for name, estimates in study.within.items()
        if (within := estimates["separation"].value) is not None and within > ORDERED
    }
    if apart and len(study.within) > 1:
        names = ", ".join(f"{name} ({value:+.2f})" for name, value in apart.items())
        lines.append(f"Within these corpora the order is NOT as the law says: {names}.")
    return lines


def _rivals(study: LawStudy) -> list[str]:
    own = study.spearman["separation"].value
    strengths = {
        predictor: abs(value) for predictor in PREDICTORS[1:] if (value := study.spearman[predictor].value) is not None
    }
    if own is None or not strengths:
        return []
    best = max(strengths, key=lambda predictor: strengths[predictor])
    rival, value = NAMES[best], study.spearman[best].value
    # what is printed to two digits is not told apart here either
    if round(strengths[best], 2) < round(abs(own), 2):
        line = f"No rival orders all these runs as well; the best is the {rival} ({value:+.2f})."
        closer = _closer_within(study, best)
        if closer:
            line += f" Within one corpus it does: {', '.join(closer)}."
        return [line]
    return [
        f"The {rival} orders these runs as well ({value:+.2f}), so they do not show that the "
        "separation explains more; runs on corpora with other gaps could."
    ]


def _closer_within(study: LawStudy, rival: Predictor) -> list[str]:
    """The corpora within which a rival orders the runs as well as the separation does."""
    names = []
    for name, estimates in study.within.items():
        own, other = estimates["separation"].value, estimates[rival].value
        if own is not None and other is not None and round(abs(other), 2) >= round(abs(own), 2):
            names.append(name)
    return names


def _unseen(study: LawStudy) -> list[str]:
    if not study.held_out:
        return [f"The line was not tried on runs it never saw: {study.reason}."]
    held = study.held_out["separation"]
    score, error = held.r_squared.value, held.mean_error.value
    if score is None or error is None:
        return [f"The line could not be judged on runs it never saw: {held.r_squared.reason}."]
    whose = {"data": "fitted without their corpus", "scheme": "fitted without their bits"}
    fitted = (
        whose[study.left_out]
        if isinstance(study.left_out, str)
        else f"fitted on the other {0 if study.line is None else study.line.n} runs"
    )
    lines = [
        f"The change rates of {held.r_squared.n} runs, predicted by a line {fitted}, are off by "
        f"{100 * error:.1f} percentage points on average (R2 {_score(score)})."
        + (" That is worse than their mean: the line does NOT carry over." if score < 0 else "")
    ]
    worse = {group.name: value for group in held.groups if (value := group.r_squared.value) is not None and value < 0}
    if worse and len(held.groups) > 1:
        names = ", ".join(f"{name} (R2 {_score(value)})" for name, value in worse.items())
        lines.append(f"Taken alone, these are predicted worse than by their own mean rate: {names}.")
    below = sum(rate < 0 for group in held.groups for rate in group.predicted.values())
    if below:
        lines.append(
            f"For {below} of them the line says less than 0 %: it is straight, is not clipped, and is no guide far out."
        )
    lines += [f"Not predicted: {group.name} ({group.reason})." for group in held.groups if group.reason]
    return lines


def _left_out(study: LawStudy) -> list[str]:
    absent = left_out_of_line([run.point for run in study.runs])
    lines = []
    for what, points in (
        ("infinite (an exact copy for most inputs)", [p for p in absent if p.separation > 0]),
        ("0 (most inputs are tied at the top)", [p for p in absent if p.separation == 0]),
    ):
        if points:
            names = "; ".join(point.label for point in points[:_NAMED])
            more = f" and {len(points) - _NAMED} more" if len(points) > _NAMED else ""
            lines.append(f"Left out of the line, as their median separation is {what}: {names}{more}.")
    return lines


def _score(value: float) -> str:
    return "below -10" if value < -10 else f"{value:.2f}"  # noqa: PLR2004 -- so bad is bad enough


# --- What runs say of the law, as JSON values -----------------------------------------------------


def law_json(study: LawStudy, figure: Path | None = None) -> dict[str, object]:
    """Every run and every result, as JSON values.

    JSON has no infinity: a separation of +infinity is null, and `separation_is_infinite` is true.

    Args:
        study: as computed by `study_law`.
        figure: file that was drawn, or None.
    """
    held = study.held_out.get("separation")
    unseen = {label: rate for group in (held.groups if held else ()) for label, rate in group.predicted.items()}
    by = study.left_out if isinstance(study.left_out, str) else "pattern"
    return {
        "runs": [_run_json(run, unseen.get(run.point.label)) for run in study.runs],
        "spearman": {
            "all": {name: value.to_json() for name, value in study.spearman.items()},
            "by_data": {
                data: {name: value.to_json() for name, value in estimates.items()}
                for data, estimates in study.within.items()
            },
        },
        "line": _line_json(study.line),
        "held_out": {
            "by": by,
            "patterns": [] if isinstance(study.left_out, str) else list(study.left_out),
            "predictors": {name: _held_json(one) for name, one in study.held_out.items()},
            "reason": study.reason,
        },
        "findings": law_findings(study),
        "figure": None if figure is None else str(figure),
    }


def _run_json(run: LawRun, unseen: float | None) -> dict[str, object]:
    point = run.point
    finite = math.isfinite(point.separation)
    return {
        "path": str(run.path),
        "label": point.label,
        "spec": str(run.spec),
        "data": run.data,
        "n_documents": run.n_documents,
        "separation": point.separation if finite else None,
        "separation_is_infinite": not finite,
        "gap": point.gap,
        "epsilon": point.epsilon,
        "n_items": point.n_items,
        "change_rate": run.changed.to_json(),
        "predicted_unseen": unseen,
    }


def _line_json(line: Line | None) -> dict[str, object] | None:
    if line is None:
        return None
    return {
        "predictor": line.predictor,
        "slope": line.slope,
        "intercept": line.intercept,
        "pearson": line.pearson,
        "n": line.n,
    }


def _held_json(held: HeldOut) -> dict[str, object]:
    return {
        "r_squared": held.r_squared.to_json(),
        "mean_error": held.mean_error.to_json(),
        "groups": [
            {
                "name": group.name,
                "labels": list(group.predicted),
                "line": _line_json(group.line),
                "r_squared": group.r_squared.to_json(),
                "mean_error": group.mean_error.to_json(),
                "reason": group.reason,
            }
            for group in held.groups
        ],
    }
