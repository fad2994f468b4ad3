"""The results of a study: a row for each cell, and schemes compared over all corpora."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from quantdrift.asking.ask import State
from quantdrift.compare.corpus_size import SizeEffect, compare_sizes
from quantdrift.compare.pooled import Pooled, adjusted, check_pooled, pool
from quantdrift.evidence.record import Evidence
from quantdrift.metrics import Metric, parse_metric
from quantdrift.metrics.base import estimates as estimated
from quantdrift.metrics.numbers import show
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import classifies, is_part
from quantdrift.runs.words import query_ratio, stored_bytes
from quantdrift.scheme import Scheme
from quantdrift.show.tables import Column
from quantdrift.statistics.estimates import Estimate
from quantdrift.study.folder import StudyFolder
from quantdrift.study.plan import Cell

SHOWN = ("flip@1", "gold_lost@1", "change.ndcg@10", "separation")
"""Default metrics of a study of searches."""
SHOWN_OF_CLASSES = ("flip@1", "gold_lost@1", "change.accuracy", "separation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One cell: its state, and its run and metrics once it is done."""

    cell: Cell
    state: State
    run: Run | None
    metrics: dict[str, Estimate]

    @property
    def scheme(self) -> str:
        """The candidate's scheme, canonical."""
        return str(self.parsed)

    @property
    def parsed(self) -> Scheme:
        """The candidate's scheme."""
        return self.cell.spec.scheme

    def bits(self, of: str) -> float | None:
        """Return the bits of a weight, `linear` or `linear_with_scales`; None before the cell is done."""
        return None if self.run is None else (self.run.record.get("bits_per_weight") or {}).get(of)

    @property
    def bytes_per_document(self) -> float | None:
        """Bytes of a document, in its index if there is one; None for embeddings stored as they are."""
        return None if self.run is None else stored_bytes(self.run.record)

    @property
    def query_ratio(self) -> float | None:
        """Time of a query in the index, as a multiple of exact search; None if not timed."""
        return None if self.run is None else query_ratio(self.run.record)

    @property
    def n_inputs(self) -> int | None:
        """Queries or labelled inputs; None before the cell is done."""
        data = {} if self.run is None else self.run.record["data"]
        return data.get("n_queries", data.get("n_inputs"))


def columns_of(metrics: Sequence[Metric]) -> list[Column]:
    """Return the columns of results: names, bits, then value, low and high of every metric."""
    columns = [
        Column("model", "cell.model", kind="words", key="model"),
        Column("scheme", "scheme", kind="words"),
        Column("data", "cell.data.called", kind="words", key="data"),
        Column("", "state", kind="words"),
        Column("", lambda result: result.bits("linear"), key="bits"),
        Column("", lambda result: result.bits("linear_with_scales"), key="bits_with_scales"),
        Column("", "bytes_per_document"),
        Column("", "query_ratio"),
        Column("", "n_inputs", kind="count"),
    ]
    for metric in metrics:
        columns.append(Column(str(metric), partial(_end, str(metric), ""), partial(show, metric), key=""))
        ends = {"value": str(metric), "low": f"{metric} low", "high": f"{metric} high"}
        columns += [Column("", partial(_end, str(metric), end), key=key) for end, key in ends.items()]
    return [
        *columns,
        Column("", lambda result: str(result.cell.spec), kind="words", key="spec"),
        Column("", lambda result: result.run and str(result.run.path), kind="words", key="run"),
    ]


def _end(metric: str, end: str, result: Result) -> Any:
    """Return an end of a metric's estimate, or all of it; None before the cell is done."""
    estimate = result.metrics.get(metric)
    return getattr(estimate, end, None) if end else estimate


def results_of(folder: StudyFolder, metrics: Sequence[Metric] = ()) -> tuple[list[Result], list[Metric]]:
    """Return every cell in the order of the study, with metrics computed from its evidence, and these metrics.

    The default metrics depend on the kind of runs.
    """
    rows, runs = [], [folder.run(cell) for cell in folder.cells]
    if not metrics:
        done = [run for run in runs if run is not None]
        default = SHOWN_OF_CLASSES if done and all(classifies(run.record) for run in done) else SHOWN
        metrics = [parse_metric(name) for name in default]
    for cell, run in zip(folder.cells, runs, strict=True):
        estimates = {} if run is None else metrics_of(run.evidence(), metrics)
        state = folder.state(cell) if run is None else "done"
        rows.append(Result(cell=cell, state=state, run=run, metrics=estimates))
    return rows, list(metrics)


def metrics_of(evidence: Evidence, metrics: Sequence[Metric]) -> dict[str, Estimate]:
    """Return metrics by name; those of more ranks than are kept are undefined."""
    return dict(zip(map(str, metrics), estimated(metrics, evidence), strict=True))


# --- one corpus at several sizes ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A scheme on the smallest and the largest measured part of a corpus.

    Attributes:
        model: the model's name in the study.
        scheme: the candidate's canonical scheme.
        corpus: the corpus' name in the study, without a size.
        effect: the comparison of both, query by query.
    """

    model: str
    scheme: str
    corpus: str
    effect: SizeEffect


def sized_of(cells: Iterable[tuple[Cell, Run | None]]) -> list[Sized]:
    """Compare sizes for each scheme on each corpus with two sizes or more done."""
    runs_of: dict[tuple[str, str, str], list[Run]] = {}
    for cell, run in cells:
        if run is not None and run.record["data"].get("corpus_size"):
            key = (cell.model, str(cell.spec.scheme), cell.data.corpus)
            runs_of.setdefault(key, []).append(run)
    compared = []
    for (model, scheme, corpus), runs in runs_of.items():
        if len(runs) > 1:
            small, *_, large = sorted(runs, key=lambda run: int(run.record["data"]["corpus_size"]["n"]))
            effect = compare_sizes(small.evidence(), large.evidence())
            compared.append(Sized(model=model, scheme=scheme, corpus=corpus, effect=effect))
    return compared


# --- schemes compared over all corpora ------------------------------------------------------------


def pooled(results: Sequence[Result], metric: Metric) -> list[Pooled]:
    """Compare every scheme with the first one of its model, over all whole corpora; seeds of a scheme are pooled.

    Raises:
        QuantDriftError: the metric cannot be pooled.
    """
    check_pooled(metric)
    compared = []
    for model in dict.fromkeys(result.cell.model for result in results):
        runs: dict[str, dict[str, list[Run]]] = {}
        for result in results:
            if result.cell.model == model and result.run is not None and not is_part(result.run.record):
                of_scheme = runs.setdefault(str(unseeded(result.parsed)), {})
                of_scheme.setdefault(result.cell.data.called, []).append(result.run)
        first = next(iter(runs), "")
        tests = []
        for scheme, of_data in list(runs.items())[1:]:
            strata = {data: (runs[first][data], seeds) for data, seeds in of_data.items() if data in runs[first]}
            if test := pool(strata, metric, model=model, scheme=scheme, against=first):
                tests.append(test)
        compared += adjusted(tests, metric)
    return compared


def unseeded(scheme: Scheme) -> Scheme:
    """Return the scheme without its seed."""
    return replace(scheme, options=tuple(option for option in scheme.options if option[0] != "seed"))
