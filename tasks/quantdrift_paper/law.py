"""The law over many runs: the larger the median separation ratio, the fewer answers change.

It is an observation, worth as much as the runs it is computed from. So a line is judged on runs it never saw, and
beside its rivals: the gap alone, epsilon alone, the number of items.

Source: paper, section 5.2 (the contender set is the mechanism).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError, TheoryError, UnknownNameError
from quantdrift.base.text import counted, some
from quantdrift.cli.options import RUNS, argument, option, prints
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.runs.folder import Run, find_runs, refuse_copies
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.spec.grammar import Versus, parse_pair
from quantdrift.statistics.estimates import Estimate, as_json, percentile_interval, rate_estimate, undefined
from quantdrift_paper.cells import family_of

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
BY: Mapping[str, tuple[str, str]] = {
    "data": ("data", "corpus"), "model": ("model", "model"),
    "scheme": ("bits", "width"), "quantizer": ("quantizer", "quantizer"),
}  # fmt: skip
"""What can be held out: the field of a point, and what it is called."""
_DRAWS = 1000
"""Resamples of models and corpora."""


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
        quantizer: of a scheme.
        family: what is read, of texts or of images.
        model: the reference, as the spec names it.
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
    quantizer: str = ""
    family: str = ""
    model: str = ""
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
        quantizer="" if isinstance(pair, Versus) else pair.scheme.quantizer,
        family=_family(run.record),
        model=str(pair).partition(" vs " if isinstance(pair, Versus) else "@")[0],
        path=run.path,
    )


def _family(record: Mapping[str, Any]) -> str:
    """The family of the paper that a run belongs to."""
    read = family_of(record)
    what = "classification" if read == "classes" else "reranking" if read == "rerank" else "retrieval"
    return f"{what}, {'vision' if read == 'clip' or record['data'].get('inputs') == 'images' else 'text'}"


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


def spearman_over(points: Sequence[LawPoint]) -> Estimate:
    """`spearman` of the separation, with a 95 % interval over models and corpora.

    Both are resampled, and a run counts as often as its model times as often as its corpus: runs that share either are
    not independent. Without two of one of them there is no interval.
    """
    found = spearman(points)
    sides = [[getattr(point, name) for point in points] for name in ("model", "data")]
    kinds = [sorted(set(side)) for side in sides]
    if found.value is None or max(map(len, kinds)) < 2:  # noqa: PLR2004 -- nothing to resample
        return found
    places = [np.array([kind.index(name) for name in side]) for side, kind in zip(sides, kinds, strict=True)]
    rng, rhos = np.random.default_rng(0), []
    for _ in range(_DRAWS):
        times: Any = 1
        for place, kind in zip(places, kinds, strict=True):
            times = times * np.bincount(rng.integers(len(kind), size=len(kind)), minlength=len(kind))[place]
        rho = spearman([points[row] for row in np.repeat(np.arange(len(points)), times)]).value
        rhos += [] if rho is None else [rho]
    low, high = percentile_interval(np.array(rhos)) if rhos else (None, None)
    return replace(found, low=low, high=high)


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


def leave_one_out(
    groups: Mapping[str, Sequence[LawPoint]], predictor: Predictor = "separation", *, by: str | None = None
) -> HeldOut:
    """Hold out each group of runs in turn, and predict it by the line through all the others, or that through `by`."""
    judged = []
    for name, members in groups.items():
        if name == by:
            continue
        others, line = [point for other in groups if other != name for point in groups[other]], None
        with suppress(TheoryError):  # without two values there is no line
            line = fit_line(others if by is None else groups[by], predictor)
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
        by: the groups whose runs are predicted by a line that never saw them, one of BY: each by the line through all
            others; quantizers by the line through round to nearest, as in the paper.
        spearman: rank correlation of each predictor with the change rate over all runs.
        within: rank correlations over the runs of each corpus.
        families: of the separation, over the runs of each family, with intervals over models and corpora.
        line: on the median separation, through all runs; None where their values do not differ.
        held_out: by predictor, how lines predict runs they never saw; empty if there is one group only.
    """

    runs: tuple[LawPoint, ...]
    by: str
    spearman: Mapping[Predictor, Estimate]
    within: Mapping[str, Mapping[Predictor, Estimate]]
    families: Mapping[str, Estimate]
    line: Line | None
    held_out: Mapping[Predictor, HeldOut]


def study_law(runs: Sequence[LawPoint], *, by: str = "data") -> LawStudy:
    """Compute everything that is said of the law on some runs."""
    if by not in BY:
        raise UnknownNameError("grouping", by, BY, hint=f"(--by {', '.join(BY)})")
    line, groups = None, _grouped(runs, BY[by][0])
    first = "rtn" if by == "quantizer" else None
    with suppress(TheoryError):
        line = fit_line(runs)
    return LawStudy(
        runs=tuple(runs),
        by=by,
        spearman={which: spearman(runs, which) for which in PREDICTORS},
        within={
            name: {which: spearman(members, which) for which in PREDICTORS}
            for name, members in _grouped(runs, "data").items()
        },
        families={name: spearman_over(members) for name, members in _grouped(runs, "family").items()},
        line=line,
        held_out={which: leave_one_out(groups, which, by=first) for which in PREDICTORS}
        if len(groups) > 1 and (first is None or first in groups)
        else {},
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
        return [*lines, "The line was not tried on runs it never saw; try another --by, or more runs."]
    score, error = held.r_squared.value, held.mean_error.value
    if score is not None and error is not None:
        worse = " That is worse than their mean: the line does NOT carry over." if score < 0 else ""
        through = "through round to nearest" if study.by == "quantizer" else f"fitted without their {BY[study.by][1]}"
        lines.append(
            f"Predicted by a line {through}, the change rates of {held.r_squared.n} runs are off by "
            f"{100 * error:.1f} percentage points on average.{worse}"
        )
    return lines


def law_json(study: LawStudy) -> dict[str, Any]:
    """Return all results for JSON; an infinite separation is null, and `separation_is_infinite` is true."""
    held = study.held_out.get("separation")
    unseen = held.predicted if held else {}
    names = ("label", "spec", "data", "family", "n_documents", "separation", "gap", "epsilon", "n_items")
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
        "spearman": as_json({"all": study.spearman, "by_data": study.within, "by_family": study.families}),
        "line": asdict(study.line) if study.line else None,
        "held_out": {"by": study.by, "predictors": as_json(study.held_out)},
        "findings": law_findings(study),
    }


# --- the command ----------------------------------------------------------------------------------

_FAR_OFF = -10
"""An R2 below this is only said to be below it; the JSON has the number."""
_NOTE = (
    "-: undefined, mostly because the quantity is the same in all these runs. R2: 1 is exact, 0 no better than the "
    "mean of these very runs. mean error: of the predicted change rate, in percentage points."
)


@prints("json", "markdown")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    by: str = option(
        "data|model|scheme|quantizer: What a line never saw: a corpus, a model, a width, or all but rtn.",
        default="data",
    ),
) -> Output:
    """Over many runs: does a larger separation go with fewer changed answers, and by how much?

    Shows rank correlations (also of other predictors, and per family with intervals), fits a line, and tests the line
    on runs that it was not fitted on. Needs at least three runs.
    """
    points = law_runs(find_runs(runs))
    if len(points) < LEAST_RUNS:
        raise QuantDriftError(
            f"a law is seen over several runs: expected {LEAST_RUNS} or more, of other schemes, models or corpora; "
            f"got {len(points)}. Two candidates are compared by: quantdrift compare A B"
        )
    study = study_law(points, by=by)
    line = [] if study.line is None else [f"The line through {counted(study.line.n, 'run')}: {_formula(study.line)}."]
    return Output(data=law_json(study), grids=list(_grids(study)), lines=[_NOTE, *law_findings(study), *line])


def _grids(study: LawStudy) -> Iterator[Grid]:
    runs, title, judged = study.runs, "Spearman with the change rate", ["R2 on runs never seen", "mean error"]
    yield Grid(
        title=f"What tells the change rate of {counted(len(runs), 'run')}",
        head=["predictor", title, *judged],
        rows=[[NAMES[p], _signed(study.spearman[p]), *_held(study.held_out.get(p))] for p in PREDICTORS],
    )
    of = {**study.within, "all": study.spearman}
    n_runs = {**Counter(run.data for run in runs), "all": len(runs)}
    yield Grid(
        title=f"{title}, within each corpus",
        head=["corpus", "runs", "separation", "gap", "epsilon", "items"],
        rows=[[name, f"{n_runs[name]}", *(_signed(of[name][p]) for p in PREDICTORS)] for name in of],
    )
    yield Grid(
        title=f"{title} within each family (95 % interval over models and corpora)",
        head=["family", "runs", "separation"],
        rows=[[name, f"{found.n}", _signed(found)] for name, found in study.families.items()],
    )
    if (held := study.held_out.get("separation")) is not None:
        yield Grid(
            title="Each predicted by the line through round to nearest"
            if study.by == "quantizer"
            else f"One {BY[study.by][1]} left out in turn",
            head=["left out", "runs", "line through the others", *judged],
            rows=[
                [group.name, f"{len(group.predicted)}", _formula(group.line) if group.line else "-", *_held(group)]
                for group in held.groups
            ],
            words={"line through the others"},
        )


def _formula(line: Line) -> str:
    sign = "-" if line.slope < 0 else "+"
    return f"{100 * line.intercept:.1f} % {sign} {100 * abs(line.slope):.1f} % * log10(separation)"


def _signed(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    ends = "" if estimate.low is None else f" ({estimate.low:+.2f} to {estimate.high:+.2f})"
    return f"{estimate.value:+.2f}{ends}"


def _held(held: HeldOut | None) -> list[str]:
    """Show R2, of which a very bad value is only said to be very bad, and the mean error."""
    score, error = (held.r_squared.value, held.mean_error.value) if held else (None, None)
    return [
        "-" if score is None else f"{score:z.2f}" if score >= _FAR_OFF else f"< {_FAR_OFF}",
        "-" if error is None else f"{100 * error:.1f} points",
    ]
