"""`quantdrift route`: what asking full precision about unsure inputs gives back, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from quantdrift.cli.options import FIGURE, RUNS, SEED, SHARE, SPLITS, argument, decimals, given, option, prints
from quantdrift.cli.output import Grid, Shown, percent
from quantdrift.compare.law_figure import check_figure
from quantdrift.conformal import CONFIDENCES
from quantdrift.errors import QuantDriftError, UnknownNameError
from quantdrift.runs import find_runs, refuse_copies
from quantdrift.trust import sweep
from quantdrift.trust.figure import draw_cost
from quantdrift.trust.router import GapRouter, RouterFile
from quantdrift.trust.sentences import sentences_of

_WORDS = {"score", "recommended"}
"""Columns that hold words."""


@prints("json", "markdown")
def command(
    *,
    context: typer.Context,
    runs: list[Path] = argument(RUNS),
    score: str = option(
        "gap|msp|entropy|all: How to measure that the quantized model is unsure: gap (first minus second score), "
        "msp (maximum softmax probability), entropy, or all. A search has the gap only.",
        default="all",
    ),
    percentile: str = option(
        "P,P,...: About which percent of the inputs to send to full precision.", default="10,25,50"
    ),
    share: float = option(SHARE, default=0.5),
    splits: int = option(SPLITS, default=20),
    seed: int = option(SEED, default=0),
    speed_up: float = option(
        "X: How many times faster the quantized model is than full precision. Give your own figure: it is not "
        "measured here. 4.5 is what GPTQ's authors report.",
        default=4.5,
    ),
    recover: float = option(
        "S: Find the smallest threshold that corrects this share of the changed answers. For a search: corrected "
        "by rescoring the first 10 results, or at least sent there where so many cannot be corrected.",
        default=0.9,
    ),
    save: Path | None = option(
        "FILE: Write a router for serving, set on all inputs of one run: by --recover, or at the first "
        "--percentile if only that is given."
    ),
    figure: Path | None = option(FIGURE),
) -> Shown:
    """What would it bring to answer the unsure inputs at full precision, and what would it cost?

    The quantized model answers every input; where its first two scores are close, the original is asked too. The cost
    relative to full precision is 1 / speed-up + routed share. The table shows how many changed answers are corrected,
    how much of the lost accuracy comes back (with labels, if at least 0.5 points were lost), and whether it is better
    to route, to spend more bits (quantdrift allocate), or to do nothing.

    For a search, the first results of unsure queries are rescored instead.

    quantdrift route runs/ --score gap --save router.json; then, in a server: quantdrift.RoutedModel(quantized,
    original, quantdrift.GapRouter.load("router.json")).
    """
    if figure is not None:
        check_figure(figure)
    if save is not None:
        RouterFile.check_place(save)
    if score not in {*CONFIDENCES, "all"}:
        raise UnknownNameError("confidence", score, [*CONFIDENCES, "all"])
    if not 0 < recover <= 1:
        raise QuantDriftError(f"--recover {recover:g}: expected a share above 0 and at most 1")
    settings = sweep.RouteSettings(
        scores=tuple(name for name in CONFIDENCES if score in {name, "all"}),
        percentiles=decimals(percentile, "--percentile", "10,25,50"),
        share=share,
        n_splits=splits,
        seed=seed,
        speed_up=speed_up,
        recover=recover,
    )
    break_even = sweep.break_even_share(speed_up)  # refuses one below 1 before runs are read
    found = find_runs(runs)
    refuse_copies(found)
    if save is not None and len(found) != 1:
        raise QuantDriftError(f"--save sets a threshold on one run; got {len(found)} runs")
    studied = [sweep.study_run(run, settings) for run in found]
    groups = sweep.group_runs(studied)
    if figure is not None:
        draw_cost(studied, figure, speed_up=speed_up)
    router, after = None, []
    if save is not None:
        at_percentile = given(context, "percentile") and not given(context, "recover")
        router = _router(studied[0], settings, at_percentile=at_percentile)
        router.save(save)
        after.append(f"router: {save} {_saved(router, studied[0])}")
    return Shown(
        data={
            "speed_up": speed_up,
            "break_even": break_even,
            "share": share,
            "splits": splits,
            "seed": seed,
            "recover": recover,
            "runs": [run.to_json() for run in studied],
            "means": [
                {"spec": group.spec, "n_runs": len(group.runs), "sweep": [point.to_json() for point in group.points]}
                for group in groups
                if group.logits
            ],
            "router": router
            and {"path": str(save), "score": router.score, "threshold": router.threshold, "rule": router.rule},
            "figure": None if figure is None else str(figure),
        },
        grids=[grid for group in groups for grid in _grids(group, settings)],
        next=[*after, *([] if figure is None else [f"figure: {figure}"])],
    )


def _router(studied: sweep.RoutedRun, settings: sweep.RouteSettings, *, at_percentile: bool) -> GapRouter:
    evidence, score = studied.run.evidence(), studied.curves[0].score
    if at_percentile:
        router = GapRouter.at_percentile(evidence, settings.percentiles[0], score)
    elif studied.restoring is not None:
        router = GapRouter(threshold=studied.restoring.threshold, score=score)
    else:
        router = GapRouter.at_recovered_share(evidence, settings.recover, score)
    return router.set_on(studied.run)


def _saved(router: GapRouter, studied: sweep.RoutedRun) -> str:
    """What a router does on the inputs it was set on."""
    answers = sweep.answers_of(studied.run.evidence(), router.score)
    routed = answers.confidence < router.threshold
    caught = routed[answers.changed]
    share = f" and {percent(float(caught.mean()))} of those whose answer changed" if caught.size else ""
    what = "to full precision" if studied.logits else "to be rescored"
    return f"sends {percent(float(routed.mean()))} of these inputs{share} {what} ({router.rule})"


# --- tables ---------------------------------------------------------------------------------------


def _grids(group: sweep.RoutedGroup, settings: sweep.RouteSettings) -> Iterator[Grid]:
    """The tables of runs of one spec; below the last of them what they come to."""
    names = [str(run.run.record["data"]["name"]) for run in group.runs]
    title = f"{group.spec} on {names[0]}" if len(names) == 1 else f"{group.spec}, {len(names)} runs"
    lines = sentences_of(group, settings)
    last = lines if len(names) == 1 else []
    if group.logits:
        yield _sweep(title, group, settings)
        yield _curve(group, last)
        goal = [f"routed for {100 * settings.recover:g} %", "its cost"]
    else:
        yield _rescoring(title, group, settings, last)
        goal = [f"rescored to restore {100 * settings.recover:g} %", "cost of encoding queries"]
    if len(names) > 1:
        yield Grid(
            title="Each run",
            head=["data", "inputs", "changed", "at risk (95 %)", *goal, "recommended"],
            rows=[[name, *_run_cells(run)] for name, run in zip(names, group.runs, strict=True)],
            words=_WORDS,
            lines=lines,
        )


def _sweep(title: str, group: sweep.RoutedGroup, settings: sweep.RouteSettings) -> Grid:
    rows = [
        [
            point.score,
            f"{point.percentile:g}",
            *(_share(share, len(group.runs)) for share in (point.routed, point.accuracy, point.changes)),
        ]
        for point in group.points
    ]
    return Grid(
        title=f"{title}: thresholds set on {100 * settings.share:g} %, measured on the rest",
        head=["score", "percentile", "routed", "lost accuracy recovered", "changes recovered"],
        rows=rows,
    )


def _share(share: sweep.Share, n_runs: int) -> str:
    if share.value is None:
        return "-"
    shown = percent(share.value) + ("" if share.sd is None else f" ± {100 * share.sd:.1f}")
    return shown + (f" ({share.n})" if n_runs > 1 else "")


def _curve(group: sweep.RoutedGroup, lines: Sequence[str]) -> Grid:
    curves = [run.curves[0] for run in group.runs]
    points: list[Any] = list(sweep.mean_curve(curves))
    rows = [
        [percent(row[name]) for name in ("routed", "cost", "changes", "accuracy")]
        for row in points
        # dearer than full precision alone: only the end, which is everything
        if row["cost"] <= 1 or row is points[-1]
    ]
    return Grid(
        title=f"Cost of routing by {curves[0].score} on these very inputs (full precision alone is 100 %)",
        head=["routed", "cost", "changes recovered", "lost accuracy recovered"],
        rows=rows,
        lines=lines,
    )


def _rescoring(title: str, group: sweep.RoutedGroup, settings: sweep.RouteSettings, lines: Sequence[str]) -> Grid:
    entries = sweep.mean_rescoring([run.rescoring for run in group.runs])
    metric = next((entry.metric for entry in entries if entry.metric), None)
    head = ["percentile", "k", "queries encoded again", "cost of encoding queries", "documents compared"]
    head += ["changes restored", "ceiling", *([f"{metric} regained", f"{metric} lost"] if metric else [])]
    rows = [
        [
            f"{entry.percentile:g}",
            f"{entry.k}",
            percent(entry.encoded),
            percent(sweep.relative_cost(entry.encoded, settings.speed_up)),
            f"{entry.documents:.1f}",
            percent(entry.restored),
            percent(entry.ceiling),
            *("-" if value is None else f"{value:+.4f}" for value in (entry.change, entry.loss) if metric),
        ]
        for entry in entries
    ]
    return Grid(title=f"{title}: unsure queries' first k results rescored", head=head, rows=rows, lines=lines)


def _run_cells(run: sweep.RoutedRun) -> list[str]:
    advice, point, risk = run.advice, run.operating, run.advice.at_risk
    if run.restoring is not None and run.restoring.counts != "restored":
        point = None  # so many cannot be restored
    ends = f" ({100 * risk.low:.1f} to {100 * risk.high:.1f})" if risk.low is not None and risk.high is not None else ""
    return [
        f"{run.n_inputs:,}",
        percent(advice.flip_rate.value),
        percent(risk.value) + ends,
        *(("-", "-") if point is None else (percent(point["routed"]), percent(point["cost"]))),
        advice.fix + (" (unsure)" if advice.straddles else ""),
    ]
