"""What makes the rows and cells of the tables of allocations, and of answers behind a search; see tables.yaml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from quantdrift.base.errors import SpecError
from quantdrift.metrics import parse_metric
from quantdrift.scheme import FULL_BITS, Scheme
from quantdrift.spec.grammar import parse
from quantdrift.study.folder import StudyFolder
from quantdrift_paper.capture import BASE, METRICS, PAPERS, Agreement, Capture, Captured, Point
from quantdrift_paper.cells import QUANTIZED_BY
from quantdrift_paper.latex import Column, Row, escaped
from quantdrift_rag.answers import RECORD, Rag, RagRecord

OURS = "gap"
CRITERIA = {
    PAPERS: "Gap sensitivity (paper)",
    OURS: "Gap, first order (ours)",
    "gap_exact": "Gap sensitivity, by knapsack",
    "activation_norm": "Activation norm",
    BASE: "Reconstruction error",
    "sqnr": "Relative error (SQNR)",
    "depth": "Depth heuristic",
    "activation_error": "Activation-weighted error",
    "activation_salience": "Activation salience",
    "random": "Random split",
}
"""What tables call a criterion: the paper's gap sensitivity ranks layers greedily by the median shift of the gap when
one layer is really rounded; ours is the mean square of first-order shifts, with a knapsack."""
_PAIR = (BASE, PAPERS, OURS)
"""Those that stand in most tables: the paper's two, and ours."""
_GAPS = (PAPERS, OURS)
_BUDGET, _USUAL, _A8 = 3.5, 128, 8
"""Bits and calibration queries of most tables, and bits of quantized activations."""
_SYSTEMS = ("Text", "CLIP")
_FLIP = METRICS[0]

Of = tuple[Capture, Sequence[Point], str]
"""A capture, some of its points, and a criterion."""


def points_of(capture: Capture, **axes: Any) -> list[Point]:
    """The points of 3.5 bits, rounded to nearest, weights alone, of the usual number of queries, unless said else."""
    usual = {"budget": _BUDGET, "quantizer": "rtn", "activations": FULL_BITS, **axes}
    points = capture.at(**{axis: value for axis, value in usual.items() if value is not None})
    return [point for point in points if point.size == axes.get("size", usual_size(capture, points))]


def usual_size(capture: Capture, points: Sequence[Point]) -> int:
    """The calibration queries of most tables: as many as usual, else the most of these points."""
    found = {point.size for point in points}
    return _USUAL if _USUAL in found else max(found, default=0)


def criteria_of(capture: Capture, among: Iterable[str] = CRITERIA) -> list[str]:
    """The criteria of a capture in the order of tables."""
    return [name for name in among if name in capture.criteria]


def captures(capture: Capture) -> list[Captured]:
    """What each criterion captures of the flips at 3.5 bits, rounded to nearest."""
    points, flip = points_of(capture), parse_metric(_FLIP)
    found = (capture.captured(flip, points, name) for name in criteria_of(capture))
    return [captured for captured in found if captured is not None]


def share(row: Of, metric: str = _FLIP, criterion: str = "") -> float | None:
    """The capture of a criterion over points."""
    captured = row[0].captured(parse_metric(metric), row[1], criterion or row[2])
    return None if captured is None else captured.ratio.value


def lead(row: Of) -> str | None:
    """The capture of a criterion less that of reconstruction over the same points, with its interval, in points."""
    contest = None if row[2] == BASE else row[0].contest(parse_metric(_FLIP), row[1], (row[2], BASE))
    if contest is None or contest.difference.value is None:
        return None
    value, low, high = contest.difference.value, contest.difference.low, contest.difference.high
    ends = "" if low is None or high is None else rf"\,{{\scriptsize({100 * low:+.1f} to {100 * high:+.1f})}}"
    return f"${100 * value:+.1f}${ends}"


# --- rows and columns -----------------------------------------------------------------------------


def by_criterion(source: Any, system: str) -> Iterator[Row]:
    """A row for each criterion, the gap's apart, and below what these capture more than reconstruction."""
    for name in criteria_of(source.capture):
        yield Row(labels=(CRITERIA[name],), of=(system, name, share), part="gap" if name in _GAPS else "others")
    for name in criteria_of(source.capture, _GAPS):
        yield Row(labels=(f"{CRITERIA[name]} less reconstruction",), of=(system, name, lead), part="less")


def quantizer_columns(source: Any, system: str) -> list[Column]:
    """A column for each quantizer."""
    capture = source.capture

    def value(quantizer: str, row: tuple[str, str, Any]) -> Any:
        return row[2]((capture, points_of(capture, system=system, quantizer=quantizer), row[1]))

    there = {point.quantizer for point in capture.at(system=system, budget=_BUDGET)}
    return [Column(QUANTIZED_BY[q], partial(value, q)) for q in QUANTIZED_BY if q in there]


def by_budget(source: Any) -> Iterator[Row]:
    """A row for each system, budget and criterion."""
    capture = source.capture
    for system in _SYSTEMS:
        for budget in sorted(capture.values("budget")):
            points = points_of(capture, system=system, budget=budget)
            for name in criteria_of(capture, _PAIR):
                labels = (system, f"{budget:g} bits", CRITERIA[name])
                yield Row(labels=labels, of=(capture, points, name), part=(system, budget))


def by_quantizer(source: Any) -> Iterator[Row]:
    """A row for each quantizer and criterion on CLIP."""
    for quantizer, called in QUANTIZED_BY.items():
        points = points_of(source.capture, system="CLIP", quantizer=quantizer)
        for name in criteria_of(source.capture, _PAIR):
            yield Row(labels=(called, CRITERIA[name]), of=(source.capture, points, name), part=quantizer)


def by_model(source: Any, system: str) -> Iterator[Row]:
    """A row for each model."""
    for model in source.capture.values("model"):
        points = points_of(source.capture, system=system, model=model)
        yield Row(labels=(escaped(model),), of=(source.capture, points, ""))


def layers(row: Of, what: str) -> Any:
    """How the losses of layers by reconstruction and by the paper's gap sensitivity correlate: n, mean or range."""
    found = row[0].correlations(row[1], (BASE, PAPERS))
    rhos = [rho for rho, _ in found]
    if not found or what == "n":
        return found[0][1] if found else None
    return fmean(rhos) if what == "mean" else f"$[{min(rhos):+.2f}, {max(rhos):+.2f}]$"


def absolute(source: Any, system: str) -> Iterator[Row]:
    """All layers at either width, and between them the allocations, over the points that have all of these."""
    capture = source.capture
    names = criteria_of(capture, _PAIR)
    points = [p for p in points_of(capture, system=system) if {*names} <= capture.points[p].keys()]
    ends = {"low": "All W3", "high": "All W4"}
    for end, name in [("low", ""), *(("value", name) for name in names), ("high", "")] if names else ():
        of = {m: capture.captured(parse_metric(m), points, name or names[0]) for m in METRICS}
        yield Row(labels=(CRITERIA.get(name) or ends[end],), of=(end, of))


def level(row: tuple[str, Mapping[str, Captured | None]], metric: str) -> float | None:
    """The mean of a metric."""
    captured = row[1][metric]
    return None if captured is None else float(getattr(captured, row[0]))


def seeds(source: Any) -> Iterator[Row]:
    """A row for each model, and one over all of a system."""
    agreed = [agreement for agreement in source.capture.agreements() if agreement.size == agreement.against]
    for system in _SYSTEMS:
        models = dict.fromkeys(point.model for point in source.capture.at(system=system))
        of_system = [agreement for agreement in agreed if agreement.model in models]
        for model in models:
            yield Row(labels=(system, escaped(model)), of=[a for a in of_system if a.model == model], part=system)
        if len(models) > 1:
            yield Row(labels=("", "All"), of=of_system, part=(system, "all"))


def draws(agreements: Sequence[Agreement]) -> int | None:
    """Pairs of draws, of one criterion."""
    return sum(a.n_pairs for a in agreements if a.criterion == agreements[0].criterion) if agreements else None


def agreement(agreements: Sequence[Agreement], criterion: str) -> float | None:
    """The mean over pairs of draws of the share of layers with one width."""
    of = [a for a in agreements if a.criterion == criterion]
    return sum(a.share * a.n_pairs for a in of) / sum(a.n_pairs for a in of) if of else None


def by_size(source: Any) -> Iterator[Row]:
    """A row for each number of calibration queries: of all text models together, and of every CLIP."""
    capture = source.capture
    usual = usual_size(capture, [*capture.points])
    agreed = [a for a in capture.agreements(usual) if a.against == usual != a.size]
    groups = {"Text": {"system": "Text"}}
    groups |= {f"CLIP {p.model}": {"system": "CLIP", "model": p.model} for p in capture.at(system="CLIP")}
    numbers = sorted(capture.values("size"))
    for called, axes in groups.items() if len(numbers) > 1 else ():
        for size in numbers:
            points = points_of(capture, size=size, **axes)
            of = [a for a in agreed if a.size == size and a.model in {point.model for point in points}]
            yield Row(labels=(escaped(called), f"{size}"), of=(capture, points, of), part=called)


def size_columns(source: Any) -> list[Column]:
    """How layers agree with those of the usual number of queries, and a column for each criterion."""
    names = criteria_of(source.capture)
    gap = next(iter(criteria_of(source.capture, _GAPS)), "")
    columns = [Column("Agreement", lambda row: agreement(row[2], gap))]
    for name in names:
        if name != "random":
            columns.append(Column(("Capture by criterion", CRITERIA[name]), partial(share, criterion=name)))
    return columns


def activations(source: Any) -> Iterator[Row]:
    """A row for each quantizer that has allocations with 8-bit activations."""
    for quantizer, called in QUANTIZED_BY.items():
        of = {bits: points_of(source.capture, quantizer=quantizer, activations=bits) for bits in (FULL_BITS, _A8)}
        if of[_A8]:
            yield Row(labels=(called,), of=of)


def activation_columns(source: Any) -> list[Column]:
    """Two columns for each criterion."""
    capture = source.capture

    def value(name: str, bits: int, row: Mapping[int, Sequence[Point]]) -> float | None:
        return share((capture, row[bits], name))

    return [
        Column((CRITERIA[name], head), partial(value, name, bits))
        for name in criteria_of(capture, (*_GAPS, BASE, "random"))
        for head, bits in (("W", FULL_BITS), ("W+A8", _A8))
    ]


# --- answers behind a search ----------------------------------------------------------------------

FOLDER = "rag"
"""Folder of a result of quantdrift rag in the folder of a study."""


def rag_of(folders: Iterable[StudyFolder]) -> Rag | None:
    """The answers that lie in the first study that has some.

    Raises:
        RunError: they cannot be read.
    """
    places = (folder.path / FOLDER / RECORD for folder in folders)
    return next((Rag(record=RagRecord.read(place)) for place in places if place.is_file()), None)


def _schemes(rag: Rag | None) -> list[tuple[str, Scheme | None]]:
    """Candidates by name, in the order of the paper's quantizers; None for somebody else's model."""
    schemes: list[tuple[str, Scheme | None]] = []
    for candidate in () if rag is None else rag.record.candidates:
        try:
            schemes.append((candidate.name, None if candidate.spec is None else parse(candidate.spec).scheme))
        except SpecError:
            schemes.append((candidate.name, None))
    order = list(QUANTIZED_BY)
    return sorted(schemes, key=lambda pair: len(order) if pair[1] is None else order.index(pair[1].quantizer))


def answers(source: Any) -> Iterator[Row]:
    """A row for each uniform scheme, below the reference and the control."""
    rag = source.rag
    uniform = [(name, scheme) for name, scheme in _schemes(rag) if scheme is None or scheme.criterion is None]
    if uniform:
        if rag.record.control is not None:
            yield Row(labels=("No passages",), of=(rag, rag.record.control.name))
        yield Row(labels=("Full-precision retrieval",), of=(rag, rag.record.reference.name))
    widths = {scheme.weight_bits for _, scheme in uniform if scheme is not None}
    for name, scheme in uniform:
        before = f"W{scheme.weight_bits:g} " if scheme is not None and len(widths) > 1 else ""
        label = escaped(name) if scheme is None else f"{before}{QUANTIZED_BY[scheme.quantizer]}"
        yield Row(labels=(f"Quantized retrieval, {label}",), of=(rag, name))


def scored(row: Sequence[Any], measure: str) -> float | None:
    """What the answers of a condition score."""
    estimate = row[0].estimates[row[1]].get(measure)
    return None if estimate is None else estimate.value


def effect(row: Sequence[Any], what: str) -> int | None:
    """Questions whose answer a candidate changes."""
    found = row[0].effects.get(row[1])
    return None if found is None else int(getattr(found, what))


def chosen(source: Any, criteria: Sequence[str]) -> Iterator[Row]:
    """A row for each quantizer with widths of these criteria, and the points of capture on the same data."""
    for name, scheme in _schemes(source.rag):
        solver = "" if scheme is None or scheme.option("solver") is None else f"+solver={scheme.option('solver')}"
        if scheme is not None and (criterion := f"{scheme.criterion}{solver}") in criteria:
            points = points_of(source.capture, quantizer=scheme.quantizer)
            points = [point for point in points if point.data == source.rag.record.data]
            labels = (QUANTIZED_BY[scheme.quantizer], CRITERIA[criterion])
            yield Row(labels=labels, of=(source.rag, name, (source.capture, points, criterion)))


def captured_there(row: Sequence[Any]) -> float | None:
    """The capture of the top-1 on the data that questions are of."""
    return share(row[2])


def asked(source: Any, rows: object) -> str:
    """Say who answered what."""
    record = source.rag.record
    n = f"{len(record.ids):,} questions of {record.data}, {record.n_passages} passages each"
    return f"{n}; answered by the {record.kind} {record.generator}."
