"""`quantdrift route`: the benefit and the cost of answering unsure inputs at full precision."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quantdrift.base.errors import QuantDriftError, UnknownNameError
from quantdrift.base.text import as_typed, percent
from quantdrift.cli.options import RUNS, SEED, SHARE, SPLITS, argument, decimals, flag, option, prints, share_option
from quantdrift.features.route.advice import (
    Choice,
    OperatingPoint,
    RoutedRun,
    break_even_share,
    relative_cost,
    study_run,
)
from quantdrift.runs.folder import Run, find_runs
from quantdrift.runs.identity import Identity
from quantdrift.show.answers import write_answers
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, Grid, table
from quantdrift.statistics.conformal import CONFIDENCES, confidence_in, confidence_name, in_words
from quantdrift.statistics.estimates import as_json
from quantdrift.statistics.selective import CONFIDENCE
from quantdrift.trust.certify import ALPHAS, Certificate, Share
from quantdrift.trust.router import GapRouter


@prints("json", "markdown")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    alpha: list[float] | None = share_option(
        "A: Level: at most this share of all answers of the system differs from full precision's; may be repeated. By "
        "default 0.10, 0.05 and 0.01."
    ),
    confidence: float = share_option(
        "C: Confidence of that guarantee, over the draw of the inputs that set the threshold.", default=CONFIDENCE
    ),
    score: str = option(
        "gap|msp|entropy|all: The confidence of the quantized model: gap (first minus second score), msp (maximum "
        "softmax probability), entropy, or all. A search has the gap only.",
        default="all",
    ),
    percentile: str | None = option(
        "P,P,...: Percentages of the inputs that go to full precision in the table of --all; by default 10,25,50."
    ),
    share: float = share_option(SHARE, default=0.5),
    splits: int = option(SPLITS, default=20),
    seed: int = option(SEED, default=0),
    speed_up: float = option(
        "X: Speed of the quantized model over full precision, which is not measured here: give your own figure. 4.5 is "
        "that of GPTQ's authors.",
        default=4.5,
    ),
    recover: float | None = share_option(
        "S: Share of the top-1 changes to correct with the smallest threshold, 0.9 by default; of a search, by "
        "rescoring the first 10 results."
    ),
    everything: bool = flag("--all: Also what thresholds without a guarantee correct, and what to do by them."),
    save: Path | None = option(
        "FILE: Write a router for serving: with the threshold that keeps --alpha on all inputs of one run, or without "
        "--alpha that of --recover."
    ),
    out: Path | None = option(
        "-o --out FILE: Write every input of one run with the candidate's answer and whether it is deferred, into a "
        ".csv or .parquet file."
    ),
) -> Output:
    """Compute the benefit and the cost of answering unsure inputs at full precision.

    The quantized model answers every input; where its first two scores are close, full precision answers too. The cost
    relative to full precision alone is 1 / speed-up + routed share. The table has how many inputs have to be deferred,
    so that of all answers of the system at most the level differs from full precision's, with confidence 0.9.

    With --all, without a guarantee: how many top-1 changes are corrected, how much of the lost accuracy comes back
    (with labels, if at least 0.5 points were lost), and the cheapest way to correct the share --recover of the top-1
    changes: to route, to quantize less, or to do nothing.

    For a search, the first results of unsure queries are rescored instead.

    For a server: quantdrift route RUN --score gap --alpha 0.05 --save router.json -o routed.csv. Then
    quantdrift.GapRouter.load("router.json").routes(scores) returns which inputs go to full precision.

    More: docs/explained/trust.md
    """
    if save is not None:
        GapRouter.check_place(save)
    if score not in {*CONFIDENCES, "all"}:
        raise UnknownNameError("confidence", score, [*CONFIDENCES, "all"])
    everything = everything or percentile is not None or recover is not None
    recover = 0.9 if recover is None else recover
    if not 0 < recover <= 1:
        raise QuantDriftError(f"--recover {recover:g}: expected a share above 0 and at most 1")
    scores = [name for name in CONFIDENCES if score in {name, "all"}]
    percentiles = decimals(percentile or "10,25,50", "--percentile", "10,25,50")
    even = break_even_share(speed_up)  # refuses one below 1 before runs are read
    listed = find_runs(runs)
    kept = {"--save": save, "-o": out}
    asks = next((name for name, place in kept.items() if place is not None), None)
    if asks and len(listed) != 1:
        raise QuantDriftError(f"{asks} sets a threshold on one run; got {len(listed)} runs")
    alphas = list(dict.fromkeys(alpha or ()))
    if asks and len(alphas) > 1:
        raise QuantDriftError(f"{asks} is of a router of one level (--alpha 0.05); got {len(alphas)} levels")
    how: dict[str, Any] = {"percentiles": percentiles, "speed_up": speed_up, "recover": recover}
    how |= {"alphas": alphas or ALPHAS, "confidence": confidence}
    routed = [study_run(run, scores, **how, share=share, n_splits=splits, seed=seed) for run in listed]
    router, after = None, []
    if asks:
        evidence, record = listed[0].evidence(), listed[0].record
        if alphas:
            router = GapRouter.calibrate(evidence, alpha=alphas[0], confidence=confidence, score=scores[0], on=record)
        else:
            point = _point(routed[0].operating_point)
            origin = Identity.of(record).brief()
            router = GapRouter(threshold=point.threshold, score=point.score, k=point.k, origin=origin)
        sent = percent(float((confidence_in(evidence, router.score) < router.threshold).mean()))
        promise = f"; at most {router.alpha or 0:.4g} of all answers differ, with confidence {confidence:g}"
        after.append(
            f"router: {save or 'not saved (--save FILE)'}, set on all inputs, sends {sent} of them to full precision "
            f"({router.rule}){promise if router.guarantee else ''}"
        )
        if save is not None:
            router.save(save)
        if out is not None:
            threshold = router.threshold
            after.append(write_answers(listed[0], router.score, {"deferred": lambda sure: sure < threshold}, out))
    grids: list[Grid] = []
    for run, result in zip(listed, routed, strict=True):
        system, *others = _tables(run, result, share=share, speed_up=speed_up, whole=everything)
        grids += [system, *others] if everything else [system]
        after += [] if asks else _next(run, result)
    asked = {"speed_up": speed_up, "break_even": even, "share": share, "splits": splits, "seed": seed}
    parts = ("score", "threshold", "rule", "guarantee", "alpha", "confidence_level", "k")
    saved = router and {"path": save and str(save), **{name: getattr(router, name) for name in parts}}
    stated = (
        f"The cost is a share of full precision's: 1 / {speed_up:g} plus the deferred share. If more than "
        f"{percent(even)} is deferred, full precision alone is cheaper. "
        f"The speed-up of {speed_up:g} is assumed (--speed-up), not measured."
    )
    data = {**asked, "recover": recover, "runs": as_json(routed), "router": saved}
    return Output(data=data, grids=grids, lines=[stated], next=after)


def _point(point: OperatingPoint | None) -> OperatingPoint:
    if point is None:
        raise QuantDriftError(
            "no threshold is shown to correct so many top-1 changes of new inputs: too few changed here (90 % takes 9, "
            "99 % takes 99), or rescoring a search corrects fewer; give a smaller --recover or more inputs"
        )
    return point


# --- tables ---------------------------------------------------------------------------------------


def _tables(run: Run, result: RoutedRun, *, share: float, speed_up: float, whole: bool) -> Iterator[Grid]:
    """What a level of the system takes, the sweep of a classifier's run, and the choices with their costs."""
    name, advice = f"{result.spec} on {result.data}", result.advice
    cost = "cost" if result.scores_are == "logits" else "cost of encoding queries"
    columns = [
        Column("level", "level"),
        Column("deferred", _deferred, lambda share: "-" if share is None else percent(share)),
        Column("where", _where, kind="words"),
        Column(cost, _deferred, lambda share: "-" if share is None else percent(relative_cost(share, speed_up))),
    ]
    if whole:
        columns += [
            Column("tried: deferred", "deferred", _share),
            Column("tried: differ, of all", "joint_violation.value", lambda value: percent(value, 2)),
        ]
    lines = list(_system_lines(run, result, whole=whole))
    yield table(columns, result.system.certificates, title=f"{name}: how many inputs to defer", lines=lines)
    if result.sweep:
        columns = [
            Column("score", "score"),
            Column("percentile", "percentile", "{:g}".format),
            Column("inputs routed", "routed", _share),
            Column(cost, "routed.value", lambda routed: percent(relative_cost(routed or 0.0, speed_up))),
            Column("lost accuracy recovered", "accuracy", _share),
            Column("changes recovered", "changes", _share),
        ]
        reasons = sorted({point.accuracy.reason for point in result.sweep if point.accuracy.reason})
        lines = [f"No share of lost accuracy: {reason}." for reason in reasons]
        title = f"{name}: thresholds set on {100 * share:g} %, measured on the rest"
        yield table(columns, result.sweep, title=title, lines=lines)
    columns = [
        Column("choice", "what"),
        Column("top-1 changes corrected (95 %)", lambda choice: percent(choice.changes) + _how_sure(choice)),
        Column(cost, "cost", percent),
    ]
    yield table(columns, advice.choices, title=f"{name}: what to do, without a guarantee", lines=advice.sentences)


def _next(run: Run, result: RoutedRun) -> Iterator[str]:
    """Of the levels that can be kept, the strictest to make a router of."""
    place = as_typed(run.path)
    if kept := [level.alpha for level in result.system.certificates if _deferred(level) is not None]:
        command = f"quantdrift route {place} --score gap --alpha {min(kept):g} --save router.json -o routed.csv"
        yield f"{command}   # the router, for a server, and what it does with each input"
    yield f"quantdrift certify {place}   # if the rest is not answered: its level is of the accepted answers"


def _how_sure(choice: Choice) -> str:
    return "" if choice.between is None else " ({:.1f} to {:.1f})".format(*(100 * end for end in choice.between))


def _deferred(level: Certificate) -> float | None:
    return None if math.isinf(level.threshold_of_all) else 1 - level.coverage_of_all


def _where(level: Certificate) -> str:
    if math.isinf(level.threshold_of_all):
        return "-"
    if level.coverage_of_all == 1:
        return "nowhere"
    return in_words(confidence_name(level.statistic), "below", level.threshold_of_all)


def _system_lines(run: Run, result: RoutedRun, *, whole: bool) -> Iterator[str]:
    """What the first table says, in plain words."""
    system = result.system
    yield from [system.tried] if whole else system.briefly("joint_violation", "all answers differed")
    for reason in filter(None, (level.nothing_of_all for level in system.certificates)):
        yield f"{reason[0].upper()}{reason[1:]}."
    yield (
        f"You choose the level: of all answers, deferred ones included, at most that share differs from full "
        f"precision's, with confidence {system.confidence:g}, for inputs like these. gap: the candidate's first score "
        "minus its second."
    )
    if result.k is not None:
        similarity = run.record.get("settings", {}).get("similarity") or "a similarity that is not recorded"
        yield (
            f"A deferred query has the candidate's first {result.k} results ranked again at full precision; documents "
            f"not among them do not come back. Embeddings were compared by {similarity}."
        )


def _share(share: Share) -> str:
    return percent(share.value) + ("" if share.sd is None else f" ± {100 * share.sd:.1f}")
