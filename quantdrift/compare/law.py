"""The law over many runs: the larger the median separation ratio, the fewer answers change.

It is an observation, worth as much as the runs it is computed from. So a line is judged on runs it never saw, and
beside its rivals: the gap alone, epsilon alone, the number of items.

Source: paper, section 5.2 (the contender set is the mechanism).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.errors import TheoryError, UnknownNameError
from quantdrift.evidence import Evidence
from quantdrift.runs import Run, refuse_copies
from quantdrift.spec import FULL_BITS, Versus, parse_pair
from quantdrift.statistics.estimates import Estimate, as_json, rate_estimate, undefined

Floats = NDArray[np.float64]

Predictor = Literal["separation", "gap", "epsilon", "n_items"]
"""What a change rate is explained by; the first is the law's, the others are its rivals."""

PREDICTORS: tuple[Predictor, ...] = get_args(Predictor)

NAMES: dict[Predictor, str] = {
    "separation": "median separation ratio",
    "gap": "median gap alone",
    "epsilon": "median epsilon alone",
    "n_items": "number of items alone",
}

Grouping = Literal["data", "scheme"]
"""What is left out together: all runs on one corpus, or all runs at one number of bits."""

LEAST_RUNS = 3
"""Two points always correlate perfectly."""
FEW = 10
"""Below this, one run more or less can move a rank correlation by tenths."""
ORDERED = -0.5
"""A Spearman correlation above this is not the order the law claims; the paper's are near -0.9."""
_SHOWN = 4


# --- runs as points -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LawPoint:
    """One run as a point: medians over its inputs, and its change rate.

    Attributes:
        label: names the run.
        separation: median separation ratio, at least 0; +inf for an exact copy.
        gap: median gap of the reference, in score units.
        epsilon: median epsilon, in score units.
        n_items: median number of items scored.
        change_rate: share of inputs whose top-1 changed.
        changed: the same with its 95 % Wilson interval.
        spec: of the run.
        data: name of the corpus.
        n_documents: its size.
        bits: weight and activation bits as a spec spells them, e.g. W4A8; what a stored candidate says of itself.
        width: the same as numbers, by which runs are sorted.
        path: folder of the run.
    """

    label: str
    separation: float
    gap: float
    epsilon: float
    n_items: float
    change_rate: float
    changed: Estimate = Estimate(value=None)  # noqa: RUF009 -- it is frozen
    spec: str = ""
    data: str = ""
    n_documents: int = 0
    bits: str = ""
    width: tuple[float, int] = (FULL_BITS, FULL_BITS)
    path: Path = Path()


def law_point(evidence: Evidence, *, label: str) -> LawPoint:
    """One run as a point of the law."""
    separation, scored = perturbation.separation_ratio(evidence), evidence.n_items > 0
    defined = ~np.isnan(separation)
    if not defined.any():
        raise TheoryError(f"{label}: a point needs an input with two items to compare; got none")
    flips = perturbation.flips(evidence)[scored].astype(np.float64)
    return LawPoint(
        label=label,
        separation=float(np.median(separation[defined])),
        gap=float(np.median(perturbation.gap(evidence)[defined])),
        epsilon=float(np.median(perturbation.epsilon(evidence)[scored])),
        n_items=float(np.median(evidence.n_items[scored])),
        change_rate=float(flips.mean()),
        changed=rate_estimate(flips),
    )


def law_runs(runs: Sequence[Run]) -> list[LawPoint]:
    """Read runs as points, labelled `SPEC on DATA`; documents and folder are added where two share it."""
    refuse_copies(runs)
    points = [_point_of(run) for run in runs]
    for more in ("{0.n_documents:,} documents", "{0.path}"):
        times = Counter(point.label for point in points)
        points = [
            replace(point, label=f"{point.label}, {more.format(point)}") if times[point.label] > 1 else point
            for point in points
        ]
    return points


def _point_of(run: Run) -> LawPoint:
    pair, data = parse_pair(run.record["spec"]), run.record["data"]
    evidence = run.exact_evidence("the law")
    if isinstance(pair, Versus):
        counted = run.record.get("bits_per_weight") or {}  # null where a server has the weights
        stored = run.record.get("quantization", {}).get("nominal_bits") or counted.get("linear")
        bits = "stored" if stored is None else f"W{round(float(stored), 2):g}"
        width = FULL_BITS if stored is None else round(float(stored), 2), FULL_BITS
    else:
        bits = str(pair.scheme).partition("-")[0]
        width = pair.scheme.weight_bits, pair.scheme.activation_bits or FULL_BITS
    point = law_point(evidence, label=f"{pair} on {data['name']}")
    n_documents = int(data.get("n_documents") or evidence.n_items.max())
    return replace(
        point, spec=str(pair), data=str(data["name"]), n_documents=n_documents, bits=bits, width=width, path=run.path
    )


# --- rank correlation and line --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A least-squares line: change rate = intercept + slope * log10(predictor).

    Attributes:
        predictor: what it reads.
        slope: change of the rate per factor of ten.
        intercept: rate at a predictor of 1.
        pearson: correlation on the points fitted, in [-1, 1]; 0 if all rates are equal.
        n: number of points fitted.
    """

    predictor: Predictor
    slope: float
    intercept: float
    pearson: float
    n: int

    def predict(self, points: Sequence[LawPoint]) -> Floats:
        """The rate of each point, float64 [n_points]; far out it leaves [0, 1], and is not clipped."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.intercept + self.slope * np.log10(_values(points, self.predictor)))


def spearman(points: Sequence[LawPoint], predictor: Predictor = "separation") -> Estimate:
    """Rank correlation of a predictor with the change rate over runs, from -1 to 1.

    Ties share their mean rank; infinite predictors count as the greatest. Runs that share a model or a corpus are not
    independent, so there is no p-value. Undefined for fewer than three runs, and if either side is the same in all of
    them.
    """
    from scipy import stats  # noqa: PLC0415 -- takes long to import

    values, rates = _values(points, predictor), _values(points, "change_rate")
    if len(points) < LEAST_RUNS:
        return undefined(f"a rank correlation needs {LEAST_RUNS} runs; got {len(points)}")
    for what, side in ((predictor, values), ("change rate", rates)):
        if (side == side[0]).all():
            return undefined(f"the {what} is the same in all runs")
    correlation: Any = stats.spearmanr  # the stubs for older numpy want a shape of known length
    return Estimate(value=float(correlation(values, rates).statistic), n=len(points))


def fit_line(points: Sequence[LawPoint], predictor: Predictor = "separation") -> Line:
    """The least-squares line of the change rate on log10 of a predictor.

    A point whose predictor is 0 or infinite has no logarithm and is left out.

    >>> points = [LawPoint(label=f"{x}", separation=x, gap=1, epsilon=1, n_items=9, change_rate=y)
    ...           for x, y in ((0.01, 0.5), (0.1, 0.3), (1, 0.1))]
    >>> line = fit_line(points)
    >>> round(line.slope, 6), round(line.intercept, 6), round(line.pearson, 6)
    (-0.2, 0.1, -1.0)
    """
    usable = on_the_axis(points, predictor)
    logarithms, rates = np.log10(_values(usable, predictor)), _values(usable, "change_rate")
    if (different := len(np.unique(logarithms))) < 2:  # noqa: PLR2004 -- points of a line
        raise TheoryError(
            f"a line on log10({predictor}) needs two runs with different finite values; "
            f"got {different} among {len(points)} runs"
        )
    slope, intercept = np.polyfit(logarithms, rates, 1).tolist()
    pearson = float(np.corrcoef(logarithms, rates)[0, 1]) if np.ptp(rates) > 0 else 0.0
    return Line(predictor=predictor, slope=slope, intercept=intercept, pearson=pearson, n=len(rates))


def on_the_axis(points: Sequence[LawPoint], predictor: Predictor = "separation") -> list[LawPoint]:
    """Those with a finite logarithm; the others have a rank, but no place on a line."""
    return [point for point in points if 0 < getattr(point, predictor) < np.inf]


def _values(points: Sequence[LawPoint], name: str) -> Floats:
    return np.array([getattr(point, name) for point in points], dtype=np.float64)


# --- held out -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Runs held out, and how well lines that never saw them predict them.

    Attributes:
        name: of the group; of all groups together the predictor.
        line: fitted on the other runs; None without one, and where each group has its own.
        predicted: rate of each run with a finite logarithm, by label; not clipped.
        r_squared: 1 - sum (rate - predicted)^2 / sum (rate - mean rate of these runs)^2; at most 1, and negative
            where their mean is the better guess.
        mean_error: mean of abs(rate - predicted).
        groups: those held out one after the other.
        reason: why there is no line.
    """

    name: str
    line: Line | None = None
    predicted: Mapping[str, float]
    r_squared: Estimate
    mean_error: Estimate
    groups: tuple[HeldOut, ...] = ()
    reason: str | None = None


def hold_out(groups: Mapping[str, tuple[Sequence[LawPoint], Sequence[LawPoint]]], predictor: Predictor) -> HeldOut:
    """Predict runs by lines through others."""
    judged = []
    for name, (fitted, held) in groups.items():
        line, reason = None, None
        try:
            line = fit_line(fitted, predictor)
        except TheoryError as error:
            reason = str(error)
        usable = on_the_axis(held, predictor) if line else []
        predicted = line.predict(usable).tolist() if line else []
        judged.append(_judged(name, usable, predicted, line=line, reason=reason))
    points = {point.label: point for _, held in groups.values() for point in held}
    predicted = {label: rate for group in judged for label, rate in group.predicted.items()}
    return _judged(predictor, [points[label] for label in predicted], list(predicted.values()), groups=tuple(judged))


def leave_one_out(groups: Mapping[str, Sequence[LawPoint]], predictor: Predictor = "separation") -> HeldOut:
    """Hold out each group of runs in turn, and predict it by the line through all the others."""
    others = {
        name: [point for other, members in groups.items() if other != name for point in members] for name in groups
    }
    return hold_out({name: (others[name], members) for name, members in groups.items()}, predictor)


def _judged(name: str, points: Sequence[LawPoint], predicted: Sequence[float], **more: Any) -> HeldOut:
    rates = _values(points, "change_rate")
    residuals = rates - np.array(predicted, dtype=np.float64)
    score = error = undefined("no run could be predicted")
    if len(rates):
        error = Estimate(value=float(np.abs(residuals).mean()), n=len(rates))
        score = undefined("R2 needs runs with different change rates")
    if len(rates) and np.ptp(rates) > 0:
        score = Estimate(value=1 - float((residuals**2).mean() / rates.var()), n=len(rates))
    labels = [point.label for point in points]
    return HeldOut(
        name=name, predicted=dict(zip(labels, predicted, strict=True)), r_squared=score, mean_error=error, **more
    )


def split_by_patterns(points: Sequence[LawPoint], patterns: Sequence[str]) -> tuple[list[LawPoint], list[LawPoint]]:
    """Sort runs into those to fit and those to hold out, in that order.

    A run is held out if its label holds a pattern, or matches it as a whole with the wildcards *, ? and [...]; case
    counts.
    """
    held: set[str] = set()
    for pattern in patterns:
        matched = {point.label for point in points if pattern in point.label or fnmatchcase(point.label, pattern)}
        if not matched:
            raise TheoryError(
                f"no run matches {pattern!r}; expected a part of a label, or wildcards for all of it. Labels are "
                f"like: {'; '.join(point.label for point in points[:3])}"
            )
        held |= matched
    fitted = [point for point in points if point.label not in held]
    if not fitted:
        raise TheoryError(
            f"{', '.join(map(repr, patterns))} match{'' if len(patterns) > 1 else 'es'} every run, "
            "so that none is left to fit a line on; expected a narrower pattern"
        )
    return fitted, [point for point in points if point.label in held]


# --- the study ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LawStudy:
    """What the runs say of the law.

    Attributes:
        runs: all of them.
        left_out: "data" or "scheme" where each group is left out in turn, else the patterns.
        spearman: rank correlation of each predictor with the change rate over all runs.
        within: likewise over the runs of each corpus.
        line: on the median separation, through the runs that are not held out by a pattern.
        held_out: by predictor, how lines predict runs they never saw; empty without any.
        reason: why there is no line, or nothing held out.
    """

    runs: tuple[LawPoint, ...]
    left_out: Grouping | tuple[str, ...]
    spearman: Mapping[Predictor, Estimate]
    within: Mapping[str, Mapping[Predictor, Estimate]]
    line: Line | None
    held_out: Mapping[Predictor, HeldOut]
    reason: str | None = None


def study_law(runs: Sequence[LawPoint], *, by: str = "data", patterns: Sequence[str] = ()) -> LawStudy:
    """Compute everything that is said of the law on some runs."""
    groups, corpora = _grouped(runs, by), _grouped(runs, "data")
    fitted, held = split_by_patterns(runs, patterns) if patterns else (list(runs), [])
    line, reason, held_out = None, None, {}
    try:
        line = fit_line(fitted)
    except TheoryError as error:
        reason = str(error)
    if patterns:
        held_out = {which: hold_out({" or ".join(patterns): (fitted, held)}, which) for which in PREDICTORS}
    elif len(groups) > 1:
        held_out = {which: leave_one_out(groups, which) for which in PREDICTORS}
    elif reason is None:
        where, other = ("on one corpus,", "scheme") if by == "data" else ("at", "data")
        reason = (
            f"all runs are {where} {next(iter(groups))}, so none can be left out by {by}; "
            f"try --by {other} or --hold-out PATTERN"
        )
    return LawStudy(
        runs=tuple(runs),
        left_out=tuple(patterns) if patterns else "data" if by == "data" else "scheme",
        spearman={which: spearman(runs, which) for which in PREDICTORS},
        within={name: {which: spearman(own, which) for which in PREDICTORS} for name, own in corpora.items()},
        line=line,
        held_out=held_out,
        reason=reason,
    )


def _grouped(runs: Sequence[LawPoint], by: str) -> dict[str, list[LawPoint]]:
    """By the corpus or the bits of their run, in order of appearance."""
    if by not in get_args(Grouping):
        raise UnknownNameError("grouping", by, get_args(Grouping), hint="(--by data or scheme)")
    groups: dict[str, list[LawPoint]] = {}
    for run in runs:
        groups.setdefault(run.data if by == "data" else run.bits, []).append(run)
    return groups


# --- in words and as JSON -------------------------------------------------------------------------


def law_findings(study: LawStudy) -> list[str]:
    """What the runs say of the law, above all where they do not bear it out."""
    return [*_order(study), *_unseen(study), *_left_out(study)]


def _order(study: LawStudy) -> list[str]:
    n, value = len(study.runs), study.spearman["separation"].value
    if value is None:
        return [f"The law cannot be tried on these runs: {study.spearman['separation'].reason}."]
    over = f"Spearman {value:+.2f} over {n} runs"
    lines = [f"As the law says, runs with a larger separation change fewer answers ({over})."]
    if value > ORDERED:
        lines = [f"The order is NOT as the law says: {over}, where the law says close to -1."]
    if n < FEW:
        lines.append(f"{n} runs are too few to rely on that; {FEW} or more are better.")
    rivals = {which: rival for which in PREDICTORS[1:] if (rival := study.spearman[which].value) is not None}
    if not rivals:
        return lines
    best = max(rivals, key=lambda which: abs(rivals[which]))
    # what is printed to two digits is not told apart here either
    if round(abs(rivals[best]), 2) < round(abs(value), 2):
        lines.append(f"No rival orders all these runs as well; the best is the {NAMES[best]} ({rivals[best]:+.2f}).")
    else:
        lines.append(
            f"The {NAMES[best]} orders these runs as well ({rivals[best]:+.2f}), so they do not show that the "
            "separation explains more; runs on corpora with other gaps could."
        )
    return lines


def _unseen(study: LawStudy) -> list[str]:
    held = study.held_out.get("separation")
    if held is None:
        return [f"The line was not tried on runs it never saw: {study.reason}."]
    score, error = held.r_squared.value, held.mean_error.value
    if score is None or error is None:
        return [f"The line could not be judged on runs it never saw: {held.r_squared.reason}."]
    whose = {"data": "without their corpus", "scheme": "without their bits"}
    fitted = f"on the other {study.line.n if study.line else 0} runs"
    if isinstance(study.left_out, str):
        fitted = whose[study.left_out]
    shown = "below -10" if score < -10 else f"{score:.2f}"  # noqa: PLR2004 -- so bad is bad enough
    lines = [
        f"The change rates of {held.r_squared.n} runs, predicted by a line fitted {fitted}, are off by "
        f"{100 * error:.1f} percentage points on average (R2 {shown})."
        + (" That is worse than their mean: the line does NOT carry over." if score < 0 else "")
    ]
    if below := sum(rate < 0 for rate in held.predicted.values()):
        lines.append(
            f"For {below} of them the line says less than 0 %: it is straight, is not clipped, and is no guide far out."
        )
    return lines + [f"Not predicted: {group.name} ({group.reason})." for group in held.groups if group.reason]


def _left_out(study: LawStudy) -> list[str]:
    lines = []
    for value, what in (
        (np.inf, "infinite (an exact copy for most inputs)"),
        (0, "0 (most inputs are tied at the top)"),
    ):
        if names := [run.label for run in study.runs if run.separation == value]:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            shown = "; ".join(names[:_SHOWN])
            lines.append(f"Left out of the line, as their median separation is {what}: {shown}{more}.")
    return lines


def law_json(study: LawStudy, figure: Path | None = None) -> dict[str, Any]:
    """Every run and every result; an infinite separation is null, and `separation_is_infinite` is true."""
    held = study.held_out.get("separation")
    unseen = held.predicted if held else {}
    patterns = [] if isinstance(study.left_out, str) else list(study.left_out)
    return {
        "runs": [
            {
                **as_json({name: getattr(run, name) for name in _TOLD}),
                "path": str(run.path),
                "separation_is_infinite": bool(np.isinf(run.separation)),
                "change_rate": run.changed.to_json(),
                "predicted_unseen": unseen.get(run.label),
            }
            for run in study.runs
        ],
        "spearman": as_json({"all": study.spearman, "by_data": study.within}),
        "line": asdict(study.line) if study.line else None,
        "held_out": {
            "by": "pattern" if patterns else study.left_out,
            "patterns": patterns,
            "predictors": {which: _held_json(one) for which, one in study.held_out.items()},
            "reason": study.reason,
        },
        "findings": law_findings(study),
        "figure": None if figure is None else str(figure),
    }


_TOLD = ("label", "spec", "data", "n_documents", "separation", "gap", "epsilon", "n_items")


def _held_json(held: HeldOut) -> dict[str, Any]:
    groups = [
        {"name": group.name, "labels": list(group.predicted), "line": group.line, "r_squared": group.r_squared}
        | {"mean_error": group.mean_error, "reason": group.reason}
        for group in held.groups
    ]
    return dict(as_json({"r_squared": held.r_squared, "mean_error": held.mean_error, "groups": groups}))
