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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import StudyError
from quantdrift.metrics import Metric, MetricError
from quantdrift.runs.folder import Run
from quantdrift.show.tables import Column, Kind
from quantdrift.spec.grammar import needs_inputs
from quantdrift.statistics.estimates import CONFIDENCE, Estimate, percentile_interval, resampled, undefined
from quantdrift.statistics.paired import randomization_test
from quantdrift.statistics.verdicts import holm
from quantdrift.study.folder import StudyFolder
from quantdrift_paper.cells import family_of

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

    @property
    def n_queries(self) -> int:
        """The number of queries that all cells were judged on."""
        return next(iter(self.values.values())).shape[1]


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
            if {*pair} <= self.points[point].keys():
                first, second = (self._allocation(point, name)["losses"] for name in pair)
                spearman: Any = stats.spearmanr
                rho = float(spearman([*first.values()], [second[name] for name in first]).statistic)
                drawn[point.model, point.data, point.seed, point.size] = rho, len(first)
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
                shares = [_same_widths(*pair) for pair in pairs if pair[0]["data_digest"] != pair[1]["data_digest"]]
                if shares:
                    agreements.append(
                        Agreement(
                            criterion=criterion,
                            model=model,
                            size=size,
                            against=other,
                            share=float(np.mean(shares)),
                            n_pairs=len(shares),
                        )
                    )
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
        allocation: Mapping[str, Any] = run.record["quantization"]["allocation"]
        return allocation

    def _mean(self, metric: Metric, point: Point, name: str) -> Floats:
        means: Floats = self.corpora[point.data].means[str(metric)][:, self.points[point][name]]
        return means

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


def rows_of(capture: Capture, metrics: Sequence[Metric]) -> list[dict[str, Any]]:
    """Make the rows of the table file: captures, and differences of two criteria where `against` names one.

    An axis that is null is pooled over. Each split is by one axis that has several values, by quantizer and budget, or
    by none.
    """
    axes = [field.name for field in fields(Point)]
    several = [axis for axis in axes if len({getattr(point, axis) for point in capture.points}) > 1]
    splits = list(dict.fromkeys([(), BY, *((axis,) for axis in several)]))
    results: list[Captured | Contest] = []
    for metric, by in product(metrics, splits):
        results += [*capture.captures(metric, by=by), *capture.contests(metric, by=by)]
    return [_row(axes, result) for result in results]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns of these rows, for a file."""
    return [
        Column("", name, kind=_KINDS.get(name, "number"))
        for name in dict.fromkeys(name for row in rows for name in row)
    ]


_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("system", "model", "data", "metric", "quantizer", "criterion", "against"), "words"),
    **dict.fromkeys(("activations", "seed", "size", "points", "best_in", "ahead", "behind"), "count"),
}
"""Kinds of columns that hold no numbers with a fraction."""


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


def _same_widths(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    return float(np.mean([first["widths"].get(name) == width for name, width in second["widths"].items()]))


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
        if (grid := folder.capture) is None:
            raise StudyError(f"{folder.path} is no capture study: its study.yaml has no block `capture`")
        for cell in folder.cells:
            if (run := folder.run(cell)) is not None:
                done.setdefault(cell.data.called, {}).setdefault((cell.model, str(cell.spec.scheme)), run)
        models = dict.fromkeys(cell.model for cell in folder.cells)
        corpora = dict.fromkeys(cell.data.called for cell in folder.cells)
        axes = (models, corpora, grid.quantizers, grid.budgets, grid.activations, grid.seeds or [0], grid.sizes)
        for model, data, quantizer, budget, bits, seed, size in product(*axes):
            system = _system(next(iter(done.get(data, {}).values()), None))
            point = Point(
                system=system, model=model, data=data, quantizer=quantizer, budget=budget, activations=bits, seed=seed,
                size=size,
            )  # fmt: skip
            at: dict[str, Any] = {"quantizer": quantizer, "activations": bits, "seed": seed}
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
    criteria = dict.fromkeys(name for folder in folders if folder.capture for name in folder.capture.criteria)
    read = {name: _corpus(name, list(runs.values()), metrics) for name, runs in done.items()}
    return Capture(criteria=[*criteria], metrics=tuple(metrics), points=points, missing=missing, corpora=read)


_SYSTEMS = {"clip": "CLIP", "classes": "Classes"}


def _system(run: Run | None) -> str:
    return "Text" if run is None else _SYSTEMS.get(family_of(run.record), "Text")


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
