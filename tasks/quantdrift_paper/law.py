"""The law over many runs: the larger the median separation ratio, the fewer answers change.

It is an observation, worth as much as the runs it is computed from. So a line is judged on runs it never saw, and
beside its rivals: the gap alone, epsilon alone, the number of items.

Source: paper, section 5.2 (the contender set is the mechanism).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import TheoryError, UnknownNameError
from quantdrift.base.text import some
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.runs.folder import Run, refuse_copies
from quantdrift.spec.grammar import Versus, parse_pair
from quantdrift.statistics.estimates import Estimate, as_json, rate_estimate, undefined

Floats = NDArray[np.float64]

Predictor = Literal["separation", "gap", "epsilon", "n_items"]
"""Quantities that may explain a change rate; the first is the law's, the others are its rivals."""

PREDICTORS: tuple[Predictor, ...] = get_args(Predictor)

NAMES: dict[Predictor, str] = {
    "separation": "median separation ratio",
    "gap": "median gap alone",
    "epsilon": "median epsilon alone",
    "n_items": "number of items alone",
}

LEAST_RUNS = 3
"""Two points always correlate perfectly."""
FEW = 10
"""Below this, one run more or less can move a rank correlation by tenths."""
ORDERED = -0.5
"""A Spearman correlation above this is not the order the law claims; the paper's are near -0.9."""


# --- runs as points -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LawPoint:
    """One run as a point: medians over its inputs, and its change rate.

    Attributes:
        label: name of the run.
        separation: median separation ratio, at least 0; +inf for an exact copy.
        gap: median gap of the reference, in score units.
        epsilon: median epsilon, in score units.
        n_items: median number of items scored.
        change_rate: share of inputs whose top-1 changed.
        changed: the change rate with its 95 % Wilson interval.
        spec: spec of the run.
        data: name of the corpus.
        n_documents: size of the corpus.
        bits: weight and activation bits as a spec spells them, e.g. W4A8; what a stored candidate says of itself.
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
    path: Path = Path()


def law_point(evidence: Evidence, *, label: str) -> LawPoint:
    """Make the point of a run."""
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
    bits = "" if isinstance(pair, Versus) else str(pair.scheme).partition("-")[0]
    if isinstance(pair, Versus):
        counted = run.record.get("bits_per_weight") or {}  # null where a server has the weights
        stored = run.record.get("quantization", {}).get("nominal_bits") or counted.get("linear")
        bits = "stored" if stored is None else f"W{round(float(stored), 2):g}"
    n_documents = int(data.get("n_documents") or evidence.n_items.max())
    return replace(
        law_point(evidence, label=f"{pair} on {data['name']}"),
        spec=str(pair),
        data=str(data["name"]),
        n_documents=n_documents,
        bits=bits,
        path=run.path,
    )


# --- rank correlation and line --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A least-squares line: change rate = intercept + slope * log10(predictor).

    Attributes:
        predictor: the quantity that the line reads.
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
    """Return the points with a finite logarithm; the others have a rank, but no place on a line."""
    return [point for point in points if 0 < getattr(point, predictor) < np.inf]


def _values(points: Sequence[LawPoint], name: str) -> Floats:
    return np.array([getattr(point, name) for point in points], dtype=np.float64)


# --- held out -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Runs that were held out, and how well lines that never saw them predict them.

    Attributes:
        name: name of the group; for all groups together the predictor.
        line: fitted on the other runs; None without one, and where each group has its own.
        predicted: predicted rate of each run with a finite logarithm, by label; not clipped.
        r_squared: 1 - sum (rate - predicted)^2 / sum (rate - mean rate of these runs)^2; at most 1, and negative
            where their mean is the better guess.
        mean_error: mean of abs(rate - predicted).
        groups: the results of the groups that were held out one after the other.
    """

    name: str
    line: Line | None = None
    predicted: Mapping[str, float]
    r_squared: Estimate
    mean_error: Estimate
    groups: tuple[HeldOut, ...] = ()


def leave_one_out(groups: Mapping[str, Sequence[LawPoint]], predictor: Predictor = "separation") -> HeldOut:
    """Hold out each group of runs in turn, and predict it by the line through all the others."""
    judged = []
    for name, members in groups.items():
        line = None
        with suppress(TheoryError):  # without two values there is no line
            line = fit_line([point for other in groups if other != name for point in groups[other]], predictor)
        usable = on_the_axis(members, predictor) if line else []
        judged.append(_judged(name, usable, line.predict(usable).tolist() if line else [], line=line))
    points = {point.label: point for members in groups.values() for point in members}
    predicted = {label: rate for group in judged for label, rate in group.predicted.items()}
    return _judged(predictor, [points[label] for label in predicted], list(predicted.values()), groups=tuple(judged))


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


# --- the study ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LawStudy:
    """The results on the law over some runs.

    Attributes:
        runs: the points of all runs.
        by: "data" or "scheme": the groups whose runs are left out in turn.
        spearman: rank correlation of each predictor with the change rate over all runs.
        within: rank correlations over the runs of each corpus.
        line: on the median separation, through all runs; None where their values do not differ.
        held_out: by predictor, how lines predict runs they never saw; empty if there is one group only.
    """

    runs: tuple[LawPoint, ...]
    by: str
    spearman: Mapping[Predictor, Estimate]
    within: Mapping[str, Mapping[Predictor, Estimate]]
    line: Line | None
    held_out: Mapping[Predictor, HeldOut]


def study_law(runs: Sequence[LawPoint], *, by: str = "data") -> LawStudy:
    """Compute everything that is said of the law on some runs."""
    if by not in ("data", "scheme"):
        raise UnknownNameError("grouping", by, ("data", "scheme"), hint="(--by data or scheme)")
    line, corpora = None, _grouped(runs, "data")
    groups = corpora if by == "data" else _grouped(runs, "bits")
    with suppress(TheoryError):
        line = fit_line(runs)
    return LawStudy(
        runs=tuple(runs),
        by=by,
        spearman={which: spearman(runs, which) for which in PREDICTORS},
        within={name: {which: spearman(members, which) for which in PREDICTORS} for name, members in corpora.items()},
        line=line,
        held_out={which: leave_one_out(groups, which) for which in PREDICTORS} if len(groups) > 1 else {},
    )


def _grouped(runs: Sequence[LawPoint], what: str) -> dict[str, list[LawPoint]]:
    groups: dict[str, list[LawPoint]] = {}
    for run in runs:
        groups.setdefault(getattr(run, what), []).append(run)
    return groups


# --- in words and as JSON -------------------------------------------------------------------------


def law_findings(study: LawStudy) -> list[str]:
    """Say in sentences how far the runs bear the law out, above all where they do not."""
    n, value = len(study.runs), study.spearman["separation"].value
    if value is None:
        return [f"The law cannot be tried on these runs: {study.spearman['separation'].reason}."]
    over = f"Spearman {value:+.2f} over {n} runs"
    lines = [f"As the law says, runs with a larger separation change fewer answers ({over})."]
    if value > ORDERED:
        lines = [f"The order is NOT as the law says: {over}, where the law says close to -1."]
    if n < FEW:
        lines.append(f"{n} runs are too few to rely on that; {FEW} or more are better.")
    # what is printed to two digits is not told apart here either
    as_well = [
        f"{NAMES[which]} ({rival:+.2f})"
        for which in PREDICTORS[1:]
        if (rival := study.spearman[which].value) is not None and round(abs(rival), 2) >= round(abs(value), 2)
    ]
    if as_well:
        lines.append(f"As good an order comes from: {', '.join(as_well)}. Runs on other corpora could tell them apart.")
    if left_out := [run.label for run in study.runs if not 0 < run.separation < np.inf]:
        lines.append(f"Left out of the line, as their median separation is 0 or infinite: {some(left_out)}.")
    held = study.held_out.get("separation")
    if held is None:
        other = "data" if study.by == "scheme" else "scheme"
        return [*lines, f"The line was not tried on runs it never saw; try --by {other}, or more runs."]
    score, error = held.r_squared.value, held.mean_error.value
    if score is not None and error is not None:
        worse = " That is worse than their mean: the line does NOT carry over." if score < 0 else ""
        whose = "corpus" if study.by == "data" else "bits"
        lines.append(
            f"Predicted by a line fitted without their {whose}, the change rates of {held.r_squared.n} runs are off by "
            f"{100 * error:.1f} percentage points on average.{worse}"
        )
    return lines


def law_json(study: LawStudy) -> dict[str, Any]:
    """Return all results for JSON; an infinite separation is null, and `separation_is_infinite` is true."""
    held = study.held_out.get("separation")
    unseen = held.predicted if held else {}
    names = ("label", "spec", "data", "n_documents", "separation", "gap", "epsilon", "n_items")
    return {
        "runs": [
            {
                **as_json({name: getattr(run, name) for name in names}),
                "path": str(run.path),
                "separation_is_infinite": bool(np.isinf(run.separation)),
                "change_rate": run.changed.to_json(),
                "predicted_unseen": unseen.get(run.label),
            }
            for run in study.runs
        ],
        "spearman": as_json({"all": study.spearman, "by_data": study.within}),
        "line": asdict(study.line) if study.line else None,
        "held_out": {"by": study.by, "predictors": as_json(study.held_out)},
        "findings": law_findings(study),
    }
