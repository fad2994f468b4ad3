"""`quantdrift gate`: a run against rules and the committed baseline, ending in an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text

from quantdrift.cli.interrupted import Interrupted
from quantdrift.cli.tables import console, one_format
from quantdrift.console import Console
from quantdrift.display import error_line, flush, let_go, note, say
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.finished.diff import diff_runs
from quantdrift.finished.readers import read_finished, read_qrels
from quantdrift.gate.baseline import NAME, Snapshot, check_baseline_place, read_baseline, write_baseline
from quantdrift.gate.judge import ALPHA, GateResult, check_alpha, gate, snapshot_for
from quantdrift.gate.output import (
    NAMES,
    beyond_reach,
    check_report,
    exit_code,
    headline,
    markdown_text,
    means_line,
    report_json,
    rows,
    sentences,
    subject,
    tell_ci,
    tell_ci_of_error,
    worst_rows,
    worst_title,
    write_report,
)
from quantdrift.gate.rules import (
    GateConfig,
    Rule,
    RuleError,
    Slices,
    check_slice,
    default_rules,
    find_config,
    parse_rule,
    parse_slice,
    read_config,
)
from quantdrift.gate.target import Target, target_of_diff, target_of_run
from quantdrift.runs import Run, find_runs, read_run

if TYPE_CHECKING:
    from quantdrift.cli.commands_gate import GateOptions

_DATA = ("data", "task")
_OF_TWO = ("qrels", "common", "complete", "part")
_MEASURING = ("out", "split", "shortlist", "top", "k", "device", "revision", "cache")
"""Options that only one kind of target takes."""

Measure = Callable[[str, Path | None, str | None], Run]
"""Runs a spec on a folder or on a task of that name."""


def gate_command(options: GateOptions, measure: Measure) -> None:
    """Judge a run, print and write what came out, and end with the exit code of the verdict.

    Args:
        options: what is asked for.
        measure: runs a spec.

    Raises:
        QuantDriftError: anything wrong with options, files, data or model; exit code 2.
        typer.Exit: with the exit code of the verdict.
    """
    try:
        plan = _plan(options)
        target = _target(options, plan, measure)
        rules = plan.rules or tuple(default_rules(target))
        if options.update:
            _update(plan, target, rules)
            return
        result = plan.judged(target, rules)
    except Interrupted:
        raise  # Ctrl-C is no verdict, and says itself what is left
    except Exception as error:
        for line in tell_ci_of_error(error_line(error), os.environ):
            note(line)
        raise
    for line in tell_ci(result, os.environ, accept_underpowered=plan.accepts):
        note(line)
    plan.print(result)
    raise typer.Exit(exit_code(result, accept_underpowered=plan.accepts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is known before anything is measured."""

    options: GateOptions
    named: str
    config: GateConfig
    rules: tuple[Rule, ...]
    slices: Slices
    alpha: float
    path: Path
    baseline: Snapshot | None
    accepts: bool

    def judged(self, target: Target, rules: Sequence[Rule]) -> GateResult:
        """What a run comes to, written to the reports."""
        result = gate(target, rules, self.baseline, slices=self.slices, alpha=self.alpha, n_worst=self.options.worst)
        for place in self.options.report or ():
            write_report(result, place, accept_underpowered=self.accepts)
        return result

    def print(self, result: GateResult) -> None:
        """Print it. Whatever becomes of that, the verdict decides the exit code."""
        try:
            if self.options.json_output:
                say(report_json(result, accept_underpowered=self.accepts).removesuffix("\n"))
            elif self.options.markdown:
                say(markdown_text(result, accept_underpowered=self.accepts).removesuffix("\n"))
            else:
                _print_result(result, accept_underpowered=self.accepts)
            flush()
        except (OSError, SystemExit) as error:  # rich makes the latter of a reader that has gone
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                note(f"the result could not be printed: {error.strerror}")
            let_go(sys.stdout)


def _plan(options: GateOptions) -> _Plan:
    one_format(json_output=options.json_output, markdown=options.markdown)
    for path in options.report or ():
        check_report(path)
    place = options.config or find_config(Path.cwd())
    config = GateConfig() if place is None else read_config(place)
    named = options.target or config.target
    if named is None:
        raise QuantDriftError(
            "expected what to judge: a spec such as minilm@W4-rtn with --data FOLDER, a run "
            "folder, or two finished runs; or target = ... in pyproject.toml, under "
            "[tool.quantdrift.gate]"
        )
    rules = tuple(parse_rule(text) for text in options.rule or ()) or config.rules
    slices = {**config.slices, **dict(parse_slice(text) for text in options.slices or ())}
    for rule in rules:
        if rule.on is not None:
            check_slice(rule.on, slices)
    alpha = next((each for each in (options.alpha, config.alpha) if each is not None), ALPHA)
    check_alpha(alpha)
    # beside the file that names the data, so that a folder below will do
    beside = Path() if config.path is None else config.path.parent
    path = options.baseline or config.baseline or beside / NAME
    return _Plan(
        options=options,
        named=named,
        config=config,
        rules=rules,
        slices=slices,
        alpha=alpha,
        path=path,
        baseline=_earlier(path) if options.update else _baseline(path, rules, options),
        accepts=options.accept_underpowered or config.accept_underpowered,
    )


def _earlier(path: Path) -> Snapshot | None:
    """The baseline that is about to be replaced; none where it cannot be read."""
    check_baseline_place(path)
    if not path.exists():
        return None
    try:
        return read_baseline(path)
    except RunError as error:
        note(f"the earlier baseline is not compared with: {error}")
        return None


def _baseline(path: Path, rules: Sequence[Rule], options: GateOptions) -> Snapshot | None:
    """The baseline, where there is one."""
    if path.exists():
        return read_baseline(path)
    comparing = [rule for rule in rules if rule.compares]
    if comparing or not rules:
        asked = f"the rule '{comparing[0]}'" if comparing else "what is asked without rules"
        raise RuleError(
            f"{asked} needs a baseline, and {path} does not exist. Write it with the same command "
            "and --update, and commit it; or ask for limits only, such as --rule 'flip@1 <= 0.25'"
        )
    if options.baseline is not None:
        raise RunError(f"expected a baseline; {path} does not exist. Write it with --update")
    return None


def _update(plan: _Plan, target: Target, rules: Sequence[Rule]) -> None:
    """Write the baseline; before it is written the earlier one is compared with, as information."""
    known = rules if plan.baseline is not None else [rule for rule in rules if not rule.compares]
    if known:
        note("for information, what is about to be accepted:")
        plan.print(plan.judged(target, known))
    elif plan.options.report:
        note("no report was written: before there is a baseline there is nothing to judge")
    snapshot = snapshot_for(target, rules, plan.baseline)
    write_baseline(snapshot, plan.path)
    done = "wrote" if plan.baseline is None else "updated"
    note(f"{done} the baseline {plan.path} ({snapshot.n_inputs:,} inputs); commit it")
    note(f"it holds {means_line(snapshot)}")
    for line in [*target.notes, *beyond_reach(rules, snapshot, alpha=plan.alpha)]:
        note(line)


# --- what is judged ---------------------------------------------------------------------------


def _target(options: GateOptions, plan: _Plan, measure: Measure) -> Target:
    """The run, measured if it is a spec."""
    named, config = plan.named, plan.config
    if options.candidate is not None:
        _refuse(options, "two finished runs (labels go to --qrels)", [*_DATA, *_MEASURING])
        labels, _ = (None, ()) if options.qrels is None else read_qrels(options.qrels)
        return target_of_diff(
            diff_runs(
                read_finished(Path(named)),
                read_finished(options.candidate),
                qrels=labels,
                common=options.common,
                complete=options.complete,
                only=options.part or (),
            )
        )
    if Path(named).exists():
        run = _one_run(Path(named))
        _refuse(options, "a finished run", [*_DATA, *_OF_TWO, *_MEASURING])
        return target_of_run(run)
    if "@" not in named and " vs " not in named:
        raise QuantDriftError(
            f"{named!r} is neither a run folder that exists nor a spec; expected MODEL@SCHEME, "
            "such as minilm@W4-rtn, a folder that quantdrift run wrote, or two finished runs"
        )
    _refuse(options, "a spec", _OF_TWO)
    given = options.data is not None or options.task is not None
    data, task = (options.data, options.task) if given else (config.data, config.task)
    return target_of_run(measure(named, data, task))


def _refuse(options: GateOptions, what: str, unused: Sequence[str]) -> None:
    given = ["--no-cache" if name == "cache" else f"--{name}" for name in unused if options.given(name)]
    if given:
        raise QuantDriftError(f"{', '.join(given)} does not apply to {what}; leave it out")


def _one_run(path: Path) -> Run:
    if (path / "run.json").is_file() or path.is_file():
        return read_run(path)
    if (path / "config.json").is_file():
        raise RunError(f"{path} is a model and not a run folder; expected a spec, such as {path}@W4-rtn")
    runs = find_runs([path])
    if len(runs) > 1:
        listed = "".join(f"\n  {run.path}" for run in runs[:10])
        raise RunError(f"expected one run; {path} holds {len(runs):,}, choose one:{listed}")
    return runs[0]


# --- on the terminal --------------------------------------------------------------------------


NOW, BASELINE, NO_WORSE = "now (95 %)", "baseline", "p no worse"
"""Titles of columns."""

STYLES = {"pass": "green", "fail": "red", "error": "red", "incomparable": "yellow", "underpowered": "yellow"}


def _print_result(result: GateResult, *, accept_underpowered: bool) -> None:
    """Print the table of rules, the inputs to look at, the finding, and the verdict last."""
    out = console(wide=True)
    out.print(subject(result), style="bold", soft_wrap=True)
    out.print(_rules(*_fitting(*rows(result))))
    if result.worst:
        _print_worst(out, result)
    for line in sentences(result, accept_underpowered=accept_underpowered):
        out.print(line)
    line = headline(result, accept_underpowered=accept_underpowered)
    out.print(line, style=STYLES[result.verdict], soft_wrap=True)


def _rules(head: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    table = Table(pad_edge=False)
    for title in head:
        left = title in {"rule", "outcome"}
        table.add_column(_on_lines(title), justify="left" if left else "right", no_wrap=title != "rule")
    for row in cells:
        style = STYLES.get(row[-1], "")
        table.add_row(row[0], *map(_on_lines, row[1:-1]), Text(row[-1], style))
    return table


def _on_lines(text: str) -> str:
    """What stands in parentheses below the rest."""
    return text.replace(" (", "\n(")


def _fitting(head: Sequence[str], cells: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """As much as a terminal has room for; reports have it all.

    Beside a baseline, both values stand below each other and the interval is that of the
    difference.
    """
    if NOW not in head or BASELINE not in head:
        kept = [place for place, title in enumerate(head) if title != NO_WORSE]
        return [head[place] for place in kept], [[row[place] for place in kept] for row in cells]
    now, before = head.index(NOW), head.index(BASELINE)
    kept = [place for place, title in enumerate(head) if title not in {NO_WORSE, BASELINE}]

    def told(row: Sequence[str], place: int) -> str:
        if place != now or row[before] == "-":
            return row[place]
        return f"{row[before]}\n{row[now].partition(' (')[0]}"

    titles = ["baseline\nnow" if place == now else head[place] for place in kept]
    return titles, [[told(row, place) for place in kept] for row in cells]


def _print_worst(out: Console, result: GateResult) -> None:
    head, cells = worst_rows(result)
    table = Table(title=worst_title(result), title_justify="left", pad_edge=False)
    for title in head:
        table.add_column(title, justify="left" if title in NAMES else "right", overflow="fold")
    for row in cells:
        table.add_row(*row)
    out.print(table)
