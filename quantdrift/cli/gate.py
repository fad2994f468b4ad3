"""`quantdrift gate`: a run against rules and the committed baseline, ending in an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from quantdrift.cli.gate_table import print_result
from quantdrift.cli.gate_target import GateOptions, Measure, named_target, target_of
from quantdrift.cli.interrupted import Interrupted
from quantdrift.cli.tables import one_format
from quantdrift.display import error_line, flush, let_go, note, say
from quantdrift.errors import RunError
from quantdrift.gate.baseline import (
    NAME,
    Snapshot,
    check_baseline_place,
    read_baseline,
    write_baseline,
)
from quantdrift.gate.judge import ALPHA, GateResult, check_alpha, gate, snapshot_for
from quantdrift.gate.output import (
    beyond_reach,
    check_report,
    exit_code,
    markdown_text,
    means_line,
    report_json,
    tell_ci,
    tell_ci_of_error,
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
from quantdrift.gate.target import Target

__all__ = ["gate_command"]


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
        target = target_of(options, plan.config, measure)
        rules = plan.rules or tuple(default_rules(target))
        if options.update:
            _update(options, plan, target, rules)
            return
        result = _judged(options, plan, target, rules)
        for path in options.reports:
            write_report(result, path, accept_underpowered=plan.accepts)
    except Interrupted:
        raise  # Ctrl-C is no verdict, and says itself what is left
    except Exception as error:
        for line in tell_ci_of_error(error_line(error), os.environ):
            note(line)
        raise
    for line in tell_ci(result, os.environ, accept_underpowered=plan.accepts):
        note(line)
    _print(options, result, accepts=plan.accepts)
    raise typer.Exit(exit_code(result, accept_underpowered=plan.accepts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is known before anything is measured."""

    config: GateConfig
    rules: tuple[Rule, ...]
    slices: Slices
    alpha: float
    path: Path
    baseline: Snapshot | None
    accepts: bool


def _plan(options: GateOptions) -> _Plan:
    one_format(json_output=options.json_output, markdown=options.markdown)
    for path in options.reports:
        check_report(path)
    place = options.config or find_config(Path.cwd())
    config = GateConfig() if place is None else read_config(place)
    named_target(options, config)
    rules = tuple(parse_rule(text) for text in options.rules) or config.rules
    # beside the file that names the data, so that a folder below will do
    beside = Path() if config.path is None else config.path.parent
    path = options.baseline or config.baseline or beside / NAME
    slices = {**config.slices, **dict(parse_slice(text) for text in options.slices)}
    for rule in rules:
        if rule.on is not None:
            check_slice(rule.on, slices)
    alpha = next((each for each in (options.alpha, config.alpha) if each is not None), ALPHA)
    check_alpha(alpha)
    return _Plan(
        config=config,
        rules=rules,
        slices=slices,
        alpha=alpha,
        path=path,
        baseline=_baseline(path, rules, options),
        accepts=options.accept_underpowered or config.accept_underpowered,
    )


def _judged(options: GateOptions, plan: _Plan, target: Target, rules: Sequence[Rule]) -> GateResult:
    return gate(
        target,
        rules,
        plan.baseline,
        slices=plan.slices,
        alpha=plan.alpha,
        n_worst=options.n_worst,
    )


def _update(options: GateOptions, plan: _Plan, target: Target, rules: Sequence[Rule]) -> None:
    """Write the baseline; before it is written the earlier one is compared with, as information."""
    known = rules if plan.baseline is not None else [rule for rule in rules if not rule.compares]
    if known:
        note("for information, what is about to be accepted:")
        result = _judged(options, plan, target, known)
        _print(options, result, accepts=plan.accepts)
        for place in options.reports:
            write_report(result, place, accept_underpowered=plan.accepts)
    elif options.reports:
        note("no report was written: before there is a baseline there is nothing to judge")
    snapshot = snapshot_for(target, rules, plan.baseline)
    write_baseline(snapshot, plan.path)
    done = "wrote" if plan.baseline is None else "updated"
    note(f"{done} the baseline {plan.path} ({snapshot.n_inputs:,} inputs); commit it")
    note(f"it holds {means_line(snapshot)}")
    for line in target.notes:
        note(line)
    for line in beyond_reach(rules, snapshot, alpha=plan.alpha):
        note(line)


def _print(options: GateOptions, result: GateResult, *, accepts: bool) -> None:
    """Print it. Whatever becomes of that, the verdict decides the exit code."""
    try:
        _written(options, result, accepts=accepts)
        flush()
    except (OSError, SystemExit) as error:  # rich makes the latter of a reader that has gone
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            note(f"the result could not be printed: {error.strerror}")
        let_go(sys.stdout)


def _written(options: GateOptions, result: GateResult, *, accepts: bool) -> None:
    if options.json_output:
        say(report_json(result, accept_underpowered=accepts).removesuffix("\n"))
    elif options.markdown:
        say(markdown_text(result, accept_underpowered=accepts).removesuffix("\n"))
    else:
        print_result(result, accept_underpowered=accepts)


def _baseline(path: Path, rules: Sequence[Rule], options: GateOptions) -> Snapshot | None:
    """The baseline, where there is one and it is asked for."""
    if options.update:
        check_baseline_place(path)
    if options.update:
        return _earlier(path)
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


def _earlier(path: Path) -> Snapshot | None:
    """The baseline that is about to be replaced; none where it cannot be read."""
    if not path.exists():
        return None
    try:
        return read_baseline(path)
    except RunError as error:
        note(f"the earlier baseline is not compared with: {error}")
        return None
