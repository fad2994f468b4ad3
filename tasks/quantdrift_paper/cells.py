"""The finished runs of one study or of several, and how tables choose among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isfinite
from statistics import fmean
from typing import Any

from quantdrift.evidence.record import Evidence
from quantdrift.kinds.quantizer import QUANTIZERS, input_scale
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import classifies, is_part
from quantdrift.scheme import DEFAULT_GROUP_SIZE
from quantdrift.spec.grammar import stages_of
from quantdrift.statistics.estimates import Estimate
from quantdrift.study.folder import StudyFolder
from quantdrift.study.plan import Cell
from quantdrift_paper.latex import Row, escaped

QUANTIZED_BY = {name: QUANTIZERS[name].title for name in ("rtn", "hqq", "gptq", "gptq_ao", "awq", "adaround")}
"""Quantizers in the order of the paper's tables."""
FAMILIES = {
    "classes": "Classification", "search": "Text retrieval", "self": "Retrieval", "clip": "CLIP", "rerank": "Reranking"
}  # fmt: skip
"""What a run reads, and what tables call it: a self-retrieval searches every input among the others."""
RETRIEVAL = ("search", "self")
BITS = (4, 3)
ANY: Any = object()
"""Lifts what is usual."""
USUAL: Mapping[str, Any] = {
    "quantizer": "rtn", "group": DEFAULT_GROUP_SIZE, "activations": None, "criterion": None, "query": False,
    "whole": True, "deployed": False,
}  # fmt: skip
"""What a run has that a table does not ask about: rounded to nearest in groups of 128, weights alone, one width for all
layers, both sides, the whole corpus."""


def family_of(record: Mapping[str, Any]) -> str:
    """What a run.json is of, one of FAMILIES."""
    data = record["data"]
    if classifies(record) or data.get("shortlist"):
        return "classes" if classifies(record) else "rerank"
    if data.get("kind") == "self-retrieval":
        return "self"
    return "clip" if data.get("modalities") == "text to image" else "search"


@dataclass(slots=True, kw_only=True, eq=False)
class RunCell:
    """A finished run, whose evidence is read once.

    Attributes:
        facts: by which tables choose: model, data (as the study calls them), plain (the data, however they are read),
            family, images, probe (whether classes are read by one), bits, and those of USUAL.
    """

    cell: Cell
    run: Run
    facts: Mapping[str, Any]
    _evidence: Evidence | None = None
    _known: dict[str, Estimate] = field(default_factory=dict)

    @classmethod
    def of(cls, cell: Cell, run: Run) -> RunCell:
        """The cell of a study with its run."""
        scheme, data = cell.spec.scheme, run.record["data"]
        bits, scale = scheme.activation_bits, input_scale(scheme)
        activations: Any = bits if bits is None or scale == "tensor" else f"{bits} per {scale}"
        facts = {
            "model": cell.model,
            "data": cell.data.called,
            "plain": cell.data.plain,
            "family": family_of(run.record),
            "images": data.get("inputs") == "images",
            "probe": "probe" in run.record["settings"],
            "bits": scheme.weight_bits,
            "quantizer": scheme.quantizer,
            "group": scheme.group_size,
            "activations": activations,
            "criterion": scheme.criterion,
            "query": scheme.query_only,
            "whole": not is_part(run.record),
            "deployed": bool({*stages_of(scheme)} - {"weights", "activations"}),
        }
        return cls(cell=cell, run=run, facts=facts)

    @property
    def model(self) -> str:
        """The model, as the study calls it."""
        return str(self.facts["model"])

    @property
    def data(self) -> str:
        """The data, as the study calls them."""
        return str(self.facts["data"])

    @property
    def evidence(self) -> Evidence:
        """The evidence of the run."""
        if self._evidence is None:
            self._evidence = self.run.evidence()
        return self._evidence

    def estimate(self, metric: str) -> Estimate:
        """A metric of the run; undefined where it looks deeper than the stored ranks."""
        if metric not in self._known:
            try:
                self._known[metric] = parse_metric(metric)(self.evidence)
            except MetricError as error:
                self._known[metric] = Estimate(value=None, reason=str(error))
        return self._known[metric]

    def value(self, metric: str) -> float | None:
        """The value of a metric; None where there is no finite one."""
        value = self.estimate(metric).value
        return value if value is not None and isfinite(value) else None


Cells = Sequence[RunCell]


def run_cells(folders: Iterable[StudyFolder]) -> list[RunCell]:
    """The finished runs of studies; of a run that several have (the same pair and data), that with the most inputs."""
    cells: dict[tuple[Any, ...], RunCell] = {}
    for folder in folders:
        for cell in folder.cells:
            if (run := folder.run(cell)) is not None:
                made = RunCell.of(cell, run)
                data = run.record["data"]
                key = (
                    made.model,
                    str(cell.spec.scheme),
                    made.facts["family"],
                    data.get("fingerprint"),
                    data.get("n_documents"),
                )
                if key not in cells or _n_inputs(run) > _n_inputs(cells[key].run):
                    cells[key] = made
    return list(cells.values())


def _n_inputs(run: Run) -> int:
    held = run.record["settings"].get("held_out") or {}
    data = run.record["data"]
    return int(held.get("n_queries") or data.get("n_queries") or data.get("n_inputs") or 0)


def only(cells: Cells, **facts: Any) -> list[RunCell]:
    """Return the cells that have these facts; several values in a tuple."""
    wanted = {name: value for name, value in facts.items() if value is not ANY}
    return [
        cell
        for cell in cells
        if all(
            cell.facts[name] in value if isinstance(value, tuple) else cell.facts[name] == value
            for name, value in wanted.items()
        )
    ]


def usual(cells: Cells, **facts: Any) -> list[RunCell]:
    """Return the cells that have these facts, and else what is usual."""
    return only(cells, **{**USUAL, **facts})


def each(cells: Cells, fact: str) -> list[Any]:
    """The values of a fact: bits from the most down, quantizers in the paper's order, others as they come."""
    values = list(dict.fromkeys(cell.facts[fact] for cell in cells))
    if fact == "quantizer":
        return [name for name in QUANTIZED_BY if name in values]
    return sorted(values, reverse=True) if fact == "bits" else values


def named(fact: str, value: Any) -> str:
    """A value of a fact as a table has it."""
    return f"W{value:g}" if fact == "bits" else QUANTIZED_BY[value] if fact == "quantizer" else escaped(str(value))


def by(
    cells: Cells, axes: Sequence[str], *, shown: Sequence[str] = (), having: Mapping[str, Any] = {}, **facts: Any
) -> Iterator[Row]:
    """Make rows for every value of some facts, of usual cells with these facts, some of which have others.

    A rule stands where the bits change, if they come first. Labels are in the order of `shown`.
    """
    cells = usual(cells, **{axis: ANY for axis in axes if axis in USUAL}, **facts)
    for values in product(*(each(cells, axis) for axis in axes)):
        at = dict(zip(axes, values, strict=True))
        part = only(cells, **at)
        if only(part, **having):
            labels = tuple(named(axis, at[axis]) for axis in shown or axes)
            yield Row(labels=labels, of=part, part=at["bits"] if axes[0] == "bits" else None)


# --- values ---------------------------------------------------------------------------------------


def values(cells: Cells, metric: str) -> list[float]:
    """A value for each corpus; seeds are averaged first."""
    by_data: dict[str, list[float]] = {}
    for cell in cells:
        if (value := cell.value(metric)) is not None:
            by_data.setdefault(cell.data, []).append(value)
    return [fmean(several) for several in by_data.values()]


def mean(several: Iterable[float | None]) -> float | None:
    """The mean of those that are defined and finite."""
    defined = [value for value in several if value is not None and isfinite(value)]
    return fmean(defined) if defined else None


def mean_of(metric: str, **facts: Any) -> Callable[[Cells], float | None]:
    """The mean over corpora of a metric, of the cells of a row that have these facts."""
    return lambda cells: mean(values(only(cells, **facts), metric))
