"""`quantdrift compare`: two runs of one reference, input by input, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from quantdrift.cli.tables import console, one_format, print_markdown
from quantdrift.compare.two_runs import Comparison, compare_runs
from quantdrift.display import clean, one_line, print_json
from quantdrift.metrics import Metric, parse_metric
from quantdrift.metrics.numbers import show_p, show_step
from quantdrift.runs import read_run
from quantdrift.statistics import PairedComparison

STYLES = {"worse": "red", "no worse": "green", "better": "green", "underpowered": "yellow"}


def compare_command(
    a: Path,
    b: Path,
    names: Sequence[str],
    *,
    margin: float | None,
    alpha: float,
    seed: int,
    json_output: bool,
    markdown: bool,
) -> None:
    """Print the comparison of run B with run A.

    Args:
        a: run folder.
        b: run folder.
        names: metric strings; the default ones if there are none.
        margin: by how much B may be worse, in each metric's own unit.
        alpha: level of the verdicts.
        seed: of resampling and permutations.
        json_output: print one JSON object.
        markdown: print a Markdown table.

    Raises:
        QuantDriftError: no such run or metric, runs that do not belong together, or a margin or
            alpha out of its range.
    """
    one_format(json_output=json_output, markdown=markdown)
    asked = [parse_metric(name) for name in names]
    found = compare_runs(read_run(a), read_run(b), asked or None, margin=margin, alpha=alpha, seed=seed)
    if json_output:
        print_json(found.to_json())
        return
    head, rows = _cells(found)
    if markdown:
        print_markdown(head, rows, sentences(found))
        return
    out = console(wide=True)
    for name, run in (("A", found.a), ("B", found.b)):
        spec, path = clean(str(run.record.get("spec"))), one_line(str(run.path))
        out.print(Text.assemble((name, "bold"), f"  {spec}  ", (path, "dim")), soft_wrap=True)
    table = Table(pad_edge=False)  # so that an interval fits on a line
    for title in head:
        table.add_column(title, justify="left" if title in {"metric", "verdict"} else "right")
    for row in rows:
        style = STYLES.get(row[-1], "")
        shown = [cell.replace(" (", "\n(") for cell in row[:-1]]
        table.add_row(*shown, Text(row[-1], style))
    out.print(table)
    for line in sentences(found):
        out.print(line)


def _cells(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Column titles and rows; with a margin there are more columns."""
    head = ["metric", "A", "B", "B - A\n(95 %)", "p", "p\n(Holm)"]
    if found.margin is not None:
        head += ["p no worse\n(Holm)", "needed\n(inputs)"]
    rows = []
    for each in found.metrics:
        metric = parse_metric(each.metric)
        form = _form(metric)
        row = [each.metric, _shown(each.value_a, form), _shown(each.value_b, form)]
        row += [show_step(metric, each.difference), show_p(each.p_value), show_p(each.p_holm)]
        if found.margin is not None:
            needed = "-" if each.inputs_needed is None else f"{each.inputs_needed:,} ({each.n:,})"
            row += [show_p(each.p_no_worse_holm), needed]
        rows.append([*row, each.verdict or "-"])
    return [*head, "verdict"], rows


def _form(metric: Metric) -> Callable[[float], str]:
    """How a value is written."""
    if metric.unit == "rate":
        return lambda value: f"{100 * value:.1f} %"
    return lambda value: f"{value:.{3 if abs(value) >= 1 else 4}f}"


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    if value is None:
        return "-"
    return form(value) if math.isfinite(value) else "∞"


def sentences(found: Comparison) -> list[str]:
    """The finding in plain sentences: who changes which inputs, the verdicts, what to know."""
    lines = [f"Note: {note}." for note in found.notes]
    for each in found.metrics:
        if each.metric == "flip@1" and each.p_value is not None:
            lines.append(
                f"B flips {each.higher_b:,} inputs that A does not, A flips {each.higher_a:,} that "
                f"B does not: {_by_chance(each, found.alpha)} ({_equal_p(each.p_value)}; "
                f"{_equal_p(each.p_holm)} adjusted for the number of metrics)."
            )
    lines += _verdicts(found)
    lines += [f"{each.metric}: {each.reason}." for each in found.metrics if each.reason]
    return lines


def _by_chance(each: PairedComparison, alpha: float) -> str:
    if each.p_holm is not None and each.p_holm < alpha:
        return "a larger difference than chance makes"
    return "a difference that chance can make"


def _equal_p(value: float | None) -> str:
    shown = show_p(value)
    return f"p {shown}" if shown.startswith("<") else f"p = {shown}"


def _verdicts(found: Comparison) -> list[str]:
    by: dict[str, list[PairedComparison]] = {}
    for each in found.metrics:
        if each.verdict is not None:
            by.setdefault(each.verdict, []).append(each)

    def names(verdict: str) -> str:
        return ", ".join(each.metric for each in by[verdict])

    told = {
        "no worse": "No worse by {margin} or more: {names}.",
        "worse": "Worse: {names}.",
        "better": "Better: {names}.",
        "inconclusive": "Undecided, though there are enough inputs to show no worse if there were "
        "no difference: {names}.",
        "no difference shown": "No difference shown, which is not the same as no difference "
        "(--margin asks whether B is no worse): {names}.",
    }
    margin = "" if found.margin is None else f"{found.margin:g}"
    lines = [text.format(names=names(verdict), margin=margin) for verdict, text in told.items() if verdict in by]
    few = [
        f"{each.metric} (has {each.n:,} inputs, needs about {each.inputs_needed:,})"
        for each in by.get("underpowered", [])
    ]
    if few:
        lines.append(f"Undecided, too few inputs: {', '.join(few)}.")
    return lines
