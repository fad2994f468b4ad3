"""`quantdrift law`: does the separation tell how many answers change, over many runs? No torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quantdrift.cli.options import FIGURE, RUNS, argument, option, prints
from quantdrift.cli.output import Grid, Shown, counted
from quantdrift.compare import law
from quantdrift.compare.law_figure import check_figure, draw_law
from quantdrift.errors import QuantDriftError
from quantdrift.runs import find_runs
from quantdrift.statistics.estimates import Estimate

_FAR_OFF = -10
"""An R2 below this is only said to be below it; the JSON has the number."""
_NOTE = (
    "-: undefined, mostly because the quantity is the same in all these runs. R2: 1 is exact, 0 no better than the "
    "mean of these very runs. mean error: of the predicted change rate, in percentage points."
)


@prints("json", "markdown")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    hold_out: list[str] | None = option(
        "PATTERN: Judge the line on the runs whose label matches, fit it on the others; a part of the label, or "
        "wildcards for all of it, e.g. '*@W4-*'; may be repeated."
    ),
    by: str | None = option(
        "data|scheme: Without --hold-out, what is left out in turn: each corpus (data, the default) or each "
        "number of bits (scheme)."
    ),
    figure: Path | None = option(FIGURE),
) -> Shown:
    """Over many runs: does a larger separation go with fewer changed answers, and by how much?

    Shows rank correlations (also of other predictors), fits a line, and tests the line on runs that it was not fitted
    on. Needs at least three runs.
    """
    if hold_out and by is not None:
        raise QuantDriftError("--hold-out and --by both choose which runs the line never sees; give one of them")
    if figure is not None:
        check_figure(figure)
    found = law.law_runs(find_runs(runs))
    if len(found) < law.LEAST_RUNS:
        raise QuantDriftError(
            f"a law is seen over several runs: expected {law.LEAST_RUNS} or more, of other schemes, models or corpora; "
            f"got {len(found)}. Two candidates are compared by: quantdrift compare A B"
        )
    study = law.study_law(found, by=by or "data", patterns=hold_out or ())
    fitted = 0 if study.line is None else study.line.n
    if figure is not None:
        through = "through the other" if hold_out else "through"
        draw_law(study.runs, study.line, figure, line_label=f"line {through} {fitted} runs")
    findings = law.law_findings(study)
    if study.line is not None and not hold_out:  # else it stands in the table
        findings.append(f"The line through {counted(fitted, 'run')}: {_formula(study.line)}.")
    return Shown(
        data=law.law_json(study, figure),
        grids=list(_grids(study)),
        lines=[_NOTE, *findings],
        next=[] if figure is None else [f"\nfigure: {figure}"],
    )


def _grids(study: law.LawStudy) -> Iterator[Grid]:
    runs, title = study.runs, "Spearman with the change rate"
    rows = []
    for predictor in law.PREDICTORS:
        held = study.held_out.get(predictor)
        tested = (_number(held.r_squared), _points(held.mean_error)) if held else ("-", "-")
        rows.append([law.NAMES[predictor], _signed(study.spearman[predictor]), *tested])
    yield Grid(
        title=f"What tells the change rate of {counted(len(runs), 'run')}",
        head=["predictor", title, "R2 on runs never seen", "mean error"],
        rows=rows,
    )
    corpora = {name: (sum(run.data == name for run in runs), each) for name, each in study.within.items()}
    corpora["all"] = (len(runs), study.spearman)
    yield Grid(
        title=f"{title}, within each corpus",
        head=["corpus", "runs", "separation", "gap", "epsilon", "items"],
        rows=[[name, f"{n}", *(_signed(each[one]) for one in law.PREDICTORS)] for name, (n, each) in corpora.items()],
    )
    if (held := study.held_out.get("separation")) is not None:
        in_turn = {"data": "One corpus left out in turn", "scheme": "One width left out in turn"}
        yield Grid(
            title=in_turn[study.left_out] if isinstance(study.left_out, str) else "Runs held out",
            head=["left out", "runs", "line through the others", "R2", "mean error"],
            rows=_held_rows(held),
            words={"line through the others"},
        )


def _held_rows(held: law.HeldOut) -> list[list[str]]:
    rows = [
        [
            group.name,
            f"{len(group.predicted)}",
            "-" if group.line is None else _formula(group.line),
            _number(group.r_squared),
            _points(group.mean_error),
        ]
        for group in held.groups
    ]
    if len(held.groups) > 1:
        n = sum(len(group.predicted) for group in held.groups)
        rows.append(["all of them", f"{n}", "", _number(held.r_squared), _points(held.mean_error)])
    return rows


def _formula(line: law.Line) -> str:
    sign = "-" if line.slope < 0 else "+"
    return f"{100 * line.intercept:.1f} % {sign} {100 * abs(line.slope):.1f} % * log10(separation)"


def _signed(estimate: Estimate) -> str:
    return "-" if estimate.value is None else f"{estimate.value:+.2f}"


def _number(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    return f"< {_FAR_OFF}" if estimate.value < _FAR_OFF else f"{estimate.value:z.2f}"


def _points(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    return "> 100 points" if estimate.value > 1 else f"{100 * estimate.value:.1f} points"
