"""`capture`: what share of a wider uniform width's benefit the allocations of each criterion keep."""

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
    asked = [each for each in map(parse_metric, dict.fromkeys(metric or METRICS)) if can_be_captured(each)]
    found = read_capture(folder, asked or [parse_metric(METRICS[0])])
    metrics = [each for each in found.metrics if found.captures(each, by=())]
    if table is not None:
        rows = rows_of(found, metrics)
        write_table(columns_of(rows), rows, table)
        note(f"wrote {table}")
    contests = [contest for each in metrics for contest in found.contests(each)]
    agreements = found.agreements()
    grids = [_captures(found, metrics)] if metrics else []
    grids += [_contests(metrics[0], contests)] if contests else []
    grids += [_agreements(agreements)] if agreements else []
    left_out = f"{counted(found.missing, 'allocation')} left out, as they or their uniform widths are not done"
    n_queries = sum(corpus.n_queries for corpus in found.corpora.values())
    size = f"{counted(len(found.points), 'point')}, {n_queries:,} held-out queries"
    return Output(
        data={
            "missing": found.missing,
            "captures": as_json([one for each in metrics for one in found.captures(each)]),
            "pooled": as_json([one for each in metrics for one in found.captures(each, by=())]),
            "contests": as_json(contests),
            "agreements": as_json(agreements),
        },
        title=f"{folder.path}: a capture study of {size}",
        grids=grids,
        lines=[left_out] if found.missing else [],
    )


def _captures(found: Capture, metrics: Sequence[Metric]) -> Grid:
    """One row for each quantizer, budget and criterion; the first metric in full."""
    first, criteria = metrics[0], found.grid.criteria
    base = "random" if "random" in criteria else criteria[-1]
    beside = {_key(one): one for one in found.contests(first, by=BY, against=base)}
    by_metric = [{_key(one): one for one in found.captures(each)} for each in metrics]
    rows = []
    for key, one in by_metric[0].items():
        contest = beside.get(key)
        rows.append(
            [
                f"{key[0]} {key[1]:g}" + ("" if one.of["activations"] == FULL_BITS else f" A{one.of['activations']}"),
                one.criterion,
                with_interval(one.ratio, 0),
                *(percent(each[key].ratio.value, 0) if key in each else "-" for each in by_metric[1:]),
                " > ".join(f"{100 * value:.1f}" for value in (one.low, one.value, one.high)),
                "" if contest is None else with_interval(contest.difference, 0, sign="+"),
                "" if contest is None else show_p(contest.p_holm),
                f"{one.best_in} of {one.ratio.n}",
            ]
        )
    more = [f"{first}, %: low > here > high", f"ahead of {base}, pp", "p (Holm)", "best in"]
    return Grid(
        title="Share of a wider uniform width's benefit that an allocation keeps (95 % intervals over queries)",
        head=["quantizer, bits", "criterion", *(f"capture, {each}" for each in metrics), *more],
        rows=rows,
        words={"criterion"},
        ruled=True,
        lines=[
            "low and high: all layers at the uniform widths around the budget; rates are means over points (model, "
            "data, seed, calibration queries); best in: points at which no other criterion does better"
        ],
    )


def _key(one: Any) -> tuple[str, float, int, str]:
    return *(one.of[axis] for axis in BY), one.criterion


def _contests(metric: Metric, contests: Sequence[Contest]) -> Grid:
    rows = [
        [
            f"{one.criterion} : {one.against}",
            with_interval(one.difference, 0, sign="+"),
            f"{one.ahead} : {one.behind} of {one.difference.n}",
            show_p(one.p_holm),
        ]
        for one in contests
        if one.metric == str(metric)
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
            one.criterion,
            one.model,
            f"{one.size}",
            "another seed" if one.size == one.against else f"{one.against} queries",
            percent(one.share),
            f"{one.n_pairs}",
        ]
        for one in agreements
    ]
    return Grid(
        title="Layers that two draws of calibration queries give the same width",
        head=["criterion", "model", "queries", "against", "layers", "pairs of draws"],
        rows=rows,
        words={"model", "against"},
    )
