"""`quantdrift law`: does the separation tell how many answers change, over many runs? No torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from quantdrift.cli.tables import console, one_format, print_markdown
from quantdrift.compare.law import (
    LEAST_RUNS,
    NAMES,
    PREDICTORS,
    HeldOut,
    LawStudy,
    Line,
    law_findings,
    law_json,
    law_runs,
    study_law,
)
from quantdrift.compare.law_figure import check_figure, draw_law
from quantdrift.display import clean, print_json, prose, say
from quantdrift.errors import QuantDriftError
from quantdrift.runs import find_runs
from quantdrift.statistics import Estimate

Rows = list[tuple[str, ...]]

FAR_OFF = -10
"""An R2 below this is only said to be below it; the JSON has the number."""

NOTES = (
    "-: undefined, mostly because the quantity is the same in all these runs.",
    "R2: 1 is exact, 0 no better than the mean of these very runs, below 0 worse.",
    "mean error: of the predicted change rate, in percentage points.",
)


def law_command(
    paths: Sequence[Path],
    *,
    hold_out: Sequence[str],
    by: str | None,
    figure: Path | None,
    json_output: bool,
    markdown: bool,
) -> None:
    """Print what the runs say of the law, and draw it.

    Args:
        paths: run folders, or folders that hold some.
        hold_out: patterns of the labels of runs that the line is only judged on.
        by: "data" or "scheme": what is left out in turn without patterns; "data" if not given.
        figure: file to draw into.
        json_output: print one JSON object.
        markdown: print Markdown tables.

    Raises:
        QuantDriftError: no such run, a pattern that holds out nothing or everything, or a figure
            that cannot be drawn.
    """
    one_format(json_output=json_output, markdown=markdown)
    if hold_out and by is not None:
        raise QuantDriftError("--hold-out and --by both choose which runs the line never sees; give one of them")
    if figure is not None:
        check_figure(figure)
    runs = law_runs(find_runs(paths))
    if len(runs) < LEAST_RUNS:
        raise QuantDriftError(
            f"a law is seen over several runs: expected {LEAST_RUNS} or more, of other schemes, "
            f"models or corpora; got {len(runs)}. Two candidates are compared by: quantdrift "
            "compare A B"
        )
    study = study_law(runs, by=by or "data", patterns=hold_out)
    if figure is not None:
        fitted = 0 if study.line is None else study.line.n
        whose = "through the other" if hold_out else "through"
        draw_law(study.runs, study.line, figure, line_label=f"line {whose} {fitted} runs")
    if json_output:
        print_json(law_json(study, figure))
        return
    findings = law_findings(study)
    if study.line is not None and not hold_out:  # else it stands in the table
        findings.append(f"The line through {_count(study.line.n)}: {_formula(study.line)}.")
    if markdown:
        for _, head, rows in _tables(study):
            print_markdown(head, rows)
            say()
        say("\n".join(f"- {prose(line)}" for line in findings))
        return
    _print(study, findings)
    if figure is not None:
        console(wide=True).print(f"\nfigure: {figure}", soft_wrap=True)


def _print(study: LawStudy, findings: Sequence[str]) -> None:
    out = console(wide=True)
    for title, head, rows in _tables(study):
        table = Table(title=title, title_justify="left")
        for position, name in enumerate(head):
            table.add_column(name, justify="right" if position else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(clean, row))
        out.print(table)
    for note in NOTES:
        out.print(note, style="dim")
    out.print()
    for line in findings:
        out.print(line)


def _tables(study: LawStudy) -> list[tuple[str, tuple[str, ...], Rows]]:
    runs = study.runs
    first: Rows = []
    for predictor in PREDICTORS:
        held = study.held_out.get(predictor)
        first.append(
            (
                NAMES[predictor],
                _signed(study.spearman[predictor]),
                _number(held.r_squared) if held else "-",
                _points(held.mean_error) if held else "-",
            )
        )
    head: tuple[str, ...] = ("predictor", "Spearman with the change rate", "R2 on runs never seen", "mean error")
    tables = [(f"What tells the change rate of {_count(len(runs))}", head, first)]
    within: Rows = [
        (name, f"{sum(run.data == name for run in runs)}", *(_signed(estimates[predictor]) for predictor in PREDICTORS))
        for name, estimates in study.within.items()
    ]
    within.append(("all", f"{len(runs)}", *(_signed(study.spearman[predictor]) for predictor in PREDICTORS)))
    head = ("corpus", "runs", "separation", "gap", "epsilon", "items")
    tables.append(("Spearman with the change rate, within each corpus", head, within))
    held = study.held_out.get("separation")
    if held is not None:
        title = {"data": "One corpus left out in turn", "scheme": "One width left out in turn"}
        chosen = study.left_out
        name = title[chosen] if isinstance(chosen, str) else "Runs held out"
        head = ("left out", "runs", "line through the others", "R2", "mean error")
        tables.append((name, head, _held_rows(held)))
    return tables


def _held_rows(held: HeldOut) -> Rows:
    rows: Rows = [
        (
            group.name,
            f"{len(group.predicted)}",
            "-" if group.line is None else _formula(group.line),
            _number(group.r_squared),
            _points(group.mean_error),
        )
        for group in held.groups
    ]
    if len(held.groups) > 1:
        n = sum(len(group.predicted) for group in held.groups)
        rows.append(("all of them", f"{n}", "", _number(held.r_squared), _points(held.mean_error)))
    return rows


def _formula(line: Line) -> str:
    sign = "-" if line.slope < 0 else "+"
    return f"{100 * line.intercept:.1f} % {sign} {100 * abs(line.slope):.1f} % * log10(separation)"


def _signed(estimate: Estimate) -> str:
    return "-" if estimate.value is None else f"{estimate.value:+.2f}"


def _number(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    if estimate.value < FAR_OFF:
        return f"< {FAR_OFF}"
    return f"{round(estimate.value, 2) + 0.0:.2f}"  # + 0.0: no "-0.00"


def _points(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    return "> 100 points" if estimate.value > 1 else f"{100 * estimate.value:.1f} points"


def _count(number: int) -> str:
    return f"{number} run" + ("" if number == 1 else "s")
