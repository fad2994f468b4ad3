"""`quantdrift certify --check`: a stored check on runs of the same pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from quantdrift.cli.tables import console, print_markdown
from quantdrift.conformal import StabilityError
from quantdrift.display import clean, print_json, prose, say
from quantdrift.errors import RunError
from quantdrift.runs import Run
from quantdrift.statistics import Estimate
from quantdrift.trust.check import Applied, StabilityCheck, apply_check

SHOWN = 3
"""Names of data in the title; more are counted."""

HEAD = ("run", "inputs", "accepted", "accepted and changed", "changed, of those accepted")


def apply_stored(path: Path, runs: Sequence[Run], *, json_output: bool, markdown: bool) -> None:
    """Print what a stored check accepts of each run, and what it lets through.

    Args:
        path: of the check.
        runs: of the pair it was calibrated on.
        json_output: print one JSON object.
        markdown: print a Markdown table.

    Raises:
        QuantDriftError: the check cannot be read, or a run is of another pair or of other scores.
    """
    check = StabilityCheck.load(path)
    applied = [(run, _applied(check, run)) for run in runs]
    if json_output:
        listed = [
            {"path": str(run.path), "spec": run.record.get("spec"), "data": _data(run), **found.to_json()}
            for run, found in applied
        ]
        named = {"path": str(path), "alpha": check.alpha, "statistic": check.statistic, "data": check.origin.data}
        print_json({"check": named, "runs": listed})
        return
    title = _title(path, check, runs)
    rows = [
        (
            _data(run),
            f"{found.n_inputs:,}",
            _cell(found.coverage, 1),
            _cell(found.joint_violation, 2),
            _cell(found.violation, 2),
        )
        for run, found in applied
    ]
    lines = [line for run, found in applied for line in _lines(check, run, found)]
    if markdown:
        say(f"**{prose(title)}**\n")
        print_markdown(HEAD, rows, lines)
        return
    table = Table(title=clean(title), title_justify="left")
    for name in HEAD:
        table.add_column(name, justify="left" if name == "run" else "right", overflow="fold")
    for row in rows:
        table.add_row(clean(row[0]), *row[1:])
    out = console(wide=True)
    out.print(table)
    for line in lines:
        out.print(line)


def _applied(check: StabilityCheck, run: Run) -> Applied:
    evidence = run.evidence()
    try:
        return apply_check(check, evidence, run.record)
    except (StabilityError, RunError) as error:  # one of many: say which
        raise type(error)(f"{run.path}: {error}") from error


def _data(run: Run) -> str:
    return str(run.record.get("data", {}).get("name"))


def _title(path: Path, check: StabilityCheck, runs: Sequence[Run]) -> str:
    title = f"{path.name}: {check.statistic} at level {check.alpha:g} for {check.origin.spec}"
    names = list(dict.fromkeys(_data(run) for run in runs))
    shown = ", ".join(names) if len(names) <= SHOWN else f"{len(names)} data sets"
    return f"{title}, calibrated on {check.origin.data or 'unnamed data'}, applied to {shown}"


def _cell(estimate: Estimate, digits: int) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "-"
    value, low, high = (f"{100 * part:.{digits}f}" for part in (estimate.value, estimate.low, estimate.high))
    return f"{value} % ({low} to {high})"


def _lines(check: StabilityCheck, run: Run, found: Applied) -> list[str]:
    name = _data(run)
    lines = [f"Note, {name}: {note}." for note in found.notes]
    if found.violation.value is None:
        lines.append(f"{name}: no answer is accepted ({found.violation.reason}).")
    else:
        assert found.coverage.value is not None  # something is accepted
        lines.append(
            f"{name}: {100 * found.coverage.value:.1f} % of the answers are accepted (of the "
            f"calibration inputs {100 * check.expected_coverage:.1f} %); of those, "
            f"{100 * found.violation.value:.2f} % changed, of all {100 * found.flip_rate:.1f} %."
        )
    if found.resemblance.alike:
        lines.append(f"{name}: {found.resemblance.sentence}.")
    return lines
