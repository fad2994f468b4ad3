"""Charts as Vega-Lite specs with their data inside; whoever draws one adds the theme, light or dark.

Colours are told apart by colour-blind readers: those of Okabe and Ito for categories, cividis for amounts, and blue to
orange for changes in both directions. A spec names none of them: it says what they are for, and the theme has them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite, log10
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from quantdrift.base.display import clean, shorten
from quantdrift.base.extras import extras_named
from quantdrift.base.records import whole_file
from quantdrift.evidence.perturbation import flips, separation_ratio
from quantdrift.evidence.record import Evidence
from quantdrift.spec.grammar import Scheme
from quantdrift.stages.weights import DEFAULT_GROUP_SIZE
from quantdrift.statistics.conformal import confidence_in
from quantdrift.trust.certify import certify
from quantdrift.trust.rescoring import given_back
from quantdrift.trust.router import percentile_threshold
from quantdrift.trust.sweep import sweep

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_LONGEST = 70
"""Characters of a name in a chart."""
_CATEGORIES = {
    False: ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8f6b00", "#56b4e9", "#7a7a7a", "#1a1a1a"),
    True: ("#56b4e9", "#ff9b57", "#2fcf9f", "#e7a3c8", "#f0e442", "#3b8fd0", "#a8a8a8", "#f2f2f2"),
}
_AMOUNTS = {
    False: ("#f7f4e9", "#f2d58a", "#e8a04c", "#cc5f34", "#8e2f3c", "#4a1942"),
    True: ("#22262e", "#4a2f55", "#8c3a58", "#cf5f49", "#f0a04b", "#fbe9a3"),
}
_BOTH_WAYS = {
    False: ("#b35806", "#f1a340", "#fee0b6", "#f7f7f7", "#d8e6f3", "#67a9cf", "#2166ac"),
    True: ("#ffa94d", "#c07320", "#6d4720", "#2b2f37", "#28486b", "#3f7cba", "#8cc4ff"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart.

    Attributes:
        name: for files and links: lower-case letters, digits and hyphens.
        title: what it shows.
        caption: how to read it, in plain sentences.
        spec: the Vega-Lite spec, whole but for `config`, with its data as JSON values inside.
    """

    name: str
    title: str
    caption: str
    spec: Mapping[str, Any]


def theme(dark: bool) -> dict[str, Any]:
    """The `config` of every spec: colours, fonts and lines, for a light or a dark page."""
    ink, soft, line = ("#e8eaed", "#a9b0ba", "#3b414b") if dark else ("#1f2328", "#59636e", "#d9dee3")
    return {
        "background": "transparent",
        "font": FONT,
        "title": {"color": ink, "fontSize": 13, "fontWeight": 600, "anchor": "start", "subtitleColor": soft},
        "axis": {
            "labelColor": ink,
            "titleColor": soft,
            "titleFontWeight": "normal",
            "labelFontSize": 11,
            "titleFontSize": 12,
            "gridColor": line,
            "domainColor": line,
            "tickColor": line,
        },
        "legend": {
            "symbolBaseFillColor": soft,
            "symbolBaseStrokeColor": soft,
            "labelColor": ink,
            "titleColor": soft,
            "titleFontWeight": "normal",
            "labelLimit": 260,
        },
        "header": {"labelColor": ink, "titleColor": soft, "labelFontSize": 12},
        "text": {"color": ink},
        "rule": {"color": soft},
        "style": {
            "on-weak": {"fill": ink},
            "on-strong": {"fill": "#16191f" if dark else "#ffffff"},
            "guide": {"stroke": soft, "color": soft},
            "guide-label": {"fill": soft, "fontSize": 10},
            "interval": {"stroke": ink},
            "group-title": {"fill": ink},
        },
        "view": {"stroke": line},
        "range": {
            "category": list(_CATEGORIES[dark]),
            "heatmap": list(_AMOUNTS[dark]),
            "ramp": list(_AMOUNTS[dark]),
            "diverging": list(_BOTH_WAYS[dark]),
        },
    }


# --- what charts share ----------------------------------------------------------------------------

MOST_COLOURS = len(_CATEGORIES[False])
MOST_SHAPES = 6
WIDE = 520
PERCENT = {"format": ".0%", "grid": True}
Values = Sequence[Mapping[str, Any]]
PictureForm = Literal["png", "svg", "pdf"]


def drawn(figure: Figure, form: PictureForm, *, dark: bool = False) -> bytes:
    """A chart as a picture; nothing is fetched for it.

    Raises:
        MissingExtraError: what draws it is not installed.
    """
    with extras_named(needed_for="pictures of charts"):
        import vl_convert  # noqa: PLC0415 -- an extra

    config = theme(dark) | {"background": "#16191f" if dark else "#ffffff", "font": "DejaVu Sans, sans-serif"}
    spec = {**figure.spec, "title": {"text": figure.title}, "padding": 12}
    if form == "png":
        return bytes(vl_convert.vegalite_to_png(spec, config=config, scale=2, allowed_base_urls=[]))
    if form == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(spec, config=config, allowed_base_urls=[]))
    return str(vl_convert.vegalite_to_svg(spec, config=config, allowed_base_urls=[])).encode()


def write_pictures(figures: Iterable[Figure], folder: Path, form: PictureForm) -> list[Path]:
    """Write every chart into a folder, those with a choice once for each, and say which files these are.

    Raises:
        RunError: they cannot be written.
    """
    written = []
    for figure in (each for one in figures for each in variants(one)):
        place = folder / f"{figure.name}.{form}"
        picture = drawn(figure, form)
        with whole_file(place) as partial:
            partial.write_bytes(picture)
        written.append(place)
    return written


def variants(figure: Figure) -> list[Figure]:
    """The figure once for each choice that it offers, as a picture shows one only."""
    params = figure.spec.get("params", [])
    options = [option for param in params for option in param.get("bind", {}).get("options", [])]
    return [
        replace(
            figure,
            name=f"{figure.name}-{number}-{re.sub('[^a-z0-9]+', '-', option.lower())[:40]}".strip("-"),
            title=f"{figure.title}: {option}",
            spec={**figure.spec, "params": [{"name": param["name"], "value": option} for param in params]},
        )
        for number, option in enumerate(options, 1)
    ] or [figure]


def spec_of(values: Values, **rest: Any) -> dict[str, Any]:
    """A spec with its rows inside."""
    rows = [{name: plain(value) for name, value in row.items()} for row in values]
    return {"$schema": SCHEMA, "data": {"values": rows}, **rest}


def plain(value: Any) -> Any:
    """A value of a row: text fit to be shown, and no number that JSON does not have."""
    if isinstance(value, str):
        return shorten(clean(value), _LONGEST)
    return None if isinstance(value, float) and not isfinite(value) else value


def tooltip(**fields: str) -> list[dict[str, Any]]:
    """Fields with what they are called; a format stands behind a colon."""
    found = []
    for name, told in fields.items():
        title, _, form = told.rpartition(":") if ":" in told else (told, "", "")
        number = {"format": form, "type": "quantitative"} if form else {"type": "nominal"}
        found.append({"field": name, "title": title, **number})
    return found


def by_model(models: Collection[str], one: Mapping[str, Any], values: Values, **rest: Any) -> dict[str, Any]:
    """One chart, or one beside the other for several models."""
    if len(models) == 1:
        return spec_of(values, **one, **rest)
    facet = {"field": "model", "type": "nominal", "title": None, "sort": [plain(model) for model in models]}
    small = {**one, "width": 250, "height": 190}
    return spec_of(values, facet=facet, columns=3, spec=small, **rest)


def in_order(names: Iterable[Any]) -> list[str]:
    """Names as charts have them, each once."""
    return [plain(name) for name in dict.fromkeys(names)]


_WIDTH = re.compile(r"W([\d.]+)(?:A\d)?$")


def widths_first(names: Iterable[Any]) -> list[str]:
    """Widths from the largest down, then other names as they come."""
    return sorted(in_order(names), key=lambda name: -float(found[1]) if (found := _WIDTH.match(name)) else 0.0)


def width_of(scheme: Scheme) -> str:
    """The bits of a scheme as a spec spells them: W4, W3.5, W4A8."""
    return "fp" if scheme.full_precision else str(scheme).partition("-")[0]


def method_of(scheme: Scheme, *, granularity: bool = False) -> str:
    """The quantizer of a scheme and all else but its bits, what is usual left out."""
    _, _, rest = str(scheme).partition("+" if scheme.full_precision else "-")
    return rest if granularity else rest.replace(f"g{DEFAULT_GROUP_SIZE}-", "", 1)


def short(scheme: Scheme) -> str:
    """A scheme without the usual group size."""
    return str(scheme) if scheme.full_precision else f"{width_of(scheme)}-{method_of(scheme)}"


def marked(axis: str, place: float, text: str) -> list[dict[str, Any]]:
    """A dotted line across the chart, and what it stands for."""
    at = {axis: {"datum": place, "type": "quantitative"}}
    other = {"y": {"value": 8}} if axis == "x" else {"x": {"value": "width"}}
    turned = {"dx": -5, "align": "right"} if axis == "x" else {"dx": -4, "dy": -6, "align": "right"}
    return [
        {"data": {"values": [{}]}, "mark": {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.5}, "encoding": at},
        {
            "data": {"values": [{"text": text}]},
            "mark": {"type": "text", "style": "guide-label", **turned},
            "encoding": {**at, **other, "text": {"field": "text"}},
        },
    ]


# --- layers ---------------------------------------------------------------------------------------


def layers(allocations: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Bits of every layer and, where it was recorded, what its quantization costs; by the name of a run.

    Args:
        allocations: what run.json records as quantization.allocation.
    """
    values: list[dict[str, Any]] = []
    for name, allocation in allocations.items():
        losses: Mapping[str, float] = allocation.get("losses") or {}
        total = sum(losses.values()) or 1.0
        for place, (layer, width) in enumerate(allocation["widths"].items(), 1):
            values.append(
                {
                    "run": name,
                    "place": place,
                    "layer": layer,
                    "kind": layer.rpartition(".")[2] or layer,
                    "bits": width,
                    "share": losses[layer] / total if layer in losses else None,
                }
            )
    runs, kinds = in_order(allocations), in_order(row["kind"] for row in values)
    kind: dict[str, Any] = {"field": "kind", "type": "nominal", "sort": kinds, "title": "kind of layer"}
    colour = {"color": kind} if len(kinds) <= MOST_COLOURS else {}
    x = {
        "field": "place",
        "type": "ordinal",
        "axis": {"labelOverlap": True, "labelAngle": 0, "ticks": False},
        "title": "layer, in the model's order",
    }
    told = tooltip(layer="layer", bits="bits:d", share="share of the loss:.2%")

    def bars(field: str, title: str, **axis: Any) -> dict[str, Any]:
        y = {"field": field, "type": "quantitative", "title": title, "axis": axis}
        return {
            "width": 720,
            "height": 130,
            "mark": {"type": "bar"},
            "encoding": {"x": x, "y": y, **colour, "tooltip": told},
        }

    panels = [bars("bits", "bits per weight", tickMinStep=1)]
    if any(row["share"] is not None for row in values):
        panels.append(bars("share", "share of the loss", format=".0%"))
    bind = {"bind": {"input": "select", "options": runs, "name": "run "}} if len(runs) > 1 else {}
    return Figure(
        name="layers",
        title="Which layers get more bits",
        caption="Above: bits per weight of every layer. "
        + (
            "Below: its share of the loss that the criterion expects if all layers have the least bits; layers that "
            "cost much for their size get more."
            if len(panels) > 1
            else "What each layer's quantization costs was not recorded in these runs."
        ),
        spec=spec_of(
            values,
            params=[{"name": "run", "value": runs[0] if runs else "", **bind}],
            transform=[{"filter": "datum.run === run"}],
            vconcat=panels,
        ),
    )


# --- trust ----------------------------------------------------------------------------------------

LEVELS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
PERCENTILES = (2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 75.0, 90.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line of a chart.

    Attributes:
        model: of the runs.
        scheme: likewise.
        points: level, or share of the inputs that full precision answers; and share of the answers, None where it is
            undefined.
    """

    model: str
    scheme: str
    points: Sequence[tuple[float, float | None]]

    @classmethod
    def mean(cls, curves: Sequence[Curve]) -> Curve:
        """The mean of curves of one scheme, over corpora; defined where all are."""
        found: list[tuple[float, float | None]] = []
        for points in zip(*(curve.points for curve in curves), strict=True):
            values = [y for _, y in points if y is not None]
            found.append((fmean(x for x, _ in points), fmean(values) if len(values) == len(points) else None))
        return cls(model=curves[0].model, scheme=curves[0].scheme, points=found)


def coverage_of(evidence: Evidence) -> list[tuple[float, float | None]]:
    """Share of the answers that the stability check accepts at each of LEVELS; None where inputs are too few."""
    return [(one.alpha, one.coverage.value) for one in certify(evidence, LEVELS).certificates]


def routing_of(evidence: Evidence) -> list[tuple[float, float | None]]:
    """At each of PERCENTILES of the gap: share that full precision answers, share of the changes undone.

    Of a search, the candidate's first 10 items (5, if fewer are stored) are compared again.
    """
    if evidence.confidence is not None:
        swept = sweep(evidence, scores=("gap",), percentiles=PERCENTILES)
        return [(float(point.routed.value or 0.0), point.changes.value) for point in swept]
    confidence, changed, (back, _) = confidence_in(evidence, "gap"), flips(evidence), given_back(evidence)
    points: list[tuple[float, float | None]] = []
    for percentile in PERCENTILES:
        rows = confidence < percentile_threshold(confidence, percentile)
        points.append((float(rows.mean()), float((rows & back)[changed].mean()) if changed.any() else None))
    return points


def coverage_chart(curves: Sequence[Curve]) -> Figure:
    """How many answers the stability check accepts, by level."""
    return _curves(
        curves,
        name="stability",
        title="How many answers can be trusted",
        x="level",
        x_axis={"scale": {"type": "log"}, "axis": {"format": "~%", "values": [0.01, 0.02, 0.05, 0.1, 0.2, 0.5]}},
        y="accepted answers",
        caption="The stability check accepts an answer if the candidate's own lead reaches a threshold that is set "
        "without labels. The level is the share of all answers that may be accepted though they changed. Higher is "
        "better.",
    )


def routing_chart(curves: Sequence[Curve]) -> Figure:
    """How many top-1 changes come back, by the share of inputs that full precision answers."""
    return _curves(
        curves,
        name="routing",
        title="What asking full precision again gives back",
        x="inputs asked again, least sure first",
        x_axis={"axis": PERCENT},
        y="top-1 changes that come back",
        caption="The inputs on which the candidate is least sure are answered by full precision again; of a search, it "
        "orders the candidate's first items. The dotted line is what a random choice of inputs would give back.",
        diagonal=True,
    )


def _curves(
    curves: Sequence[Curve], *, x: str, y: str, x_axis: Mapping[str, Any], diagonal: bool = False, **told: str
) -> Figure:
    values: list[dict[str, Any]] = [
        {"model": curve.model, "scheme": curve.scheme, "width": curve.scheme.partition("-")[0], "x": place, "y": value}
        for curve in curves
        for place, value in curve.points
        if value is not None
    ]
    widths = widths_first(row["width"] for row in values)
    encoding = {
        "x": {"field": "x", "type": "quantitative", "title": x, **x_axis},
        "y": {"field": "y", "type": "quantitative", "title": y, "axis": PERCENT, "scale": {"domain": [0, 1]}},
    }
    colour = {"field": "width", "type": "nominal", "sort": widths, "title": "bits"}
    shown = tooltip(model="model", scheme="scheme", x=f"{x}:.1%", y=f"{y}:.1%")
    layer: list[dict[str, Any]] = [
        {
            "mark": {"type": "line", "point": {"size": 25}, "strokeWidth": 1.5, "opacity": 0.8},
            "encoding": {**encoding, "color": colour, "detail": {"field": "scheme"}, "tooltip": shown},
        }
    ]
    if diagonal:
        layer.append(
            {
                "data": {"values": [{"x": 0, "y": 0}, {"x": 1, "y": 1}]},
                "mark": {"type": "line", "style": "guide", "strokeDash": [2, 3]},
                "encoding": encoding,
            }
        )
    models = in_order(curve.model for curve in curves)
    one = {"width": WIDE, "height": 300, "layer": layer}
    return Figure(spec=by_model(models, one, values), **told)


# --- a run ----------------------------------------------------------------------------------------

_BINS_PER_DECADE = 6


def separation_histogram(group: Sequence[Evidence]) -> Figure:
    """How many inputs have which separation, and which of them changed; pooled over runs."""
    ratios = np.concatenate([separation_ratio(evidence) for evidence in group])
    changed = np.concatenate([flips(evidence) for evidence in group])[~np.isnan(ratios)]
    ratios = ratios[~np.isnan(ratios)]
    inside = ratios[(ratios > 0) & np.isfinite(ratios)]
    low, high = (floor(log10(inside.min())), ceil(log10(inside.max()) + 1e-9)) if len(inside) else (-2, 1)
    low, high = max(low, -5), max(min(high, 4), low + 1)
    edges = np.linspace(low, high, (high - low) * _BINS_PER_DECADE + 1)
    # what is 0 or beyond the chart stands at its ends
    with np.errstate(divide="ignore"):
        places = np.clip(np.searchsorted(edges, np.log10(ratios), side="right") - 1, 0, len(edges) - 2)
    values = []
    for place in range(len(edges) - 1):
        here, base = changed[places == place], 0
        for name, n in (("changed", int(here.sum())), ("kept", int((~here).sum()))):
            ends = {"low": float(10 ** edges[place]), "high": float(10 ** edges[place + 1])}
            values.append({**ends, "answer": name, "n": n, "base": base, "top": base + n})
            base += n
    x = {
        "field": "low",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "domain": [10.0**low, 10.0**high]},
        "title": "separation ratio",
        "axis": {"format": "~g", "grid": False, "tickCount": 6},
    }
    total = len(ratios)
    stable = int((ratios >= 1).sum())
    return Figure(
        name="separation",
        title="How far first answers lead",
        caption="The separation is the lead of the first answer over the second, in units of twice the largest score "
        f"change. At 1 or more (dotted line) the first answer cannot change: here {stable:,} of {total:,} inputs. What "
        "lies beyond the chart is counted at its ends.",
        spec=spec_of(
            [row for row in values if row["n"]],
            width=WIDE,
            height=240,
            layer=[
                {
                    "mark": {"type": "rect"},
                    "encoding": {
                        "x": x,
                        "x2": {"field": "high"},
                        "y": {"field": "base", "type": "quantitative", "title": "inputs"},
                        "y2": {"field": "top"},
                        "color": {
                            "field": "answer",
                            "type": "nominal",
                            "scale": {"domain": ["kept", "changed"]},
                            "title": "first answer",
                        },
                        "tooltip": tooltip(
                            **{"low": "from:.3g", "high": "to:.3g", "answer": "answer", "n": "inputs:d"}
                        ),
                    },
                },
                *marked("x", 1, "cannot change from 1 on")[:1],
            ],
        ),
    )
