"""Charts as Vega-Lite specs with their data inside; a page or a picture adds the theme, light or dark.

Colour-blind readers can tell the colours apart: they are those of Okabe and Ito for categories, and from light to dark
for amounts. Only the theme names colours.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from pathlib import Path
from typing import Any, Literal

import numpy as np

from quantdrift.base.display import clean, shorten
from quantdrift.base.extras import extras_named
from quantdrift.base.records import whole_file
from quantdrift.evidence.perturbation import flips, separation_ratio
from quantdrift.evidence.record import Evidence
from quantdrift.scheme import DEFAULT_GROUP_SIZE, Scheme

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_LONGEST = 70
"""Characters of a name in a chart at most."""
_CATEGORIES = {
    False: ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8f6b00", "#56b4e9", "#7a7a7a", "#1a1a1a"),
    True: ("#56b4e9", "#ff9b57", "#2fcf9f", "#e7a3c8", "#f0e442", "#3b8fd0", "#a8a8a8", "#f2f2f2"),
}
_AMOUNTS = {
    False: ("#f7f4e9", "#f2d58a", "#e8a04c", "#cc5f34", "#8e2f3c", "#4a1942"),
    True: ("#22262e", "#4a2f55", "#8c3a58", "#cf5f49", "#f0a04b", "#fbe9a3"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart.

    Attributes:
        name: name for files and links: lower-case letters, digits and hyphens.
        title: the title.
        caption: sentences on how to read it.
        spec: the Vega-Lite spec with its data, without `config`.
    """

    name: str
    title: str
    caption: str
    spec: Mapping[str, Any]


def theme(dark: bool) -> dict[str, Any]:
    """The `config` of every spec: colours, fonts and lines, for a light or a dark page."""
    ink, soft, line = ("#e8eaed", "#a9b0ba", "#3b414b") if dark else ("#1f2328", "#59636e", "#d9dee3")
    labels = {"labelColor": ink, "titleColor": soft}
    plain_title = {"titleFontWeight": "normal"}
    lines = {"gridColor": line, "domainColor": line, "tickColor": line}
    symbols = {"symbolBaseFillColor": soft, "symbolBaseStrokeColor": soft, "labelLimit": 260}
    amounts = list(_AMOUNTS[dark])
    return {
        "background": "transparent",
        "font": FONT,
        "title": {"color": ink, "fontSize": 13, "fontWeight": 600, "anchor": "start"},
        "axis": {**labels, **plain_title, **lines, "labelFontSize": 11, "titleFontSize": 12, "labelSeparation": 8},
        "axisQuantitative": {"labelOverlap": "greedy"},
        "legend": {**labels, **plain_title, **symbols},
        "header": {**labels, "labelFontSize": 12},
        "text": {"color": ink},
        "rule": {"color": soft},
        "style": {
            "on-weak": {"fill": ink},
            "on-strong": {"fill": "#16191f" if dark else "#ffffff"},
            "guide": {"stroke": soft, "color": soft},
            "guide-label": {"fill": soft, "fontSize": 10},
        },
        "view": {"stroke": line},
        "range": {"category": list(_CATEGORIES[dark]), "heatmap": amounts, "ramp": amounts},
    }


# --- a chart as a picture -------------------------------------------------------------------------

PictureForm = Literal["png", "svg", "pdf"]


def drawn(figure: Figure, form: PictureForm) -> bytes:
    """Draw a chart, without access to the network.

    Raises:
        MissingExtraError: vl-convert is not installed.
    """
    with extras_named(needed_for="pictures of charts"):
        import vl_convert  # noqa: PLC0415 -- an extra

    config = theme(False) | {"background": "#ffffff", "font": "DejaVu Sans, sans-serif"}
    spec = {**figure.spec, "title": {"text": figure.title}, "padding": 12}
    larger = {"scale": 2} if form == "png" else {}
    picture = getattr(vl_convert, f"vegalite_to_{form}")(spec, config=config, allowed_base_urls=[], **larger)
    return picture.encode() if isinstance(picture, str) else bytes(picture)


def write_pictures(figures: Iterable[Figure], folder: Path, form: PictureForm) -> list[Path]:
    """Write every chart into a folder, and return the files; a chart with a choice shows its first option.

    Raises:
        RunError: a file cannot be written.
    """
    pictures = {folder / f"{figure.name}.{form}": drawn(figure, form) for figure in figures}
    for place, picture in pictures.items():
        with whole_file(place) as partial:
            partial.write_bytes(picture)
    return list(pictures)


# --- the parts of specs ---------------------------------------------------------------------------

WIDE = 520
PERCENT = {"format": ".0%", "grid": True}
Values = Sequence[Mapping[str, Any]]
Spec = dict[str, Any]


def spec_of(values: Values, **rest: Any) -> Spec:
    """A spec with its data."""
    rows = [{name: plain(value) for name, value in row.items()} for row in values]
    return {"$schema": SCHEMA, "data": {"values": rows}, **rest}


def plain(value: Any) -> Any:
    """A value of a row as JSON: text is cleaned and shortened, and a number that is not finite is None."""
    if isinstance(value, str):
        return shorten(clean(value), _LONGEST)
    return None if isinstance(value, float) and not isfinite(value) else value


def in_order(names: Iterable[Any]) -> list[str]:
    """The different names, as charts show them."""
    return [plain(name) for name in dict.fromkeys(names)]


def named(field: str, title: str | None = None, **rest: Any) -> Spec:
    """A channel for names."""
    return {"field": field, "type": "nominal", "title": title, **rest}


def amount(field: str, title: str, **rest: Any) -> Spec:
    """A channel for numbers."""
    return {"field": field, "type": "quantitative", "title": title, **rest}


def layer(mark: str, encoding: Mapping[str, Any], *, where: str | None = None, **style: Any) -> Spec:
    """A layer with a mark, of the rows for which the expression `where` holds."""
    kept = {} if where is None else {"transform": [{"filter": where}]}
    return {**kept, "mark": {"type": mark, **style}, "encoding": encoding}


def choice(name: str, options: Sequence[str], label: str) -> Spec:
    """The parts of a spec that show the rows of one option at a time, beginning with the first."""
    bind = {"bind": {"input": "select", "options": [*options], "name": f"{label} "}} if len(options) > 1 else {}
    first = options[0] if options else ""
    return {"params": [{"name": name, "value": first, **bind}], "transform": [{"filter": f"datum.{name} === {name}"}]}


def tooltip(**fields: str) -> list[Spec]:
    """A tooltip of fields with their labels; a format may follow a label after a colon."""
    shown = []
    for name, label in fields.items():
        title, _, form = label.rpartition(":") if ":" in label else (label, "", "")
        number = {"format": form, "type": "quantitative"} if form else {"type": "nominal"}
        shown.append({"field": name, "title": title, **number})
    return shown


def by_model(models: Collection[str], layers: Sequence[Spec], values: Values) -> Spec:
    """One chart, or charts side by side for several models."""
    if len(models) == 1:
        return spec_of(values, width=WIDE, height=300, layer=layers)
    facet = named("model", sort=[plain(model) for model in models])
    return spec_of(values, facet=facet, columns=3, spec={"width": 250, "height": 190, "layer": layers})


def marked(axis: str, place: float, text: str) -> list[Spec]:
    """A dotted line across the chart, with a label."""
    at = {axis: {"datum": place, "type": "quantitative"}}
    other = {"y": {"value": 8}} if axis == "x" else {"x": {"value": "width"}}
    turned: Spec = {"dx": -5} if axis == "x" else {"dx": -4, "dy": -6}
    label = layer("text", {**at, **other, "text": {"field": "text"}}, style="guide-label", align="right", **turned)
    return [
        {"data": {"values": [{}]}, **layer("rule", at, strokeDash=[2, 3], strokeWidth=1.5)},
        {"data": {"values": [{"text": text}]}, **label},
    ]


# --- the names of schemes -------------------------------------------------------------------------


def width_of(scheme: Scheme) -> str:
    """The bits of a scheme as specs have them: W4, W3.5, W4A8."""
    return "fp" if scheme.full_precision else str(scheme).partition("-")[0]


def method_of(scheme: Scheme, *, granularity: bool = False) -> str:
    """A scheme without its bits and the default group size."""
    _, _, rest = str(scheme).partition("+" if scheme.full_precision else "-")
    return rest if granularity else rest.replace(f"g{DEFAULT_GROUP_SIZE}-", "", 1)


def short(scheme: Scheme) -> str:
    """A scheme without the default group size."""
    return str(scheme) if scheme.full_precision else f"{width_of(scheme)}-{method_of(scheme)}"


# --- a run ----------------------------------------------------------------------------------------

_BINS_PER_DECADE = 6


def separation_histogram(group: Sequence[Evidence]) -> Figure:
    """Chart a histogram of the separation, split by whether the top-1 changed; runs are pooled."""
    ratios = np.concatenate([separation_ratio(evidence) for evidence in group])
    changed = np.concatenate([flips(evidence) for evidence in group])[~np.isnan(ratios)]
    ratios = ratios[~np.isnan(ratios)]
    inside = ratios[(ratios > 0) & np.isfinite(ratios)]
    low, high = (floor(log10(inside.min())), ceil(log10(inside.max()) + 1e-9)) if len(inside) else (-2, 1)
    low, high = max(low, -5), max(min(high, 4), low + 1)
    edges = np.linspace(low, high, (high - low) * _BINS_PER_DECADE + 1)
    # values beyond the chart count in its first or last bin
    with np.errstate(divide="ignore"):
        places = np.clip(np.searchsorted(edges, np.log10(ratios), side="right") - 1, 0, len(edges) - 2)
    values = []
    for place in range(len(edges) - 1):
        here, base = changed[places == place], 0
        for answer, n in (("changed", int(here.sum())), ("kept", int((~here).sum()))):
            row = {"low": float(10 ** edges[place]), "high": float(10 ** edges[place + 1]), "answer": answer, "n": n}
            values.append({**row, "base": base, "top": base + n})
            base += n
    scale = {"type": "log", "nice": False, "domain": [10.0**low, 10.0**high]}
    encoding = {
        "x": amount("low", "separation ratio", scale=scale, axis={"format": "~g", "grid": False, "tickCount": 6}),
        "x2": {"field": "high"},
        "y": amount("base", "inputs"),
        "y2": {"field": "top"},
        "color": named("answer", "first answer", scale={"domain": ["kept", "changed"]}),
        "tooltip": tooltip(low="from:.3g", high="to:.3g", answer="answer", n="inputs:d"),
    }
    line, _ = marked("x", 1, "")
    return Figure(
        name="separation",
        title="Separation of the first answers",
        caption="The separation is the gap between the first two answers, in units of twice the largest score change. "
        f"At 1 or more (dotted line) the top-1 cannot change: here {int((ratios >= 1).sum()):,} of {len(ratios):,} "
        "inputs. Values beyond the chart are counted at its ends.",
        spec=spec_of(
            [row for row in values if row["n"]], width=WIDE, height=240, layer=[layer("rect", encoding), line]
        ),
    )
