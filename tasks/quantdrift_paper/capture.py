"""The share of a wider width's benefit that the allocations of a capture study keep, and which criterion keeps more.

A point is a model, data, a quantizer, a budget, a seed and a number of calibration queries. There every criterion has
its own widths, between two uniform ones. With the mean m of a metric over the held-out queries,

    gain = m(low width) - m(allocation),  headroom = m(low width) - m(high width),
    capture = sum of gains / sum of headrooms over points (paper, appendix "Allocation criteria"),

so that a point with nothing to gain does not decide. Intervals resample the queries of each corpus, the same ones for
all of its cells: they say what other queries could have given with these corpora and models. Two criteria are compared
on the points that both have.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import combinations, product
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.display import note
from quantdrift.base.errors import StudyError
from quantdrift.base.text import counted, percent, with_interval
from quantdrift.cli.options import METRIC, argument, option, prints
from quantdrift.metrics import Metric, MetricError, parse_metric
from quantdrift.metrics.numbers import show_p
from quantdrift.runs.folder import Run
from quantdrift.scheme import FULL_BITS
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, Grid, Kind, write_table
from quantdrift.spec.grammar import needs_inputs
from quantdrift.statistics.estimates import CONFIDENCE, Estimate, as_json, percentile_interval, resampled, undefined
from quantdrift.statistics.paired import randomization_test
from quantdrift.statistics.verdicts import holm
from quantdrift.study.folder import StudyFolder, open_study
from quantdrift_paper.cells import family_of

PAPERS, BASE = "gap_exact+solver=greedy", "reconstruction"
"""The paper's criterion with its rule, and the one that it is held against."""
METRICS = ("flip@1", "accuracy", "gold_lost@1")
"""Metrics whose capture is told unless others are named: the paper's change of the top-1, recall@1 and gold lost."""
_NOTHING = 1e-9
"""Headroom up to here is left by rounding of sums of rates."""
BY = ("quantizer", "budget", "activations")
"""Axes by which captures are split unless others are asked for."""
_LOW, _HIGH = "low", "high"
"""Names of the two uniform cells of a point, beside those of criteria."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point at which criteria are compared.

    `system` is Text, CLIP or Classes; `size` is the number of calibration queries that was asked for, `activations` the
    bits of activations, 16 where they are left alone.
    """

    system: str
    model: str
    data: str
    quantizer: str
    budget: float
    activations: int
    seed: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The capture of one criterion.

    Attributes:
        metric: the metric whose benefit is captured.
        criterion: the criterion that chose the widths.
        of: the axes that captures are split by, with their values.
        ratio: pooled over the points, with the interval over queries; n is the number of points.
        low: mean over the points of the metric, all layers at the low width.
        value: that mean with the allocation.
        high: that mean, all layers at the high width.
        best_in: points at which no other criterion does better.
    """

    metric: str
    criterion: str
    of: Mapping[str, Any]
    ratio: Estimate
    low: float
    value: float
    high: float
    best_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Two criteria on the points that both have.

    Attributes:
        metric: the metric whose benefit is captured.
        criterion: the first criterion.
        against: the other criterion.
        of: the axes that contests are split by, with their values.
        difference: capture of the first less that of the other, with the interval over queries; n is the number of
            points.
        ahead: points at which the first does better.
        behind: points at which the other does better.
        p: two-sided, of Fisher's randomization test: the difference that a query makes, summed over its cells, could
            as well have the other sign.
        p_holm: adjusted by Holm for the pairs of criteria with the same metric and `of`.
    """

    metric: str
    criterion: str
    against: str
    of: Mapping[str, Any]
    difference: Estimate
    ahead: int
    behind: int
    p: float
    p_holm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The share of layers that get the same width from two draws of calibration queries.

    Attributes:
        criterion: the criterion that chose the widths.
        model: the model that the layers belong to.
        size: calibration queries of one draw.
        against: calibration queries of the other draw: as many, with another seed; or the most that there are, with the
            same seed.
        share: the part of the layers that have one width, mean over pairs of draws.
        n_pairs: the number of pairs of draws that are not the same queries.
    """

    criterion: str
    model: str
    size: int
    against: int
    share: float
    n_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Corpus:
    """The values of every cell of a corpus at each held-out query; nan where a metric has no value.

    Attributes:
        runs: the finished runs.
        values: by metric, float64 [n_runs, n_queries].
        means: by metric, float64 [1 + resamples, n_runs]: as measured, then of resampled queries.
    """

    runs: Sequence[Run]
    values: Mapping[str, Floats]
    means: Mapping[str, Floats]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Capture:
    """The finished cells of capture studies, ready to be asked.

    Attributes:
        criteria: in the order of the studies.
        metrics: the metrics that were read.
        points: the points at which criteria can be compared, with the number of the run of each uniform width and each
            criterion.
        missing: allocations that are left out, as they or their uniform widths are not done.
        corpora: the values at held-out queries, by name of the data.
    """

    criteria: Sequence[str]
    metrics: Sequence[Metric]
    points: Mapping[Point, Mapping[str, int]]
    missing: int
    corpora: Mapping[str, _Corpus]

    def captures(self, metric: Metric, *, by: Sequence[str] = BY) -> list[Captured]:
        """Capture of every criterion for each value of the axes `by`, fields of `Point`; pooled over all with ().

        Not defined where the high width does no better than the low one.
        """
        return [
            replace(captured, of=of)
            for of, points in self._groups(by)
            for criterion in self.criteria
            if (captured := self.captured(metric, points, criterion)) is not None
        ]

    def captured(self, metric: Metric, points: Sequence[Point], criterion: str) -> Captured | None:
        """Capture of a criterion pooled over those points that have it; None where none has."""
        members = self._with(metric, points, criterion)
        if not members:
            return None
        low, value, high = (self._sum(metric, members, name) for name in (_LOW, criterion, _HIGH))
        return Captured(
            metric=str(metric),
            criterion=criterion,
            of={},
            ratio=_ratio(low - value, low - high, len(members), _sign(metric)),
            low=float(low[0]) / len(members),
            value=float(value[0]) / len(members),
            high=float(high[0]) / len(members),
            best_in=sum(self._is_best(metric, point, criterion) for point in members),
        )

    def contests(self, metric: Metric, *, by: Sequence[str] = (), against: str | None = None) -> list[Contest]:
        """Compare every two criteria, or each with the one named, for each value of the axes `by`.

        p-values are adjusted over the pairs with the same values.
        """
        pairs = list(combinations(self.criteria, 2))
        if against is not None:
            pairs = [(name, against) for name in self.criteria if name != against]
        contests = []
        for of, points in self._groups(by):
            compared = [contest for pair in pairs if (contest := self.contest(metric, points, pair)) is not None]
            adjusted = holm([contest.p for contest in compared])
            contests += [replace(contest, of=of, p_holm=p) for contest, p in zip(compared, adjusted, strict=True)]
        return contests

    def contest(self, metric: Metric, points: Sequence[Point], pair: tuple[str, str]) -> Contest | None:
        """Compare two criteria on those points that have both; None where none has."""
        both = self._with(metric, points, *pair)
        if not both:
            return None
        low, high, mine, theirs = (self._sum(metric, both, name) for name in (_LOW, _HIGH, *pair))
        leads = [self._lead(metric, point, *pair) for point in both]
        return Contest(
            metric=str(metric),
            criterion=pair[0],
            against=pair[1],
            of={},
            difference=_ratio(theirs - mine, low - high, len(both), _sign(metric)),
            ahead=sum(lead > _NOTHING for lead in leads),
            behind=sum(lead < -_NOTHING for lead in leads),
            p=randomization_test(*(self._of_queries(metric, both, name) for name in pair)),
        )

    def correlations(self, points: Sequence[Point], pair: tuple[str, str]) -> list[tuple[float, int]]:
        """Spearman over layers of what two criteria expect them to lose, and how many layers; one for each draw."""
        from scipy import stats  # noqa: PLC0415 -- takes long to import

        drawn: dict[tuple[Any, ...], tuple[float, int]] = {}
        for point in points:
            losses: Any = [self._allocation(point, n).get("losses") for n in pair if n in self.points[point]]
            if len(losses) > 1 and all(losses):
                sides = zip(*((losses[0][name], losses[1][name]) for name in losses[0]), strict=True)
                rho = cast(Any, stats.spearmanr)(*sides).statistic
                drawn[point.model, point.data, point.seed, point.size] = float(rho), len(losses[0])
        return list(drawn.values())

    def agreements(self, against: int | None = None) -> list[Agreement]:
        """Measure how far widths depend on the draw of calibration queries, for criteria that look at some.

        Sizes are compared with the largest, or with the size `against`.
        """
        agreements, sizes = [], self.values("size")
        for criterion, model, size in product(filter(needs_inputs, self.criteria), self.values("model"), sizes):
            most = max(sizes) if against is None else against
            draws = self._draws(model, criterion)
            drawn = [key for key in draws if key[3] == size]
            with_other_seeds = [(draws[a], draws[b]) for a, b in combinations(drawn, 2) if a[:2] == b[:2]]
            usual = [(draws[key], draws[*key[:3], most]) for key in drawn if size != most and (*key[:3], most) in draws]
            for other, pairs in ((size, with_other_seeds), (most, usual)):
                others = [pair for pair in pairs if pair[0]["data_digest"] != pair[1]["data_digest"]]
                shares = [np.mean([one["widths"].get(n) == w for n, w in two["widths"].items()]) for one, two in others]
                if shares:
                    of = {"criterion": criterion, "model": model, "size": size, "against": other}
                    agreements.append(Agreement(**of, share=float(np.mean(shares)), n_pairs=len(shares)))
        return agreements

    def values(self, axis: str) -> list[Any]:
        """The values of a field of `Point`, as they come."""
        return list(dict.fromkeys(getattr(point, axis) for point in self.points))

    def at(self, **axes: Any) -> list[Point]:
        """The points at which fields have these values."""
        return [p for p in self.points if all(getattr(p, axis) == value for axis, value in axes.items())]

    def _groups(self, by: Sequence[str]) -> Iterator[tuple[dict[str, Any], list[Point]]]:
        groups: dict[tuple[Any, ...], list[Point]] = {}
        for point in self.points:
            groups.setdefault(tuple(getattr(point, axis) for axis in by), []).append(point)
        yield from ((dict(zip(by, values, strict=True)), points) for values, points in groups.items())

    def _with(self, metric: Metric, points: Sequence[Point], *criteria: str) -> list[Point]:
        """The points that have these criteria, and at which a metric has a value."""
        return [
            point
            for point in points
            if {*criteria} <= self.points[point].keys()
            and not np.isnan(self.corpora[point.data].values[str(metric)]).all()
        ]

    def _allocation(self, point: Point, criterion: str) -> Mapping[str, Any]:
        """The allocation of a criterion as run.json has it."""
        run = self.corpora[point.data].runs[self.points[point][criterion]]
        return dict(run.record["quantization"]["allocation"] or {})

    def _mean(self, metric: Metric, point: Point, name: str) -> Floats:
        return np.asarray(self.corpora[point.data].means[str(metric)][:, self.points[point][name]])

    def _sum(self, metric: Metric, points: Sequence[Point], name: str) -> Floats:
        return reduce(np.add, (self._mean(metric, point, name) for point in points))

    def _lead(self, metric: Metric, point: Point, criterion: str, other: str) -> float:
        """Return by how much one criterion does better than another."""
        step = float(self._mean(metric, point, other)[0] - self._mean(metric, point, criterion)[0])
        return _sign(metric) * step

    def _is_best(self, metric: Metric, point: Point, criterion: str) -> bool:
        others = self.points[point].keys() - {_LOW, _HIGH}
        return all(self._lead(metric, point, criterion, other) > -_NOTHING for other in others)

    def _of_queries(self, metric: Metric, points: Sequence[Point], name: str) -> Floats:
        """The share of each query of all corpora in the sum of means, float64 [n_queries]."""
        parts = []
        for data, corpus in self.corpora.items():
            values = corpus.values[str(metric)][[self.points[point][name] for point in points if point.data == data]]
            counts = np.maximum((~np.isnan(values)).sum(axis=1, keepdims=True), 1)
            parts.append((np.nan_to_num(values) / counts).sum(axis=0))
        return np.concatenate(parts)

    def _draws(self, model: str, criterion: str) -> dict[tuple[str, float, int, int], Mapping[str, Any]]:
        """The allocations by data, budget, seed and size; quantizers share them."""
        return {
            (point.data, point.budget, point.seed, point.size): self._allocation(point, criterion)
            for point, runs in self.points.items()
            if point.model == model and criterion in runs
        }


def verdict(capture: Capture, points: Sequence[Point]) -> str | None:
    """Say whether the paper's claim, that its criterion captures more than reconstruction error, is seen at points."""
    contest = capture.contest(parse_metric(METRICS[0]), points, (PAPERS, BASE))
    if contest is None or contest.difference.value is None:
        return None
    holds = "HOLDS here" if (contest.difference.low or 0) > 0 else "is NOT seen here"
    return (
        f"The paper's claim that its gap sensitivity captures more than reconstruction error {holds}: "
        f"{with_interval(contest.difference, 1, sign='+')} points of what the wider width repairs, ahead at "
        f"{contest.ahead} and behind at {contest.behind} of {contest.difference.n}."
    )


def rows_of(capture: Capture, metrics: Sequence[Metric]) -> list[dict[str, Any]]:
    """Make the rows of the table file: captures, and differences of two criteria where `against` names one.

    An axis that is null is pooled over. Each split is by one axis that has several values, by quantizer and budget, or
    by none.
    """
    axes = [field.name for field in fields(Point)]
    several = [axis for axis in axes if len({getattr(point, axis) for point in capture.points}) > 1]
    splits = list(dict.fromkeys([(), BY, *((axis,) for axis in several)]))
    rows = []
    for metric, by in product(metrics, splits):
        rows += [_row(axes, result) for result in capture.captures(metric, by=by)]
        rows += [_row(axes, result) for result in capture.contests(metric, by=by)]
    return rows


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns of these rows, for a file."""
    kinds: dict[type, Kind] = {str: "words", int: "count"}
    some = {name: value for row in rows for name, value in row.items() if value is not None}
    return [Column("", name, kind=kinds.get(type(some.get(name)), "number")) for row in rows[:1] for name in row]


_ONLY_OF_ONE = ("low", "value", "high", "best_in", "ahead", "behind", "p", "p_holm")
"""Attributes that either captures or contests have."""


def _row(axes: Sequence[str], result: Captured | Contest) -> dict[str, Any]:
    capture = result.ratio if isinstance(result, Captured) else result.difference
    return {
        "metric": result.metric,
        **{axis: result.of.get(axis) for axis in axes},
        "criterion": result.criterion,
        "against": getattr(result, "against", None),
        "capture": capture.value,
        "capture low": capture.low,
        "capture high": capture.high,
        "points": capture.n,
        **{name: getattr(result, name, None) for name in _ONLY_OF_ONE},
    }


def can_be_captured(metric: Metric) -> bool:
    """Return whether a metric is a mean over inputs of which one direction is better."""
    return metric.direction != "none" and metric.arm != "relative" and metric.uncertainty != "order statistics"


def _sign(metric: Metric) -> int:
    """1 where less is better, else -1."""
    return -1 if metric.direction == "higher" else 1


def _ratio(gain: Floats, headroom: Floats, n: int, sign: int) -> Estimate:
    """Divide sums as measured and as resampled; there is no interval where one resample in twenty has no headroom."""
    if sign * headroom[0] <= _NOTHING:
        return undefined("the high width does no better than the low one")
    value, usable = float(gain[0] / headroom[0]), sign * headroom[1:] > _NOTHING
    if usable.mean() <= CONFIDENCE:
        return Estimate(value=value, n=n)
    low, high = percentile_interval(gain[1:][usable] / headroom[1:][usable])
    return Estimate(value=value, low=low, high=high, n=n)


# --- from the folder of a study -------------------------------------------------------------------


def read_capture(folders: Sequence[StudyFolder], metrics: Sequence[Metric]) -> Capture:
    """The finished cells of capture studies that are joined, with metrics computed from their evidence.

    Raises:
        StudyError: one is no capture study, or cells of one corpus have no query in common.
        MetricError: a metric is no mean that can be better or worse, or looks deeper than the stored ranks.
    """
    for metric in metrics:
        if not can_be_captured(metric):
            raise MetricError(f"capture is of a mean that is better or worse, such as flip@1 or ndcg@10; not {metric}")
    done: dict[str, dict[tuple[str, str], Run]] = {}
    wanted: dict[Point, dict[str, str]] = {}
    for folder in folders:
        if (grid := folder.record.capture) is None:
            raise StudyError(f"{folder.path} is no capture study: its study.yaml has no block `capture`")
        for cell in folder.cells:
            if (run := folder.run(cell)) is not None:
                done.setdefault(cell.data.called, {}).setdefault((cell.model, str(cell.spec.scheme)), run)
        models = dict.fromkeys(cell.model for cell in folder.cells)
        corpora = dict.fromkeys(cell.data.called for cell in folder.cells)
        axes = (models, corpora, grid.quantizers, grid.budgets, grid.activations, grid.seeds or [0], grid.sizes)
        for model, data, quantizer, budget, bits, seed, size in product(*axes):
            read = {family_of(run.record) for run in done.get(data, {}).values()}
            system = "CLIP" if "clip" in read else "Classes" if "classes" in read else "Text"
            at: dict[str, Any] = {"quantizer": quantizer, "activations": bits, "seed": seed}
            point = Point(system=system, model=model, data=data, budget=budget, size=size, **at)
            widths = zip((_LOW, _HIGH), grid.around(budget), strict=True)
            schemes = {name: grid.scheme(width, **at) for name, width in widths}
            schemes |= {name: grid.scheme(budget, **at, criterion=name, size=size) for name in grid.criteria}
            wanted.setdefault(point, {}).update({name: str(scheme) for name, scheme in schemes.items()})
    places = {data: {key: place for place, key in enumerate(runs)} for data, runs in done.items()}
    points: dict[Point, dict[str, int]] = {}
    missing = 0
    for point, schemes_of in wanted.items():
        numbers = places.get(point.data, {})
        there = {name: numbers[point.model, s] for name, s in schemes_of.items() if (point.model, s) in numbers}
        if {_LOW, _HIGH} < there.keys():
            points[point] = there
        missing += len(schemes_of) - len(points.get(point, (_LOW, _HIGH)))
    criteria = dict.fromkeys(name for folder in folders if (grid := folder.record.capture) for name in grid.criteria)
    values = {name: _corpus(name, list(runs.values()), metrics) for name, runs in done.items()}
    return Capture(criteria=[*criteria], metrics=tuple(metrics), points=points, missing=missing, corpora=values)


def _corpus(name: str, runs: Sequence[Run], metrics: Sequence[Metric]) -> _Corpus:
    evidence = [run.evidence() for run in runs]
    places = [{name: row for row, name in enumerate(record.input_ids.tolist())} for record in evidence]
    ids = [input_id for input_id in places[0] if all(input_id in place for place in places)]
    if not ids:
        raise StudyError(f"the cells of {name} have no input in common; expected one held_out for all of them")
    rows = [np.array([place[input_id] for input_id in ids], dtype=np.int64) for place in places]
    values = {
        str(metric): np.stack([metric.per_input(record)[row] for record, row in zip(evidence, rows, strict=True)])
        for metric in metrics
    }
    seed = zlib.crc32(name.encode())  # so that a corpus has the same resamples whatever is beside it
    return _Corpus(runs=runs, values=values, means={metric: _means(table, seed) for metric, table in values.items()})


def _means(values: Floats, seed: int) -> Floats:
    """Means of [n_runs, n_queries] over the queries with a value: as measured, then of resampled queries."""
    defined, n = ~np.isnan(values), values.shape[1]
    filled = np.where(defined, values, 0.0)

    def mean(times: Floats) -> Floats:
        return np.asarray((times @ filled.T) / np.maximum(times @ defined.T, 1.0))

    def drawn(places: NDArray[np.int64]) -> Floats:
        flat = (places + n * np.arange(len(places))[:, None]).ravel()
        return mean(np.bincount(flat, minlength=places.size).reshape(places.shape).astype(np.float64))

    return np.concatenate([mean(np.ones((1, n))), resampled(drawn, n, seed=seed)])


# --- the command ----------------------------------------------------------------------------------


@prints("json", "markdown")
def command(
    *,
    study: Path = argument("STUDY: The folder of a capture study: its study.yaml has a block `capture`."),
    metric: list[str] | None = option(METRIC),
    table: Path | None = option("FILE: Write one row a capture, and one for each two criteria, into .csv or .parquet."),
) -> Output:
    """Capture of every criterion, by quantizer and budget; who is ahead; how far draws of queries agree."""
    folder = open_study(study)
    asked = [parsed for parsed in map(parse_metric, dict.fromkeys(metric or METRICS)) if can_be_captured(parsed)]
    capture = read_capture([folder], asked or [parse_metric(METRICS[0])])
    metrics = [parsed for parsed in capture.metrics if capture.captures(parsed, by=())]
    if table is not None:
        rows = rows_of(capture, metrics)
        write_table(columns_of(rows), rows, table)
        note(f"wrote {table}")
    contests = [contest for parsed in metrics for contest in capture.contests(parsed)]
    agreements = capture.agreements()
    grids = [_captures(capture, metrics)] if metrics else []
    grids += [_contests(metrics[0], contests)] if contests else []
    grids += [_agreements(agreements)] if agreements else []
    left_out = f"{counted(capture.missing, 'allocation')} left out, as they or their uniform widths are not done"
    n_queries = sum(next(iter(corpus.values.values())).shape[1] for corpus in capture.corpora.values())
    size = f"{counted(len(capture.points), 'point')}, {n_queries:,} held-out queries"
    return Output(
        data={
            "missing": capture.missing,
            "captures": as_json([captured for parsed in metrics for captured in capture.captures(parsed)]),
            "pooled": as_json([captured for parsed in metrics for captured in capture.captures(parsed, by=())]),
            "contests": as_json(contests),
            "agreements": as_json(agreements),
        },
        title=f"{verdict(capture, [*capture.points]) or ''} {folder.path}: a capture study of {size}".strip(),
        grids=grids,
        lines=[left_out] if capture.missing else [],
    )


def _captures(capture: Capture, metrics: Sequence[Metric]) -> Grid:
    """Make a row for each quantizer, budget and criterion; the first metric is told in full."""
    first, criteria = metrics[0], capture.criteria
    base = BASE if BASE in criteria else criteria[-1]
    beside = {_key(contest): contest for contest in capture.contests(first, by=BY, against=base)}
    by_metric = [{_key(captured): captured for captured in capture.captures(metric)} for metric in metrics]
    rows = []
    for key, captured in by_metric[0].items():
        contest, bits = beside.get(key), captured.of["activations"]
        rows.append(
            [
                f"{key[0]} {key[1]:g}" + ("" if bits == FULL_BITS else f" A{bits}"),
                captured.criterion,
                with_interval(captured.ratio, 0),
                *(percent(column[key].ratio.value, 0) if key in column else "-" for column in by_metric[1:]),
                " > ".join(f"{100 * value:.1f}" for value in (captured.low, captured.value, captured.high)),
                "" if contest is None else with_interval(contest.difference, 0, sign="+"),
                "" if contest is None else show_p(contest.p_holm),
                f"{captured.best_in} of {captured.ratio.n}",
            ]
        )
    more = [f"{first}, %: low > here > high", f"ahead of {base}, pp", "p (Holm)", "best in"]
    return Grid(
        title="Share of a wider uniform width's benefit that an allocation keeps (95 % intervals over queries)",
        head=["quantizer, bits", "criterion", *(f"capture, {metric}" for metric in metrics), *more],
        rows=rows,
        words={"criterion"},
        ruled=True,
        lines=[
            "low and high: all layers at the uniform widths around the budget; rates are means over points (model, "
            "data, seed, calibration queries); best in: points at which no other criterion does better"
        ],
    )


def _key(result: Any) -> tuple[str, float, int, str]:
    return *(result.of[axis] for axis in BY), result.criterion


def _contests(metric: Metric, contests: Sequence[Contest]) -> Grid:
    rows = [
        [
            f"{contest.criterion} : {contest.against}",
            with_interval(contest.difference, 0, sign="+"),
            f"{contest.ahead} : {contest.behind} of {contest.difference.n}",
            show_p(contest.p_holm),
        ]
        for contest in contests
        if contest.metric == str(metric)
    ]
    return Grid(
        title=f"Capture of {metric} over all points, one criterion against another",
        head=["criteria", "difference, pp", "points ahead : behind", "p (Holm)"],
        rows=rows,
        lines=["p of Fisher's randomization test: a query's difference, over all its cells, could have the other sign"],
    )


def _agreements(agreements: Sequence[Agreement]) -> Grid:
    rows = []
    for it in agreements:
        against = "another seed" if it.size == it.against else f"{it.against} queries"
        rows.append([it.criterion, it.model, f"{it.size}", against, percent(it.share), f"{it.n_pairs}"])
    return Grid(
        title="Layers that two draws of calibration queries give the same width",
        head=["criterion", "model", "queries", "against", "layers", "pairs of draws"],
        rows=rows,
        words={"model", "against"},
    )
