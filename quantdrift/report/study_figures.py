"""The charts of a study, from the results of its cells."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log10, sqrt
from statistics import fmean
from typing import Any

from quantdrift.compare.pooled import standard_error
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import show
from quantdrift.report import figures
from quantdrift.scheme import FULL_BITS, Scheme
from quantdrift.study.results import Result, unseeded

_MAP = 860
"""Width of the map in pixels at most."""


def by_width(result: Result) -> tuple[float, float]:
    """Sorting key: most bits first."""
    return -result.parsed.weight_bits, result.parsed.activation_bits or FULL_BITS


def value_of(result: Result, metric: str) -> float | None:
    """A metric of a cell; None if the cell is not measured, or the metric undefined."""
    estimate = result.metrics.get(metric)
    return None if estimate is None else estimate.value


HEATS: Mapping[str, tuple[str, Callable[[float], float]]] = {
    "flip@1": ("top-1 changes, %", sqrt),
    "gold_lost@1": ("relevant first answers lost, %", sqrt),
    "change.ndcg@10": ("change of nDCG@10", lambda value: sqrt(max(0.0, -value))),
    "change.accuracy": ("change of accuracy, points", lambda value: sqrt(max(0.0, -value))),
    "separation": ("median separation", lambda value: -log10(max(value, 1e-9)) / 2.5),
}
"""Metric to its title in the heat map, and to the shade of a value, which is clipped to 0 to 1."""


def heat_map(results: Sequence[Result], links: Mapping[str, str]) -> figures.Figure:
    """Chart models x schemes, one metric at a time; a cell that was not measured shows its state."""
    models, corpora = {result.cell.model for result in results}, {result.cell.data.called for result in results}
    names = [name for name in HEATS if any(value_of(result, name) is not None for result in results)] or ["flip@1"]
    values: list[dict[str, Any]] = []
    for result in sorted(results, key=by_width):
        model, data = result.cell.model, result.cell.data.called
        parts = [*([model] if len(models) > 1 or len(corpora) == 1 else []), *([data] if len(corpora) > 1 else [])]
        place = {"row": " · ".join(parts), "scheme": figures.short(result.parsed), "model": model, "data": data}
        for name in names:
            (title, shade), value = HEATS[name], value_of(result, name)
            text = str(result.state) if result.run is None else "-"
            if value is not None:
                text = show(parse_metric(name), result.metrics[name]).removesuffix(" %")
            dark = None if value is None else min(1.0, max(0.0, shade(value)))
            shown = {"shown": title, "told": text, "shade": dark, "open": links.get(result.cell.name)}
            values.append({**place, **shown})
    schemes, rows = figures.in_order(row["scheme"] for row in values), figures.in_order(row["row"] for row in values)
    colour = {"field": "shade", "type": "quantitative", "scale": {"domain": [0, 1]}, "legend": None}
    words = {"fontSize": 11, "cursor": "pointer"}
    spec = figures.spec_of(
        values,
        **figures.choice("shown", [HEATS[name][0] for name in names], "show"),
        width={"step": max(36, min(96, _MAP // max(1, len(schemes))))},
        height={"step": 26},
        encoding={
            "x": figures.named("scheme", sort=schemes, axis={"labelAngle": -40, "orient": "top", "grid": False}),
            "y": figures.named("row", sort=rows, axis={"labelLimit": 260}),
            "tooltip": figures.tooltip(model="model", scheme="scheme", data="data", shown="shown", told="value"),
        },
        layer=[
            figures.layer("rect", {"color": colour}, cornerRadius=2, cursor="pointer"),
            *(
                figures.layer("text", {"text": {"field": "told"}}, where=where, style=style, **words)
                for style, where in (("on-weak", "!(datum.shade > 0.6)"), ("on-strong", "datum.shade > 0.6"))
            ),
        ],
    )
    return figures.Figure(
        name="heat-map",
        title="Damage by model and scheme",
        caption="Each square is one run; the stronger its colour, the more damage. Schemes with more bits per weight "
        "are on the left. A separation of 1 or more means that the typical top-1 cannot change. A word instead of a "
        "number is the state of a run that is not finished.",
        spec=spec,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """The top-1 change rate of one scheme of one model, averaged over the corpora of a study.

    Attributes:
        model: name of the model in the study.
        scheme: the scheme.
        value: mean over corpora.
        low: lower end of the 95 % interval if there is one run; otherwise the mean minus its standard error.
        high: the upper end, or the mean plus its standard error.
        n: number of runs.
        bits: mean bits per weight, scales counted; None if unknown.
    """

    model: str
    scheme: Scheme
    value: float
    low: float | None
    high: float | None
    n: int
    bits: float | None


def averaged(results: Sequence[Result]) -> list[Averaged]:
    """Average the change rate for each scheme of each model; the seeds of a scheme count as further runs."""
    groups: dict[tuple[str, Scheme], list[Result]] = {}
    for result in results:
        if value_of(result, "flip@1") is not None:
            groups.setdefault((result.cell.model, unseeded(result.parsed)), []).append(result)
    averages = []
    for (model, scheme), members in groups.items():
        rates = [result.metrics["flip@1"] for result in members]
        values = [float(rate.value or 0.0) for rate in rates]
        mean, error = fmean(values), standard_error(values)
        low, high = (rates[0].low, rates[0].high) if error is None else (max(0.0, mean - error), mean + error)
        known = [bits for result in members if (bits := result.bits("linear_with_scales")) is not None]
        all_bits = fmean(known) if len(known) == len(members) else None
        averages.append(
            Averaged(model=model, scheme=scheme, value=mean, low=low, high=high, n=len(values), bits=all_bits)
        )
    return averages


_BARS = {False: "Bars are 95 % intervals.", True: "Points are means over the corpora, bars their standard errors."}
_ENDS = {"rate": "changed:.1%", "low": "from:.1%", "high": "to:.1%"}


def _row(rate: Averaged) -> dict[str, Any]:
    return {"model": rate.model, "rate": rate.value, "low": rate.low, "high": rate.high}


def change_rates(results: Sequence[Result]) -> figures.Figure:
    """Chart the top-1 change rate by quantizer and width, with intervals and the noise floor."""
    rates = [rate for rate in averaged(results) if rate.scheme.criterion is None]
    many = len({rate.scheme.group_size for rate in rates}) > 1
    values = [
        {
            **_row(rate),
            "width": figures.width_of(rate.scheme),
            "method": figures.method_of(rate.scheme, granularity=many),
            "n": rate.n,
        }
        for rate in sorted(rates, key=lambda rate: -rate.scheme.weight_bits)
    ]
    methods = figures.in_order(row["method"] for row in values)
    shared: dict[str, Any] = {
        "x": figures.named("width", sort=figures.in_order(row["width"] for row in values), axis={"labelAngle": 0}),
        "xOffset": {"field": "method", "sort": methods},
        "color": figures.named("method", "quantizer", sort=methods),
        "tooltip": figures.tooltip(model="model", width="bits", method="quantizer", **_ENDS, n="runs:d"),
    }
    y = figures.amount("rate", "top-1 changes", axis=figures.PERCENT)
    ends = {**shared, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    point = figures.layer("point", {**shared, "y": y}, filled=True, size=60, opacity=1)
    layers = [figures.layer("rule", ends, strokeWidth=2), point]
    floor, floors = "", [value for result in results if (value := value_of(result, "noise_floor")) is not None]
    if floors:
        floor = f" The reference against itself changes {100 * max(floors):.1f} % at most (the noise floor)."
        layers += figures.marked("y", max(floors), "noise floor")
    return figures.Figure(
        name="change-rates",
        title="Top-1 changes by quantizer and width",
        caption=f"{_BARS[any(rate.n > 1 for rate in rates)]} Lower is better.{floor}",
        spec=figures.by_model(figures.in_order(rate.model for rate in rates), layers, values),
    )


def pareto(results: Sequence[Result]) -> figures.Figure:
    """Chart bits per weight against top-1 changes; a line joins the best schemes, and allocations have another mark."""
    known = [(rate, rate.bits) for rate in averaged(results) if rate.bits is not None]
    rates = sorted(known, key=lambda pair: pair[1])
    kinds = ["one width", "widths chosen per layer"]
    values = [
        {
            **_row(rate),
            "scheme": figures.short(rate.scheme),
            "bits": bits,
            "kind": kinds[rate.scheme.criterion is not None],
            "best": not any(
                other.model == rate.model
                and less <= bits
                and other.value <= rate.value
                and (less, other.value) != (bits, rate.value)
                for other, less in rates
            ),
        }
        for rate, bits in rates
    ]
    place = {
        "x": figures.amount(
            "bits",
            "bits per weight, scales counted",
            scale={"zero": False, "nice": True, "padding": 24},
            axis={"tickCount": 8},
        ),
        "y": figures.amount("rate", "top-1 changes", axis=figures.PERCENT),
    }
    points = {
        **place,
        "color": figures.named("kind", scale={"domain": kinds}),
        "shape": figures.named("kind", scale={"domain": kinds}),
        "opacity": {"condition": {"test": "datum.best", "value": 1}, "value": 0.4},
        "tooltip": figures.tooltip(model="model", scheme="scheme", bits="bits per weight:.2f", **_ENDS),
    }
    names = {**place, "text": {"field": "scheme"}}
    layers = [
        figures.layer("line", {**place, "order": {"field": "bits"}}, where="datum.best", style="guide"),
        figures.layer("point", points, filled=True, size=70),
        figures.layer("text", names, where="datum.best", style="guide-label", align="left", dx=7, dy=-8),
    ]
    mean = ", mean over the corpora" if any(rate.n > 1 for rate, _ in rates) else ""
    return figures.Figure(
        name="pareto",
        title="Bits against top-1 changes",
        caption=f"Each point is a scheme: its bits per weight, and the top-1 changes{mean}. Left and low is best. The "
        "line joins the schemes that no other beats in both; the others are pale.",
        spec=figures.by_model(figures.in_order(rate.model for rate, _ in rates), layers, values),
    )
