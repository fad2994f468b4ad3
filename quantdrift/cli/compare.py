"""`quantdrift compare`: two runs of one reference, input by input, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quantdrift.cli.options import METRIC, SEED, argument, option, prints
from quantdrift.compare.two_runs import Comparison, compare_runs
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import show, show_p, show_step
from quantdrift.runs.folder import read_run
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, Grid, table
from quantdrift.statistics.estimates import Estimate
from quantdrift.statistics.verdicts import PairedComparison

_VERDICTS = {
    "no worse": "No worse by {margin} or more: {names}.",
    "worse": "Worse: {names}.",
    "better": "Better: {names}.",
    "inconclusive": "Undecided, though there are enough inputs to show no worse if there were no difference: {names}.",
    "no difference shown": "No difference shown, which is not the same as no difference (--margin asks whether B is no "
    "worse): {names}.",
    "underpowered": "Undecided, too few inputs: {names}.",
}


@prints("json", "markdown")
def command(
    *,
    a: Path = argument("A: The run to compare with, e.g. of MODEL@W4-g64."),
    b: Path = argument("B: The run asked about, e.g. of MODEL@W4-channel, on the same data."),
    metric: list[str] | None = option(METRIC),
    margin: float | None = option(
        "X: By how much B may be worse, in the metric's own unit: 0.02 is 2 percentage points of a rate, or 0.02 "
        "of nDCG. With it the verdict is whether B is shown to be no worse by that much; without it, only whether"
        " a difference is shown."
    ),
    alpha: float = option("P: Accepted chance of a wrong verdict, over all metrics together.", default=0.05),
    seed: int = option(SEED, default=0),
) -> Output:
    """Two candidates of one reference on the same inputs: is B worse than A, or no worse?

    Input by input, with exact or resampling tests, adjusted for the number of metrics. "No difference shown" is not
    "no difference": give --margin to ask whether B is no worse. The exit code is 0 whatever the verdict.

    Without -m: flip@1, gold_lost, ndcg@10, recall, mrr@10 and separation, where defined; on classification data
    flip@1, gold_lost@1, accuracy and separation. A verdict get flip@1, gold_lost@10, ndcg@10 and accuracy, by the tests
    of quantdrift gate; the others are shown with their intervals. What -m names gets a verdict.

    For example: quantdrift compare quantdrift-runs/minilm@W4-g128-rtn_on_docs quantdrift-runs/minilm@W3*

    More: docs/reference/metrics.md
    """
    asked = [parse_metric(name) for name in metric or ()]
    comparison = compare_runs(read_run(a), read_run(b), asked or None, margin=margin, alpha=alpha, seed=seed)
    runs = (("A", comparison.a), ("B", comparison.b))
    return Output(
        data=comparison.to_json(),
        about=[f"{name}  {run.record.get('spec')}  {run.path}" for name, run in runs],
        grids=[comparison_grid(comparison)],
        lines=list(comparison_lines(comparison)),
    )


def comparison_grid(comparison: Comparison) -> Grid:
    """A row a metric; with a margin there are more columns."""

    def needed(row: PairedComparison) -> str:
        return "-" if row.inputs_needed is None else f"{row.inputs_needed:,} ({row.n:,})"

    def of_unit(row: PairedComparison, value: float | None) -> str:
        return show(parse_metric(row.metric), Estimate(value=value))

    columns = [
        Column("metric", "metric", kind="words"),
        Column("A", lambda row: of_unit(row, row.value_a)),
        Column("B", lambda row: of_unit(row, row.value_b)),
        Column("B - A (95 %)", lambda row: show_step(parse_metric(row.metric), row.difference)),
        Column("p", "p_value", show_p),
        Column("p (Holm)", "p_holm", show_p),
    ]
    if comparison.margin is not None:
        columns += [Column("p no worse (Holm)", "p_no_worse_holm", show_p), Column("needed (inputs)", needed)]
    columns.append(Column("verdict", "verdict", lambda verdict: verdict or "-", kind="words"))
    return table(columns, comparison.metrics, stacked=True)


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """The finding in plain sentences: what to know, who changes which inputs, the verdicts."""
    for note in comparison.notes:
        yield f"Note: {note}."
    for row in comparison.metrics:
        if row.metric == "flip@1" and row.p_value is not None:
            beyond = row.p_holm is not None and row.p_holm < comparison.alpha
            yield (
                f"B flips {row.higher_b:,} inputs that A does not, A flips {row.higher_a:,} that B does not: "
                f"a {'larger difference than chance makes' if beyond else 'difference that chance can make'} "
                f"(p {show_p(row.p_value)}; {show_p(row.p_holm)} adjusted for the number of metrics)."
            )
    for verdict, text in _VERDICTS.items():
        if names := [row.metric for row in comparison.metrics if row.verdict == verdict]:
            yield text.format(names=", ".join(names), margin=f"{comparison.margin or 0:g}")
    for row in comparison.metrics:
        if row.reason:
            yield f"{row.metric}: {row.reason}."
