"""A comparison of two runs as a table and sentences."""

from collections.abc import Iterator

from quantdrift.compare.two_runs import Comparison
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import show, show_p, show_step
from quantdrift.show.tables import Column, Grid, table
from quantdrift.statistics.estimates import Estimate
from quantdrift.statistics.verdicts import PairedComparison

_VERDICTS = {
    "no worse": "No worse by {margin} or more: {names}.",
    "worse": "Worse: {names}.",
    "better": "Better: {names}.",
    "inconclusive": "Undecided, with enough inputs to show no worse if there were no difference: {names}.",
    "no difference shown": "No difference shown, which is not the same as no difference (with --margin you ask "
    "whether B is no worse): {names}.",
    "underpowered": "Undecided, too few inputs: {names}.",
}


def comparison_grid(comparison: Comparison) -> Grid:
    """One row for each metric; a margin adds columns."""

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
    """The notes, the inputs that only one run changes, and the verdicts, as sentences."""
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
