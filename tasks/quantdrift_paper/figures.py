"""The charts that only the paper has: the law over many runs, and what a criterion keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import log10
from pathlib import Path
from typing import Any

from quantdrift.report import figures as charts
from quantdrift.report.figures import Figure, amount, layer, marked, tooltip
from quantdrift_paper.capture import Captured
from quantdrift_paper.law import LawPoint, on_the_axis, study_law

_COLOURS, _SHAPES = 8, 6
"""Groups that colours, and shapes, tell apart."""
_WIDTH = re.compile(r"W([\d.]+)(?:A\d)?$")


def _widths_first(names: Iterable[Any]) -> list[str]:
    """Widths from the largest down, then other names as they come."""
    names = charts.in_order(names)
    return sorted(names, key=lambda name: -float(width[1]) if (width := _WIDTH.match(name)) else 0.0)


def law_chart(points: Sequence[LawPoint], links: Mapping[Path, str], models: Mapping[Path, str]) -> Figure:
    """Draw the change rate against the median separation of all runs, with the threshold and a line."""
    study, usable = study_law(points), on_the_axis(points)
    values: list[dict[str, Any]] = [
        {
            "model": models.get(point.path, point.model),
            "scheme": point.spec.rpartition("@")[2],
            **{name: getattr(point, name) for name in ("data", "family", "separation")},
            "width": point.bits,
            "rate": point.change_rate,
            "low": point.changed.low,
            "high": point.changed.high,
            "open": links.get(point.path),
        }
        for point in usable
    ]

    def told_apart(most: int, *names: str) -> str | None:
        """The first field that has several values, but not too many."""
        return next((name for name in names if 1 < len({row[name] for row in values}) <= most), None)

    colour = told_apart(_COLOURS, "family", "model", "data", "width")
    shape = told_apart(_SHAPES, *(name for name in ("width", "data") if name != colour))
    x, y = amount("separation", "median separation ratio"), amount("rate", "changed first answers", axis=charts.PERCENT)
    x |= {"scale": {"type": "log"}, "axis": {"values": [10.0**power for power in range(-6, 7)], "format": "~g"}}
    ends = tooltip(
        model="model", scheme="scheme", data="data", separation="median separation:.3g", rate="changed:.1%",
        low="95 % from:.1%", high="to:.1%",
    )  # fmt: skip
    encoding: dict[str, Any] = {"x": x, "y": y, "tooltip": ends}
    params = []
    for channel, name in (("color", colour), ("shape", shape)):
        if name:
            encoding[channel] = {"field": name, "type": "nominal", "sort": _widths_first(row[name] for row in values)}
    if colour:
        encoding["opacity"] = {"condition": {"param": "picked", "value": 0.85}, "value": 0.12}
        params = [{"name": "picked", "select": {"type": "point", "fields": [colour]}, "bind": "legend"}]
    layers = [{**layer("point", encoding, filled=True, size=55, opacity=0.85, cursor="pointer"), "params": params}]
    layers += marked("x", 1, "the threshold of a query") if usable else []
    if study.line is not None:
        both = [min(row["separation"] for row in values), max(row["separation"] for row in values)]
        rates = [min(1.0, max(0.0, study.line.intercept + study.line.slope * log10(end))) for end in both]
        on_line = [{"separation": end, "rate": rate} for end, rate in zip(both, rates, strict=True)]
        plain = {axis: {"field": encoding[axis]["field"], "type": "quantitative"} for axis in "xy"}
        layers.append({"data": {"values": on_line}, **layer("line", plain, style="guide", strokeDash=[6, 4])})
    order, left = study.spearman["separation"].value, len(points) - len(usable)
    correlation = "" if order is None else f" Over these {len(points):,} runs the rank correlation is {order:+.2f}."
    gone = f" {left:,} with a median of 0 or without end {'is' if left == 1 else 'are'} left out." if left else ""
    return Figure(
        name="law",
        title="The smaller the separation, the more first answers change",
        caption="Each point is one run, on the whole corpus or a part of it. The separation of a query is the lead of "
        "its first answer over the second, in units of twice the largest score change: at 1 or more (dotted line) the "
        f"first answer cannot change. The dashed line is fitted to all runs.{correlation}{gone}",
        spec=charts.spec_of(values, width=charts.WIDE, height=320, layer=layers),
    )


def capture_chart(captures: Sequence[Captured], names: Mapping[str, str], bits: float) -> Figure:
    """Draw the share of a wider width's benefit that each criterion keeps, with intervals."""
    values = [
        {
            "criterion": names.get(captured.criterion, captured.criterion),
            "capture": captured.ratio.value,
            **{name: getattr(captured.ratio, name) for name in ("low", "high", "n")},
        }
        for captured in sorted(captures, key=lambda captured: -(captured.ratio.value or 0.0))
        if captured.ratio.value is not None
    ]
    ends = tooltip(criterion="criterion", capture="captured:.0%", low="from:.0%", high="to:.0%", n="points:d")
    shared: dict[str, Any] = {"y": charts.named("criterion", sort=None), "tooltip": ends}
    x = amount("capture", "captured benefit", axis=charts.PERCENT)
    interval = {**shared, "x": {**x, "field": "low"}, "x2": {"field": "high"}}
    layers = [
        layer("rule", interval, strokeWidth=2),
        layer("point", {**shared, "x": x}, filled=True, size=60, opacity=1),
    ]
    return Figure(
        name="criteria",
        title="Captured benefit by criterion",
        caption=f"Allocations of {bits:g} bits on average, round to nearest: the share of the answers that the next "
        "width repairs, with 95 % intervals over queries.",
        spec=charts.spec_of(values, width=charts.WIDE, height=30 * len(values), layer=layers),
    )
