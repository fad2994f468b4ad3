"""The charts of a study, from the results of its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, log10, sqrt
from statistics import fmean
from typing import Any

from quantdrift.compare.pooled import standard_error
from quantdrift.report.figures import (
    PERCENT,
    WIDE,
    Figure,
    by_model,
    in_order,
    marked,
    method_of,
    short,
    spec_of,
    tooltip,
    width_of,
)
from quantdrift.spec.grammar import Scheme
from quantdrift.stages.weights import FULL_BITS
from quantdrift.study.results import Result

_MAP = 860
"""Pixels that the squares of a row of the map may take."""


def by_width(results: Iterable[Result]) -> list[Result]:
    """Most bits first, and otherwise as in the study."""
    return sorted(results, key=lambda one: (-one.parsed.weight_bits, one.parsed.activation_bits or FULL_BITS))


def _rate(result: Result, metric: str) -> float | None:
    found = result.metrics.get(metric)
    return None if found is None else found.value


HEATS: Mapping[str, tuple[str, str, Callable[[float], float]]] = {
    "flip@1": ("top-1 changes, %", "{:.1f}", lambda value: sqrt(value / 100)),
    "gold_lost@1": ("relevant first answers lost, %", "{:.1f}", lambda value: sqrt(value / 100)),
    "change.ndcg@10": ("change of nDCG@10", "{:+.3f}", lambda value: sqrt(max(0.0, -value))),
    "change.accuracy": ("change of accuracy, points", "{:+.1f}", lambda value: sqrt(max(0.0, -value / 100))),
    "separation": ("median separation", "{:.3g}", lambda value: -log10(max(value, 1e-9)) / 2.5),
}
"""What the heat map shows: its title, how a number is written, and how dark it is, from 0 to 1."""


def heat_map(results: Sequence[Result], links: Mapping[str, str], shown: str = "flip@1") -> Figure:
    """Models x schemes, one metric at a time; cells that were not measured say why."""
    models, corpora = in_order(one.cell.model for one in results), in_order(one.cell.data.called for one in results)
    titles = {name: HEATS[name][0] for name in HEATS if any(_known(one, name) for one in results)}
    titles = titles or {shown: HEATS[shown][0]}
    shown = shown if shown in titles else next(iter(titles))
    values: list[dict[str, Any]] = []
    for one in by_width(results):
        row = " · ".join(
            name
            for name, many in ((one.cell.model, len(models) > 1), (one.cell.data.called, len(corpora) > 1))
            if many or (len(models) == len(corpora) == 1 and name == one.cell.model)
        )
        place = {"row": row, "scheme": short(one.parsed), "model": one.cell.model, "data": one.cell.data.called}
        for name, title in titles.items():
            estimate = one.metrics.get(name)
            value = None if estimate is None else estimate.value
            if value is not None:
                value = 100 * value if "%" in title or "points" in title else value
            told: str = one.state if one.run is None else "-"
            if value is not None:
                told = HEATS[name][1].format(value) if isfinite(value) else "∞"
            shade = None if value is None else min(1.0, max(0.0, HEATS[name][2](value)))
            values.append({**place, "shown": title, "told": told, "shade": shade, "open": links.get(one.cell.name)})
    schemes, rows = in_order(row["scheme"] for row in values), in_order(row["row"] for row in values)
    words = {"type": "text", "fontSize": 11, "cursor": "pointer"}
    spec = spec_of(
        values,
        params=[
            {
                "name": "shown",
                "value": titles[shown],
                "bind": {"input": "select", "options": [*titles.values()], "name": "show "},
            }
        ]
        if len(titles) > 1
        else [{"name": "shown", "value": titles[shown]}],
        transform=[{"filter": "datum.shown === shown"}],
        width={"step": max(36, min(48, _MAP // max(1, len(schemes))))},
        height={"step": 26},
        encoding={
            "x": {
                "field": "scheme",
                "type": "nominal",
                "sort": schemes,
                "title": None,
                "axis": {"labelAngle": -40, "orient": "top", "grid": False},
            },
            "y": {"field": "row", "type": "nominal", "sort": rows, "title": None, "axis": {"labelLimit": 260}},
            "tooltip": tooltip(model="model", scheme="scheme", data="data", shown="shown", told="value"),
        },
        layer=[
            {
                "mark": {"type": "rect", "cornerRadius": 2, "cursor": "pointer"},
                "encoding": {
                    "color": {"field": "shade", "type": "quantitative", "scale": {"domain": [0, 1]}, "legend": None}
                },
            },
            {
                "mark": {**words, "style": "on-weak"},
                "transform": [{"filter": "datum.shade === null || datum.shade <= 0.6"}],
                "encoding": {"text": {"field": "told"}},
            },
            {
                "mark": {**words, "style": "on-strong"},
                "transform": [{"filter": "datum.shade > 0.6"}],
                "encoding": {"text": {"field": "told"}},
            },
        ],
    )
    return Figure(
        name="heat-map",
        title="Damage by model and scheme",
        caption="Each square is one run; the stronger its colour, the more damage. Schemes with more bits stand on the "
        "left. A separation of 1 or more means that the typical first answer cannot change. A word in place of a "
        "number says that the run is not there.",
        spec=spec,
    )


def _known(result: Result, name: str) -> bool:
    found = result.metrics.get(name)
    return found is not None and found.value is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """A metric of one scheme of one model, over the corpora of a study.

    Attributes:
        model: as the study calls it.
        scheme: of the candidate.
        value: mean over corpora.
        low: of one corpus the 95 % interval's; of several the mean minus its standard error, as in the paper.
        high: likewise.
        n: how many runs.
        bits: mean bits per weight, scales counted; None where that is not known.
    """

    model: str
    scheme: Scheme
    value: float
    low: float | None
    high: float | None
    n: int
    bits: float | None


def averaged(results: Sequence[Result], metric: str) -> list[Averaged]:
    """Every scheme of every model over the corpora of one kind; other seeds of a scheme count as more runs."""
    groups: dict[tuple[str, Scheme], list[Result]] = {}
    for one in results:
        if (value := _rate(one, metric)) is not None and isfinite(value):
            plain = replace(one.parsed, options=tuple(pair for pair in one.parsed.options if pair[0] != "seed"))
            groups.setdefault((one.cell.model, plain), []).append(one)
    found = []
    for (model, scheme), members in groups.items():
        values = [float(one.metrics[metric].value or 0.0) for one in members]
        mean, error = fmean(values), standard_error(values)
        single = members[0].metrics[metric]
        bits = [bits for one in members if (bits := one.bits("linear_with_scales")) is not None]
        found.append(
            Averaged(
                model=model,
                scheme=scheme,
                value=mean,
                low=single.low if error is None else max(0.0, mean - error),
                high=single.high if error is None else mean + error,
                n=len(values),
                bits=fmean(bits) if len(bits) == len(members) else None,
            )
        )
    return found


_HOW = {False: "Bars are 95 % intervals.", True: "Points are means over the corpora, bars their standard errors."}


def change_rates(results: Sequence[Result]) -> Figure:
    """Top-1 change rate by quantizer and width, with intervals and the noise floor."""
    rates = [one for one in averaged(results, "flip@1") if one.scheme.criterion is None]
    many = len({one.scheme.group_size for one in rates}) > 1
    values: list[dict[str, Any]] = [
        {
            "model": one.model,
            "width": width_of(one.scheme),
            "method": method_of(one.scheme, granularity=many),
            "rate": one.value,
            "low": one.low,
            "high": one.high,
            "n": one.n,
        }
        for one in sorted(rates, key=lambda one: -one.scheme.weight_bits)
    ]
    widths, methods = in_order(row["width"] for row in values), in_order(row["method"] for row in values)
    x = {"field": "width", "type": "nominal", "sort": widths, "title": None, "axis": {"labelAngle": 0}}
    shared = {
        "x": x,
        "xOffset": {"field": "method", "sort": methods},
        "color": {"field": "method", "type": "nominal", "sort": methods, "title": "quantizer"},
        "tooltip": tooltip(
            model="model", width="bits", method="quantizer", rate="changed:.1%", low="from:.1%", high="to:.1%",
            n="runs:d",
        ),
    }  # fmt: skip
    y = {"field": "rate", "type": "quantitative", "title": "top-1 changes", "axis": PERCENT}
    layer: list[dict[str, Any]] = [
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {**shared, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {"mark": {"type": "point", "filled": True, "size": 60, "opacity": 1}, "encoding": {**shared, "y": y}},
    ]
    models = in_order(one.model for one in rates)
    floors, told = [floor for one in results if (floor := _rate(one, "noise_floor")) is not None], ""
    if floors:
        told = f" The reference against itself changes {100 * max(floors):.1f} % at most (the noise floor)."
        layer += marked("y", max(floors), "noise floor")
    return Figure(
        name="change-rates",
        title="Top-1 changes by quantizer and width",
        caption=f"{_HOW[any(one.n > 1 for one in rates)]} Lower is better.{told}",
        spec=by_model(models, {"width": WIDE, "height": 300, "layer": layer}, values),
    )


def pareto(results: Sequence[Result]) -> Figure:
    """Bits per weight against top-1 changes; what nothing beats is joined, and allocations have another mark."""
    rates = [one for one in averaged(results, "flip@1") if one.bits is not None]
    values: list[dict[str, Any]] = []
    for one in rates:
        rivals = [other for other in rates if other.model == one.model and other is not one]
        better = any(
            (other.bits or 0.0) <= (one.bits or 0.0)
            and other.value <= one.value
            and (other.bits, other.value) != (one.bits, one.value)
            for other in rivals
        )
        values.append(
            {
                "model": one.model,
                "scheme": short(one.scheme),
                "bits": one.bits,
                "rate": one.value,
                "low": one.low,
                "high": one.high,
                "kind": "one width" if one.scheme.criterion is None else "widths chosen per layer",
                "best": not better,
            }
        )
    for model in {row["model"] for row in values}:
        best = sorted((row for row in values if row["model"] == model and row["best"]), key=lambda row: row["bits"])
        for place, row in enumerate(best):
            row["odd"] = place % 2
    x = {
        "field": "bits",
        "type": "quantitative",
        "title": "bits per weight, scales counted",
        "scale": {"zero": False, "nice": True, "padding": 24},
    }
    y = {"field": "rate", "type": "quantitative", "title": "top-1 changes", "axis": PERCENT}
    told = tooltip(
        model="model", scheme="scheme", bits="bits per weight:.2f", rate="changed:.1%", low="from:.1%", high="to:.1%"
    )
    kinds = ["one width", "widths chosen per layer"]
    only = [{"filter": "datum.best"}]
    layer = [
        {
            "transform": only,
            "mark": {"type": "line", "style": "guide"},
            "encoding": {"x": x, "y": y, "order": {"field": "bits"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70},
            "encoding": {
                "x": x,
                "y": y,
                "color": {"field": "kind", "type": "nominal", "scale": {"domain": kinds}, "title": None},
                "shape": {"field": "kind", "type": "nominal", "scale": {"domain": kinds}, "title": None},
                "opacity": {"condition": {"test": "datum.best", "value": 1}, "value": 0.4},
                "tooltip": told,
            },
        },
        *(
            {
                "transform": [{"filter": f"datum.best && datum.odd === {odd}"}],
                "mark": {"type": "text", "style": "guide-label", "align": "left", "dx": 7, "dy": 11 if odd else -8},
                "encoding": {"x": x, "y": y, "text": {"field": "scheme"}},
            }
            for odd in (0, 1)  # names of neighbours stand above and below
        ),
    ]
    models = in_order(one.model for one in rates)
    return Figure(
        name="pareto",
        title="What bits buy",
        caption="Each point is a scheme: its bits per weight, and the top-1 changes"
        f"{', mean over the corpora' if any(one.n > 1 for one in rates) else ''}. Left and low is best. The line joins "
        "the schemes that no other one beats in both; the others are pale.",
        spec=by_model(models, {"width": WIDE, "height": 300, "layer": layer}, values),
    )
