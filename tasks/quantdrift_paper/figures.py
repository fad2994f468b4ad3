"""The charts that only the paper has: the law over many runs, and what a criterion keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from pathlib import Path
from typing import Any

from quantdrift.report.figures import (
    MOST_COLOURS,
    MOST_SHAPES,
    PERCENT,
    WIDE,
    Figure,
    marked,
    spec_of,
    tooltip,
    widths_first,
)
from quantdrift_paper.capture import Captured
from quantdrift_paper.law import LawPoint, on_the_axis, study_law


def law_chart(points: Sequence[LawPoint], links: Mapping[Path, str], models: Mapping[Path, str]) -> Figure:
    """Draw the change rate against the median separation of all runs, with the threshold and a line."""
    study = study_law(points)
    usable = on_the_axis(points)
    values: list[dict[str, Any]] = [
        {
            "model": models.get(point.path, point.spec.rpartition("@")[0]),
            "scheme": point.spec.rpartition("@")[2],
            "data": point.data,
            "width": point.bits,
            "separation": point.separation,
            "rate": point.change_rate,
            "low": point.changed.low,
            "high": point.changed.high,
            "open": links.get(point.path),
        }
        for point in usable
    ]
    colour = next(
        (name for name in ("model", "data", "width") if 1 < len({row[name] for row in values}) <= MOST_COLOURS), None
    )
    shape = next(
        (
            name
            for name in ("width", "data")
            if name != colour and 1 < len({row[name] for row in values}) <= MOST_SHAPES
        ),
        None,
    )
    encoding: dict[str, Any] = {
        "x": {
            "field": "separation",
            "type": "quantitative",
            "scale": {"type": "log"},
            "title": "median separation ratio",
            "axis": {"values": [10.0**power for power in range(-6, 7)], "format": "~g"},
        },
        "y": {"field": "rate", "type": "quantitative", "title": "changed first answers", "axis": PERCENT},
        "tooltip": tooltip(
            model="model", scheme="scheme", data="data", separation="median separation:.3g", rate="changed:.1%",
            low="95 % from:.1%", high="to:.1%",
        ),
    }  # fmt: skip
    params = []
    if colour:
        encoding["color"] = {"field": colour, "type": "nominal", "sort": widths_first(row[colour] for row in values)}
        encoding["opacity"] = {"condition": {"param": "picked", "value": 0.85}, "value": 0.12}
        params = [{"name": "picked", "select": {"type": "point", "fields": [colour]}, "bind": "legend"}]
    if shape:
        encoding["shape"] = {"field": shape, "type": "nominal", "sort": widths_first(row[shape] for row in values)}
    layer: list[dict[str, Any]] = [
        {
            "mark": {"type": "point", "filled": True, "size": 55, "opacity": 0.85, "cursor": "pointer"},
            "params": params,
            "encoding": encoding,
        }
    ]
    if usable:
        layer += marked("x", 1, "the threshold of a query")
    if study.line is not None:
        ends = [min(row["separation"] for row in values), max(row["separation"] for row in values)]
        on_line = [
            {"separation": end, "rate": min(1.0, max(0.0, study.line.intercept + study.line.slope * log10(end)))}
            for end in ends
        ]
        layer.append(
            {
                "data": {"values": on_line},
                "mark": {"type": "line", "style": "guide", "strokeDash": [6, 4]},
                "encoding": {axis: {"field": encoding[axis]["field"], "type": "quantitative"} for axis in "xy"},
            }
        )
    order = study.spearman["separation"].value
    correlation = "" if order is None else f" Over these {len(points):,} runs the rank correlation is {order:+.2f}."
    left = len(points) - len(usable)
    gone = f" {left:,} with a median of 0 or without end {'is' if left == 1 else 'are'} left out." if left else ""
    return Figure(
        name="law",
        title="The smaller the separation, the more first answers change",
        caption="Each point is one run. The separation of a query is the lead of its first answer over the second, in "
        "units of twice the largest score change: at 1 or more (dotted line) the first answer cannot change. The "
        f"dashed line is fitted to all runs.{correlation}{gone}",
        spec=spec_of(values, width=WIDE, height=320, layer=layer),
    )


def capture_chart(captures: Sequence[Captured], names: Mapping[str, str], bits: float) -> Figure:
    """Draw the share of a wider width's benefit that each criterion keeps, with intervals."""
    values = [
        {
            "criterion": names.get(captured.criterion, captured.criterion),
            "capture": captured.ratio.value,
            "low": captured.ratio.low,
            "high": captured.ratio.high,
            "n": captured.ratio.n,
        }
        for captured in sorted(captures, key=lambda captured: -(captured.ratio.value or 0.0))
        if captured.ratio.value is not None
    ]
    y = {"field": "criterion", "type": "nominal", "sort": None, "title": None}
    shared = {
        "y": y,
        "tooltip": tooltip(criterion="criterion", capture="captured:.0%", low="from:.0%", high="to:.0%", n="points:d"),
    }
    x = {"field": "capture", "type": "quantitative", "title": "captured benefit", "axis": PERCENT}
    layer: list[dict[str, Any]] = [
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {**shared, "x": {**x, "field": "low"}, "x2": {"field": "high"}},
        },
        {"mark": {"type": "point", "filled": True, "size": 60, "opacity": 1}, "encoding": {**shared, "x": x}},
    ]
    return Figure(
        name="criteria",
        title="Captured benefit by criterion",
        caption=(
            f"Allocations of {bits:g} bits on average, round to nearest: the share of the answers that the next width "
            "repairs, with 95 % intervals over queries."
        ),
        spec=spec_of(values, width=WIDE, height=30 * len(values), layer=layer),
    )
