"""A waterfall as people look at it: a table and a chart for each metric."""

from dataclasses import replace
from typing import Any

from quantdrift.features.waterfall.shares import Waterfall, in_words, judged_whole, waterfalls_of
from quantdrift.report.figures import WIDE, Figure, amount, layer, named, short, spec_of, tooltip
from quantdrift.report.page import Page, Section, Step
from quantdrift.show.tables import Grid
from quantdrift.statistics.estimates import Estimate
from quantdrift.study.folder import StudyFolder

_PARTS = {"alone": "by itself", "so_far": "with all before it", "share": "share of the whole"}


def on_study(page: Page, folder: StudyFolder) -> Page:
    """The page of a waterfall's study, with what its combinations say first, if none is missing."""
    whole = folder.run(folder.cells[-1])
    if whole is None or any(folder.run(cell) is None for cell in folder.cells):
        return page
    waterfalls = waterfalls_of(folder)
    first = waterfalls[0]
    judged = judged_whole(whole.record, first)
    scheme = folder.cells[-1].spec.scheme
    verdict, *words = in_words(waterfalls, named=short(scheme))
    largest = max(first.stages, key=lambda stage: stage.share.value or 0.0).name
    shares = Section(
        name="waterfall",
        title="Which part changes the answers",
        figures=list(map(chart, waterfalls)),
        grids=list(map(grid_of, waterfalls)),
    )
    left_out = {"rates", "bits"}  # its schemes are parts of one, so there is nothing to choose from
    kept = [section for section in page.sections if section.name not in left_out]
    return replace(
        page,
        word=f"mostly the {largest}" if first.total.value else "nothing changes",
        verdict=verdict,
        words=[*words, f"The whole deployment: {judged.word}. {judged.sentence}"],
        steps=[Step(text=judged.next, command=judged.command)] if judged.next else [],
        sections=[shares, *kept],
    )


def grid_of(waterfall: Waterfall) -> Grid:
    """One metric's parts as a table."""
    rate = waterfall.metric.unit == "rate"

    def shown(estimate: Estimate) -> str:
        if estimate.value is None:
            return "-"
        factor, digits = (100, 1) if rate else (1, 4)
        value, low, high = (factor * (end or 0.0) for end in (estimate.value, estimate.low, estimate.high))
        return f"{value:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"

    rows = [[stage.name, *map(shown, (stage.alone, stage.so_far, stage.share))] for stage in waterfall.stages]
    rows.append(["interaction", "", "", shown(waterfall.interaction)])
    title = f"{waterfall.metric}{', in points' if rate else ''}, {waterfall.n:,} inputs"
    return Grid(title=title, head=["stage", "alone", "with all before it", "share"], rows=rows)


def chart(waterfall: Waterfall) -> Figure:
    """What each stage changes by itself, with those before it, and its share, as bars with intervals."""
    rate = waterfall.metric.unit == "rate"
    values: list[dict[str, Any]] = []
    for stage in waterfall.stages:
        for part, label in _PARTS.items():
            estimate: Estimate = getattr(stage, part)
            ends = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
            values.append({"stage": stage.name, "part": label, **ends})
    stages, parts = [stage.name for stage in waterfall.stages], list(_PARTS.values())
    axis = {"format": "+%"} if rate else {"format": "+.3f"}
    form = "+.1%" if rate else "+.4f"
    shared: dict[str, Any] = {
        "x": named("stage", sort=stages, axis={"labelAngle": 0}),
        "xOffset": {"field": "part", "sort": parts},
        "tooltip": tooltip(stage="stage", part="what", value=f"change:{form}", low=f"from:{form}", high=f"to:{form}"),
    }
    y = amount("value", str(waterfall.metric), axis=axis)
    bars = {**shared, "y": y, "color": named("part", sort=parts)}
    lines = {**shared, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    return Figure(
        name=f"waterfall-{str(waterfall.metric).replace('.', '-').replace('@', '-').replace('_', '-')}",
        title=f"{waterfall.metric} by stage of the deployment",
        caption="Shares add up to the change by the whole deployment; lines are 95 % intervals.",
        spec=spec_of(
            values,
            width=WIDE,
            height=280,
            layer=[layer("bar", bars, opacity=0.85), layer("rule", lines, strokeWidth=1.5)],
        ),
    )
