"""`quantdrift route`: from run folders, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdrift.cli.route_tables import print_groups
from quantdrift.cli.tables import console, one_format
from quantdrift.cli.values import decimals
from quantdrift.compare.law_figure import check_figure
from quantdrift.conformal import CONFIDENCES
from quantdrift.display import print_json
from quantdrift.errors import QuantDriftError, UnknownNameError
from quantdrift.records import refuse_other
from quantdrift.runs import find_runs, refuse_copies
from quantdrift.trust.figure import draw_cost
from quantdrift.trust.router import FORMAT, GapRouter, answers_of
from quantdrift.trust.sweep import (
    PERCENTILES,
    RoutedGroup,
    RoutedRun,
    RouteSettings,
    break_even_share,
    group_runs,
    study_run,
)

RECOVER = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """The options of the command, as typed."""

    score: str
    percentile: str | None
    share: float
    splits: int
    seed: int
    speed_up: float
    recover: float | None
    save: Path | None
    figure: Path | None
    json_output: bool
    markdown: bool


def route_command(paths: Sequence[Path], options: RouteOptions) -> None:
    """Print what routing gives back and costs, and what to do; write router and figure if asked.

    Args:
        paths: run folders, or folders that hold some.
        options: as typed.

    Raises:
        QuantDriftError: no such run, confidence or percentile, or a place that cannot be written.
    """
    one_format(json_output=options.json_output, markdown=options.markdown)
    if options.figure is not None:
        check_figure(options.figure)
    if options.save is not None:
        refuse_other(options.save, FORMAT, "a router")
    settings = _settings(options)
    runs = find_runs(paths)
    refuse_copies(runs)
    if options.save is not None and len(runs) != 1:
        raise QuantDriftError(f"--save sets a threshold on one run; got {len(runs)} runs")
    studied = [study_run(run, settings) for run in runs]
    groups = group_runs(studied)
    if options.figure is not None:
        draw_cost(studied, options.figure, speed_up=settings.speed_up)
    router = None if options.save is None else _save(studied[0], options.save, options, settings)
    if options.json_output:
        found = _json(studied, groups, options, settings, router)
        print_json(found)
        return
    print_groups(groups, settings, markdown=options.markdown)
    if options.markdown:
        return
    out = console(wide=True)
    if router is not None:
        told = _saved(router, studied[0], options, settings)
        out.print(told, soft_wrap=True)
    if options.figure is not None:
        out.print(f"figure: {options.figure}", soft_wrap=True)


def _settings(options: RouteOptions) -> RouteSettings:
    if options.score not in {*CONFIDENCES, "all"}:
        raise UnknownNameError("confidence", options.score, [*CONFIDENCES, "all"])
    scores = tuple(name for name in CONFIDENCES if options.score in {name, "all"})
    percentiles: tuple[float, ...] = PERCENTILES
    if options.percentile is not None:
        percentiles = tuple(dict.fromkeys(decimals(options.percentile, "--percentile", example="10,25,50")))
    recover = RECOVER if options.recover is None else options.recover
    if not 0 < recover <= 1:
        raise QuantDriftError(f"--recover {recover:g}: expected a share above 0 and at most 1")
    break_even_share(options.speed_up)  # refuses one below 1 before runs are read
    return RouteSettings(
        scores=scores,
        percentiles=percentiles,
        share=options.share,
        n_splits=options.splits,
        seed=options.seed,
        speed_up=options.speed_up,
        recover=recover,
    )


def _save(studied: RoutedRun, path: Path, options: RouteOptions, settings: RouteSettings) -> GapRouter:
    evidence, score = studied.run.evidence(), studied.curves[0].score
    if options.percentile is not None and options.recover is None:
        router = GapRouter.at_percentile(evidence, settings.percentiles[0], score)
    elif studied.restoring is not None:
        router = GapRouter(threshold=studied.restoring.threshold, score=score)
    else:
        router = GapRouter.at_recovered_share(evidence, settings.recover, score)
    router = router.set_on(studied.run)
    router.save(path)
    return router


def _saved(router: GapRouter, studied: RoutedRun, options: RouteOptions, settings: RouteSettings) -> str:
    """What the router that was saved does on the inputs it was set on."""
    routed, caught = _shares(router, studied)
    if studied.logits:
        told = f"router: {options.save} routes {100 * routed:.1f} % of these inputs"
        if caught is not None:
            told += f", catches {100 * caught:.1f} % of the changed answers"
        return f"{told} (to full precision: {router.rule})"
    told = f"router: {options.save} has {100 * routed:.1f} % of these queries rescored"
    return f"{told} ({router.rule}){_counted(studied, options, settings)}"


def _shares(router: GapRouter, studied: RoutedRun) -> tuple[float, float | None]:
    """Shares of the inputs, and of those whose answer changed, that a router routes."""
    answers = answers_of(studied.run.evidence(), router.score)
    routed = answers.confidence < router.threshold
    changed = answers.changed
    return float(routed.mean()), float(routed[changed].mean()) if changed.any() else None


def _counted(studied: RoutedRun, options: RouteOptions, settings: RouteSettings) -> str:
    """How many of the changed answers of a search the router that was saved gives back."""
    point = studied.restoring
    if options.percentile is not None and options.recover is None:
        at = [each for each in studied.rescoring if each.percentile == settings.percentiles[0]]
        deepest = max(at, key=lambda each: each.k, default=None)
        if deepest is None or deepest.restored is None:
            return ""
        return (
            f"; {100 * deepest.restored:.1f} % of the changed first answers are restored by "
            f"rescoring the first {deepest.k} below it"
        )
    if point is None:
        return ""
    what = {"restored": "are restored", "caught": "are caught (so many cannot be restored)"}
    return (
        f"; {100 * studied.recover:g} % of the changed first answers {what[point.counts]} by "
        f"rescoring the first {point.k} below it"
    )


def _json(
    studied: Sequence[RoutedRun],
    groups: Sequence[RoutedGroup],
    options: RouteOptions,
    settings: RouteSettings,
    router: GapRouter | None,
) -> dict[str, Any]:
    return {
        "speed_up": settings.speed_up,
        "break_even": break_even_share(settings.speed_up),
        "share": settings.share,
        "splits": settings.n_splits,
        "seed": settings.seed,
        "recover": settings.recover,
        "runs": [run.to_json() for run in studied],
        "means": [
            {"spec": group.spec, "n_runs": len(group.runs), "sweep": [point.to_json() for point in group.points]}
            for group in groups
            if group.logits
        ],
        "router": None
        if router is None
        else {"path": str(options.save), "score": router.score, "threshold": router.threshold, "rule": router.rule},
        "figure": None if options.figure is None else str(options.figure),
    }
