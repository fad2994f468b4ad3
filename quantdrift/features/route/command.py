"""`quantdrift route`: the benefit and the cost of answering unsure inputs at full precision."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from quantdrift.base.errors import QuantDriftError, UnknownNameError
from quantdrift.base.text import percent
from quantdrift.cli.options import RUNS, SEED, SHARE, SPLITS, argument, decimals, option, prints, share_option
from quantdrift.features.route.advice import OperatingPoint, RoutedRun, break_even_share, relative_cost, study_run
from quantdrift.runs.folder import Run, find_runs
from quantdrift.runs.identity import Identity
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, Grid, table
from quantdrift.statistics.conformal import CONFIDENCES, confidence_in
from quantdrift.statistics.estimates import as_json
from quantdrift.trust.certify import Share
from quantdrift.trust.router import GapRouter


@prints("json", "markdown")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    score: str = option(
        "gap|msp|entropy|all: The confidence of the quantized model: gap (first minus second score), msp (maximum "
        "softmax probability), entropy, or all. A search has the gap only.",
        default="all",
    ),
    percentile: str = option(
        "P,P,...: Percentages of the inputs that go to full precision in the table.", default="10,25,50"
    ),
    share: float = share_option(SHARE, default=0.5),
    splits: int = option(SPLITS, default=20),
    seed: int = option(SEED, default=0),
    speed_up: float = option(
        "X: Speed of the quantized model over full precision, which is not measured here: give your own figure. 4.5 is "
        "that of GPTQ's authors.",
        default=4.5,
    ),
    recover: float = share_option(
        "S: Share of the top-1 changes to correct with the smallest threshold; of a search, by rescoring the first 10 "
        "results.",
        default=0.9,
    ),
    save: Path | None = option(
        "FILE: Write a router for serving, with the threshold that --recover gives on all inputs of one run."
    ),
) -> Output:
    """Compute the benefit and the cost of answering unsure inputs at full precision.

    The quantized model answers every input; where its first two scores are close, full precision answers too. The cost
    relative to full precision alone is 1 / speed-up + routed share. The table shows how many top-1 changes are
    corrected, and how much of the lost accuracy comes back (with labels, if at least 0.5 points were lost). The
    recommendation is the cheapest way to correct the share --recover of the top-1 changes: to route, to spend more bits
    (quantdrift allocate), or to do nothing.

    For a search, the first results of unsure queries are rescored instead.

    For a server: quantdrift route RUN --score gap --save router.json. Then
    quantdrift.GapRouter.load("router.json").routes(scores) returns which inputs go to full precision.

    More: docs/explained/trust.md
    """
    if save is not None:
        GapRouter.check_place(save)
    if score not in {*CONFIDENCES, "all"}:
        raise UnknownNameError("confidence", score, [*CONFIDENCES, "all"])
    if not 0 < recover <= 1:
        raise QuantDriftError(f"--recover {recover:g}: expected a share above 0 and at most 1")
    scores = [name for name in CONFIDENCES if score in {name, "all"}]
    percentiles = decimals(percentile, "--percentile", "10,25,50")
    even = break_even_share(speed_up)  # refuses one below 1 before runs are read
    listed = find_runs(runs)
    if save is not None and len(listed) != 1:
        raise QuantDriftError(f"--save sets a threshold on one run; got {len(listed)} runs")
    how: dict[str, Any] = {"percentiles": percentiles, "speed_up": speed_up, "recover": recover}
    routed = [study_run(run, scores, **how, share=share, n_splits=splits, seed=seed) for run in listed]
    router, after = None, []
    if save is not None:
        router = GapRouter(
            threshold=_threshold(routed[0].operating_point),
            score=scores[0],
            origin=Identity.of(listed[0].record).brief(),
        )
        router.save(save)
        sent = percent(float((confidence_in(listed[0].evidence(), scores[0]) < router.threshold).mean()))
        after.append(f"router: {save} sends {sent} of these inputs to full precision ({router.rule})")
    grids: list[Grid] = []
    for run, result in zip(listed, routed, strict=True):
        lines = [
            *_lines(run, result),
            f"The cost{_of_encoding(result)} is 1 / {speed_up:g} + the routed share; at {percent(even)} it is that of "
            "full precision alone. The speed-up is stated, not measured.",
        ]
        grids += _tables(result, lines, share=share, speed_up=speed_up)
    asked = {"speed_up": speed_up, "break_even": even, "share": share, "splits": splits, "seed": seed}
    saved = router and {"path": str(save), "score": router.score, "threshold": router.threshold, "rule": router.rule}
    return Output(data={**asked, "recover": recover, "runs": as_json(routed), "router": saved}, grids=grids, next=after)


def _threshold(point: OperatingPoint | None) -> float:
    if point is None:
        raise QuantDriftError(
            "no threshold is shown to correct so many top-1 changes of new inputs: too few changed here (90 % takes 9, "
            "99 % takes 99), or rescoring a search corrects fewer; give a smaller --recover or more inputs"
        )
    return point.threshold


# --- tables ---------------------------------------------------------------------------------------


def _tables(result: RoutedRun, lines: Sequence[str], *, share: float, speed_up: float) -> Iterator[Grid]:
    """The sweep of a classifier's run, and the choices with their costs."""
    name, advice = f"{result.spec} on {result.data}", result.advice
    columns = [
        Column("score", "score"),
        Column("percentile", "percentile", "{:g}".format),
        Column("routed", "routed", _share),
        Column("cost", "routed.value", lambda routed: percent(relative_cost(routed or 0.0, speed_up))),
        Column("lost accuracy recovered", "accuracy", _share),
        Column("changes recovered", "changes", _share),
    ]
    title = f"{name}: thresholds set on {100 * share:g} %, measured on the rest" if result.sweep else name
    lines = [*lines, *([] if advice.choices else advice.sentences)]
    yield table(columns if result.sweep else [], result.sweep, title=title, lines=lines)
    if advice.choices:
        predicted = {True: " (predicted)", False: ""}
        columns = [
            Column("choice", "what"),
            Column("top-1 changes corrected", lambda choice: percent(choice.changes) + predicted[choice.predicted]),
            Column(f"cost{_of_encoding(result)}", "cost", percent),
        ]
        yield table(columns, advice.choices, title=f"{name}: what to do", lines=advice.sentences)


def _of_encoding(result: RoutedRun) -> str:
    return "" if result.scores_are == "logits" else " of encoding queries"


def _lines(run: Run, result: RoutedRun) -> Iterator[str]:
    if result.scores_are == "logits":
        for reason in sorted({point.accuracy.reason for point in result.sweep if point.accuracy.reason}):
            yield f"No share of lost accuracy: {reason}."
    else:
        similarity = run.record.get("settings", {}).get("similarity") or "a similarity that is not recorded"
        yield (
            "The first results of an unsure query are ranked again at full precision; documents not among them do not "
            f"come back. Embeddings were compared by {similarity}. A search has no msp and no entropy."
        )


def _share(share: Share) -> str:
    return percent(share.value) + ("" if share.sd is None else f" ± {100 * share.sd:.1f}")
