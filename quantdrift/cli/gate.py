"""`quantdrift gate`: a run against rules and the committed baseline, ending in an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from quantdrift.cli.gate_table import print_result
from quantdrift.cli.tables import one_format
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.finished.diff import diff_runs
from quantdrift.finished.readers.formats import read_finished
from quantdrift.finished.readers.qrels import read_qrels
from quantdrift.gate.baseline import NAME, check_baseline_place, read_baseline, write_baseline
from quantdrift.gate.config import GateConfig, find_config, parse_slice, read_config
from quantdrift.gate.defaults import default_rules
from quantdrift.gate.judge import ALPHA, gate, snapshot_for
from quantdrift.gate.output.markdown import markdown_text
from quantdrift.gate.output.places import (
    check_report,
    exit_code,
    json_text,
    tell_ci,
    tell_ci_of_error,
    write_report,
)
from quantdrift.gate.result import GateResult
from quantdrift.gate.rule import Rule, RuleError, parse_rule
from quantdrift.gate.slices import Slices
from quantdrift.gate.snapshot import Snapshot
from quantdrift.gate.target import Target, target_of_diff, target_of_run
from quantdrift.runs import Run, find_runs, read_run

__all__ = ["GateOptions", "gate_command"]

Measure = Callable[[str, Path | None, str | None], Run]
"""Runs a spec on a folder or on a task of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What is asked for; None and empty where it is left to the configuration.

    Attributes:
        target: spec or run folder; of two finished runs the reference.
        candidate: the other one of two finished runs.
        data: folder of the data, for a spec.
        task: name of a task, for a spec.
        qrels: file of relevance labels, for two finished runs.
        common: whether inputs that only one of two finished runs has are left out.
        complete: whether their lists hold every item that was scored.
        parts: names of their parts; all if empty.
        baseline: the committed file.
        rules: what is asked.
        slices: NAME=PATTERN.
        alpha: level of the tests.
        update: whether the baseline is written.
        accept_underpowered: whether too few inputs end in success.
        reports: files to write.
        n_worst: how many changed inputs are listed.
        config: file with the settings; None to look for it.
        json_output: print one JSON object.
        markdown: print Markdown.
    """

    target: str | None
    candidate: Path | None
    data: Path | None
    task: str | None
    qrels: Path | None
    common: bool
    complete: bool
    parts: Sequence[str]
    baseline: Path | None
    rules: Sequence[str]
    slices: Sequence[str]
    alpha: float | None
    update: bool
    accept_underpowered: bool
    reports: Sequence[Path]
    n_worst: int
    config: Path | None
    json_output: bool
    markdown: bool


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
        target = _target(options, plan.config, measure)
        rules = plan.rules or tuple(default_rules(target))
        if options.update:
            _update(options, plan, target, rules)
            return
        result = _judged(options, plan, target, rules)
        for path in options.reports:
            write_report(result, path, accept_underpowered=plan.accepts)
    except QuantDriftError as error:
        for note in tell_ci_of_error(str(error), os.environ):
            _say(note)
        raise
    _print(options, result, accepts=plan.accepts)
    for note in tell_ci(result, os.environ, accept_underpowered=plan.accepts):
        _say(note)
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
    rules = tuple(parse_rule(text) for text in options.rules) or config.rules
    path = options.baseline or config.baseline or NAME
    return _Plan(
        config=config,
        rules=rules,
        slices={**config.slices, **dict(parse_slice(text) for text in options.slices)},
        alpha=next((each for each in (options.alpha, config.alpha) if each is not None), ALPHA),
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
        _print(options, _judged(options, plan, target, known), accepts=plan.accepts)
    snapshot = snapshot_for(target, rules)
    write_baseline(snapshot, plan.path)
    done = "wrote" if plan.baseline is None else "updated"
    _say(f"{done} the baseline {plan.path} ({snapshot.n_inputs:,} inputs); commit it")


def _print(options: GateOptions, result: GateResult, *, accepts: bool) -> None:
    if options.json_output:
        print(json_text(result, accept_underpowered=accepts), end="")
    elif options.markdown:
        print(markdown_text(result, accept_underpowered=accepts), end="")
    else:
        print_result(result, accept_underpowered=accepts)


def _baseline(path: Path, rules: Sequence[Rule], options: GateOptions) -> Snapshot | None:
    """The baseline, where there is one and it is asked for."""
    if options.update:
        check_baseline_place(path)
    if path.exists():
        return read_baseline(path)
    if options.update:
        return None
    comparing = [rule for rule in rules if rule.compares]
    if comparing or not rules:
        asked = f"the rule '{comparing[0]}'" if comparing else "comparing with a baseline"
        raise RuleError(
            f"{asked} needs one, and {path} does not exist. Write it with the same command and "
            "--update, and commit it; or ask for limits only, such as --rule 'flip@1 <= 0.25'"
        )
    if options.baseline is not None:
        raise RunError(f"expected a baseline; {path} does not exist. Write it with --update")
    return None


def _target(options: GateOptions, config: GateConfig, measure: Measure) -> Target:
    named = options.target or config.target
    if named is None:
        raise QuantDriftError(
            "expected what to judge: a spec such as minilm@W4-rtn with --data FOLDER, a run "
            "folder, or two finished runs; or target = ... in pyproject.toml, under "
            "[tool.quantdrift.gate]"
        )
    if options.candidate is not None:
        return _of_two(Path(named), options.candidate, options)
    if Path(named).exists():
        _refuse_unused(options, "a finished run", data=True)
        return target_of_run(_one_run(Path(named)))
    if "@" not in named and " vs " not in named:
        raise QuantDriftError(
            f"{named!r} is neither a run folder that exists nor a spec; expected MODEL@SCHEME, "
            "such as minilm@W4-rtn, a folder that quantdrift run wrote, or two finished runs"
        )
    _refuse_unused(options, "a spec", data=False)
    given = options.data is not None or options.task is not None
    data, task = (options.data, options.task) if given else (config.data, config.task)
    return target_of_run(measure(named, data, task))


def _of_two(a: Path, b: Path, options: GateOptions) -> Target:
    if options.data is not None or options.task is not None:
        raise QuantDriftError("two finished runs take no --data or --task; labels go to --qrels")
    labels, _ = (None, ()) if options.qrels is None else read_qrels(options.qrels)
    return target_of_diff(
        diff_runs(
            read_finished(a),
            read_finished(b),
            qrels=labels,
            common=options.common,
            complete=options.complete,
            only=options.parts,
        )
    )


def _refuse_unused(options: GateOptions, what: str, *, data: bool) -> None:
    unused = {
        "--data": data and options.data is not None,
        "--task": data and options.task is not None,
        "--qrels": options.qrels is not None,
        "--common": options.common,
        "--complete": options.complete,
        "--part": bool(options.parts),
    }
    if given := [name for name, used in unused.items() if used]:
        raise QuantDriftError(f"{', '.join(given)} does not apply to {what}; leave it out")


def _one_run(path: Path) -> Run:
    if (path / "run.json").is_file() or path.is_file():
        return read_run(path)
    runs = find_runs([path])
    if len(runs) > 1:
        listed = "".join(f"\n  {run.path}" for run in runs[:10])
        raise RunError(f"expected one run; {path} holds {len(runs):,}, choose one:{listed}")
    return runs[0]


def _say(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)
