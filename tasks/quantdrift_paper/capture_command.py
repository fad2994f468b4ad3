"""The command `capture`: the share of a wider uniform width's benefit that the allocations of each criterion keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quantdrift.base.display import note
from quantdrift.base.text import counted, percent, with_interval
from quantdrift.cli.options import METRIC, argument, option, prints
from quantdrift.metrics import Metric, parse_metric
from quantdrift.metrics.numbers import show_p
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid, write_table
from quantdrift.stages.weights import FULL_BITS
from quantdrift.statistics.estimates import as_json
from quantdrift.study.folder import open_study
from quantdrift_paper.capture import (
    BY,
    METRICS,
    Agreement,
    Capture,
    Contest,
    can_be_captured,
    columns_of,
    read_capture,
    rows_of,
)


@prints("json", "markdown")
def command(
    *,
    study: Path = argument("STUDY: The folder of a capture study: its study.yaml has a block `capture`."),
    metric: list[str] | None = option(METRIC),
    table: Path | None = option("FILE: Write one row a capture, and one for each two criteria, into .csv or .parquet."),
) -> Output:
    """Capture of every criterion, by quantizer and budget; who is ahead; how far draws of queries agree."""
    folder = open_study(study)
    asked = [parsed for parsed in map(parse_metric, dict.fromkeys(metric or METRICS)) if can_be_captured(parsed)]
    capture = read_capture([folder], asked or [parse_metric(METRICS[0])])
    metrics = [parsed for parsed in capture.metrics if capture.captures(parsed, by=())]
    if table is not None:
        rows = rows_of(capture, metrics)
        write_table(columns_of(rows), rows, table)
        note(f"wrote {table}")
    contests = [contest for parsed in metrics for contest in capture.contests(parsed)]
    agreements = capture.agreements()
    grids = [_captures(capture, metrics)] if metrics else []
    grids += [_contests(metrics[0], contests)] if contests else []
    grids += [_agreements(agreements)] if agreements else []
    left_out = f"{counted(capture.missing, 'allocation')} left out, as they or their uniform widths are not done"
    n_queries = sum(corpus.n_queries for corpus in capture.corpora.values())
    size = f"{counted(len(capture.points), 'point')}, {n_queries:,} held-out queries"
    return Output(
        data={
            "missing": capture.missing,
            "captures": as_json([captured for parsed in metrics for captured in capture.captures(parsed)]),
            "pooled": as_json([captured for parsed in metrics for captured in capture.captures(parsed, by=())]),
            "contests": as_json(contests),
            "agreements": as_json(agreements),
        },
        title=f"{folder.path}: a capture study of {size}",
        grids=grids,
        lines=[left_out] if capture.missing else [],
    )


def _captures(capture: Capture, metrics: Sequence[Metric]) -> Grid:
    """Make a row for each quantizer, budget and criterion; the first metric is told in full."""
    first, criteria = metrics[0], capture.criteria
    base = "random" if "random" in criteria else criteria[-1]
    beside = {_key(contest): contest for contest in capture.contests(first, by=BY, against=base)}
    by_metric = [{_key(captured): captured for captured in capture.captures(metric)} for metric in metrics]
    rows = []
    for key, captured in by_metric[0].items():
        contest = beside.get(key)
        rows.append(
            [
                f"{key[0]} {key[1]:g}"
                + ("" if captured.of["activations"] == FULL_BITS else f" A{captured.of['activations']}"),
                captured.criterion,
                with_interval(captured.ratio, 0),
                *(percent(column[key].ratio.value, 0) if key in column else "-" for column in by_metric[1:]),
                " > ".join(f"{100 * value:.1f}" for value in (captured.low, captured.value, captured.high)),
                "" if contest is None else with_interval(contest.difference, 0, sign="+"),
                "" if contest is None else show_p(contest.p_holm),
                f"{captured.best_in} of {captured.ratio.n}",
            ]
        )
    more = [f"{first}, %: low > here > high", f"ahead of {base}, pp", "p (Holm)", "best in"]
    return Grid(
        title="Share of a wider uniform width's benefit that an allocation keeps (95 % intervals over queries)",
        head=["quantizer, bits", "criterion", *(f"capture, {metric}" for metric in metrics), *more],
        rows=rows,
        words={"criterion"},
        ruled=True,
        lines=[
            "low and high: all layers at the uniform widths around the budget; rates are means over points (model, "
            "data, seed, calibration queries); best in: points at which no other criterion does better"
        ],
    )


def _key(result: Any) -> tuple[str, float, int, str]:
    return *(result.of[axis] for axis in BY), result.criterion


def _contests(metric: Metric, contests: Sequence[Contest]) -> Grid:
    rows = [
        [
            f"{contest.criterion} : {contest.against}",
            with_interval(contest.difference, 0, sign="+"),
            f"{contest.ahead} : {contest.behind} of {contest.difference.n}",
            show_p(contest.p_holm),
        ]
        for contest in contests
        if contest.metric == str(metric)
    ]
    return Grid(
        title=f"Capture of {metric} over all points, one criterion against another",
        head=["criteria", "difference, pp", "points ahead : behind", "p (Holm)"],
        rows=rows,
        lines=["p of Fisher's randomization test: a query's difference, over all its cells, could have the other sign"],
    )


def _agreements(agreements: Sequence[Agreement]) -> Grid:
    rows = [
        [
            agreement.criterion,
            agreement.model,
            f"{agreement.size}",
            "another seed" if agreement.size == agreement.against else f"{agreement.against} queries",
            percent(agreement.share),
            f"{agreement.n_pairs}",
        ]
        for agreement in agreements
    ]
    return Grid(
        title="Layers that two draws of calibration queries give the same width",
        head=["criterion", "model", "queries", "against", "layers", "pairs of draws"],
        rows=rows,
        words={"model", "against"},
    )
