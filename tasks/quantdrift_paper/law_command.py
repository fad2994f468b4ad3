"""The command `law`: does the separation tell how many answers change, over many runs? No torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.text import counted
from quantdrift.cli.options import RUNS, argument, option, prints
from quantdrift.runs.folder import find_runs
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.statistics.estimates import Estimate
from quantdrift_paper import law

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
    by: str = option("data|scheme: What is left out in turn: each corpus, or each number of bits.", default="data"),
) -> Output:
    """Over many runs: does a larger separation go with fewer changed answers, and by how much?

    Shows rank correlations (also of other predictors), fits a line, and tests the line on runs that it was not fitted
    on. Needs at least three runs.
    """
    points = law.law_runs(find_runs(runs))
    if len(points) < law.LEAST_RUNS:
        raise QuantDriftError(
            f"a law is seen over several runs: expected {law.LEAST_RUNS} or more, of other schemes, models or corpora; "
            f"got {len(points)}. Two candidates are compared by: quantdrift compare A B"
        )
    study = law.study_law(points, by=by)
    line = [] if study.line is None else [f"The line through {counted(study.line.n, 'run')}: {_formula(study.line)}."]
    return Output(data=law.law_json(study), grids=list(_grids(study)), lines=[_NOTE, *law.law_findings(study), *line])


def _grids(study: law.LawStudy) -> Iterator[Grid]:
    runs, title = study.runs, "Spearman with the change rate"
    judged = ["R2 on runs never seen", "mean error"]
    yield Grid(
        title=f"What tells the change rate of {counted(len(runs), 'run')}",
        head=["predictor", title, *judged],
        rows=[
            [law.NAMES[predictor], _signed(study.spearman[predictor]), *_held(study.held_out.get(predictor))]
            for predictor in law.PREDICTORS
        ],
    )
    corpora = {
        name: (sum(run.data == name for run in runs), correlations) for name, correlations in study.within.items()
    }
    corpora["all"] = (len(runs), study.spearman)
    yield Grid(
        title=f"{title}, within each corpus",
        head=["corpus", "runs", "separation", "gap", "epsilon", "items"],
        rows=[
            [name, f"{n}", *(_signed(correlations[predictor]) for predictor in law.PREDICTORS)]
            for name, (n, correlations) in corpora.items()
        ],
    )
    if (held := study.held_out.get("separation")) is not None:
        yield Grid(
            title=f"One {'corpus' if study.by == 'data' else 'width'} left out in turn",
            head=["left out", "runs", "line through the others", *judged],
            rows=[
                [group.name, f"{len(group.predicted)}", _formula(group.line) if group.line else "-", *_held(group)]
                for group in held.groups
            ],
            words={"line through the others"},
        )


def _formula(line: law.Line) -> str:
    sign = "-" if line.slope < 0 else "+"
    return f"{100 * line.intercept:.1f} % {sign} {100 * abs(line.slope):.1f} % * log10(separation)"


def _signed(estimate: Estimate) -> str:
    return "-" if estimate.value is None else f"{estimate.value:+.2f}"


def _held(held: law.HeldOut | None) -> list[str]:
    """Show R2, of which a very bad value is only said to be very bad, and the mean error."""
    score, error = (held.r_squared.value, held.mean_error.value) if held else (None, None)
    return [
        "-" if score is None else f"{score:z.2f}" if score >= _FAR_OFF else f"< {_FAR_OFF}",
        "-" if error is None else f"{100 * error:.1f} points",
    ]
