"""`quantdrift gate`: a run against rules and the committed baseline, ending in an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from quantdrift.cli import Interrupted
from quantdrift.cli.options import (
    AS,
    COMMON,
    COMPLETE,
    PART,
    QRELS,
    MeasuringAnything,
    argument,
    flag,
    given,
    option,
    prints,
)
from quantdrift.cli.output import Grid, Shown, emit, form_of
from quantdrift.cli.run import measured
from quantdrift.display import error_line, flush, let_go, note, say
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.extras import extras_named
from quantdrift.finished.diff import diff_runs
from quantdrift.finished.readers import read_finished, read_qrels
from quantdrift.gate import output
from quantdrift.gate import rules as gate_rules
from quantdrift.gate.baseline import NAME, Baseline, Snapshot, read_baseline, write_baseline
from quantdrift.gate.judge import ALPHA, GateResult, check_alpha, gate, snapshot_for
from quantdrift.gate.target import Target, target_of_diff, target_of_run
from quantdrift.runs import find_runs, read_run
from quantdrift.spec import parse_pair

SETTINGS = {"no_args_is_help": False}  # pyproject.toml may say it all
_DATA = ("data", "task")
_OF_TWO = ("qrels", "common", "complete", "part")
_MEASURING = ["out", "split", "shortlist", "top", "k", "batch_size", "noise_floor", "seed"]
_MEASURING += ["device", "revision", "cache"]
"""Options that only one kind of target takes."""


@dataclass(frozen=True, kw_only=True)
class GateOptions(MeasuringAnything):
    """The options of `quantdrift gate`; None and empty where it is left to the configuration."""

    context: typer.Context
    target: str | None = argument(
        "TARGET: What to judge: a spec, such as minilm@W4-rtn, which is measured on --data or --task; a run "
        "folder; or, with CANDIDATE, the finished run of the reference (all that quantdrift diff reads). What "
        "pyproject.toml says if not given.",
        None,
    )
    candidate: Path | None = argument("CANDIDATE: The finished run of the candidate.", None)
    baseline: Path | None = option(
        "FILE: The committed file with the outcome of every input, drift-baseline.json if not given; --update "
        "writes it."
    )
    rule: list[str] | None = option(
        "-r --rule RULE: What is asked, such as 'flip@1 no worse by 0.03' (than the baseline), 'flip@1 <= 0.25', "
        "'flip@1 [german] <= 0.3'; may be repeated, and replaces the rules of pyproject.toml."
    )
    slices: list[str] | None = option(
        "--slice NAME=PATTERN: Inputs that a rule can look at, by patterns on their ids: german=de-*; may be repeated."
    )
    alpha: float | None = option("P: Accepted chance of a false alarm, over all rules together; 0.05 by default.")
    update: bool = flag("--update: Write the baseline from this run; commit it.")
    accept_underpowered: bool = flag("--accept-underpowered: End in success where there are too few inputs to tell.")
    report: list[Path] | None = option(
        "FILE: Write the result too: .md (Markdown), .xml (JUnit) or .json; may be repeated."
    )
    worst: int = option("N: How many of the changed inputs to list.", default=10, min=0)
    config: Path | None = option(
        "FILE: TOML file with [tool.quantdrift.gate]; the nearest pyproject.toml, here or above, if not given."
    )
    qrels: Path | None = option(QRELS)
    part: list[str] | None = option(PART)
    common: bool = flag(COMMON)
    complete: bool = flag(COMPLETE)
    json_output: bool = flag(AS["json"])
    markdown: bool = flag(AS["markdown"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is known before anything is measured."""

    options: GateOptions
    named: str
    config: gate_rules.GateConfig
    rules: tuple[gate_rules.Rule, ...]
    slices: gate_rules.Slices
    alpha: float
    path: Path
    baseline: Snapshot | None
    accepts: bool


@prints()
def command(options: GateOptions) -> None:
    """Judge a quantized model in CI: against limits, and input by input against a baseline.

    Once: quantdrift gate minilm@W4-rtn --data FOLDER --update

    Commit drift-baseline.json. In CI the same line without --update.

    The exit code is 0 (pass), 1 (fail), 2 (error), 3 (incomparable: other data, model or settings than the
    baseline's) or 4 (underpowered: too few inputs to tell).

    Without rules it asks that flip@1 and ndcg@10 be no worse than the baseline by 0.03, and gold_lost@10 by 0.05 (of
    classes flip@1 and accuracy by 0.03). A rule fails where the run is shown to be worse, by an exact or a
    randomization test on the inputs that differ, with Holm's adjustment over the rules; and it passes where the run
    is shown to be no worse by the margin. Rules, baseline and target can stand in pyproject.toml, under
    [tool.quantdrift.gate].

    A finished run is judged without a model and without torch. In GitHub Actions the summary page gets the result
    too.
    """
    try:
        plan = _plan(options)
        target = _target(plan)
        rules = plan.rules or tuple(gate_rules.default_rules(target))
        if options.update:
            _update(plan, target, rules)
            return
        result = _judged(plan, target, rules)
    except Interrupted:
        raise  # Ctrl-C is no verdict, and says itself what is left
    except Exception as error:
        for line in output.tell_ci(error_line(error), os.environ):
            note(line)
        raise
    for line in output.tell_ci(result, os.environ):
        note(line)
    _print(plan, result)
    raise typer.Exit(result.exit_code)


def _plan(options: GateOptions) -> _Plan:
    form_of([name for name, wanted in (("json", options.json_output), ("markdown", options.markdown)) if wanted])
    for path in options.report or ():
        output.check_report(path)
    place = options.config or gate_rules.find_config(Path.cwd())
    config = gate_rules.GateConfig() if place is None else gate_rules.read_config(place)
    named = options.target or config.target
    if named is None:
        raise QuantDriftError(
            "expected what to judge: a spec such as minilm@W4-rtn with --data FOLDER, a run folder, or two finished "
            "runs; or target = ... in pyproject.toml, under [tool.quantdrift.gate]"
        )
    rules = tuple(gate_rules.parse_rule(text) for text in options.rule or ()) or config.rules
    slices = {**config.slices, **dict(gate_rules.parse_slice(text) for text in options.slices or ())}
    gate_rules.check_slices(rules, slices)
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
    Baseline.check_place(path)
    try:
        return read_baseline(path) if path.exists() else None
    except RunError as error:
        note(f"the earlier baseline is not compared with: {error}")
        return None


def _baseline(path: Path, rules: Sequence[gate_rules.Rule], options: GateOptions) -> Snapshot | None:
    """The baseline, where there is one."""
    if path.exists():
        return read_baseline(path)
    comparing = [rule for rule in rules if rule.compares]
    if comparing or not rules:
        asked = f"the rule '{comparing[0]}'" if comparing else "what is asked without rules"
        raise gate_rules.RuleError(
            f"{asked} needs a baseline, and {path} does not exist. Write it with the same command and --update, and "
            "commit it; or ask for limits only, such as --rule 'flip@1 <= 0.25'"
        )
    if options.baseline is not None:
        raise RunError(f"expected a baseline; {path} does not exist. Write it with --update")
    return None


# --- what is judged -------------------------------------------------------------------------------


def _target(plan: _Plan) -> Target:
    """The run, measured if it is a spec."""
    named, options = plan.named, plan.options
    if options.candidate is not None:
        _refuse(options, "two finished runs (labels go to --qrels)", [*_DATA, *_MEASURING])
        labels, _ = (None, ()) if options.qrels is None else read_qrels(options.qrels)
        found = diff_runs(
            read_finished(Path(named)),
            read_finished(options.candidate),
            qrels=labels,
            common=options.common,
            complete=options.complete,
            only=options.part or (),
        )
        return target_of_diff(found)
    if (path := Path(named)).exists():
        _refuse(options, "a finished run", [*_DATA, *_OF_TWO, *_MEASURING])
        if not (path / "run.json").is_file() and (path / "config.json").is_file():
            raise RunError(f"{path} is a model and not a run folder; expected a spec, such as {path}@W4-rtn")
        runs = [read_run(path)] if path.is_file() else find_runs([path])
        if len(runs) > 1:
            listed = "".join(f"\n  {run.path}" for run in runs[:10])
            raise RunError(f"expected one run; {path} holds {len(runs):,}, choose one:{listed}")
        return target_of_run(runs[0])
    if "@" not in named and " vs " not in named:
        raise QuantDriftError(
            f"{named!r} is neither a run folder that exists nor a spec; expected MODEL@SCHEME, such as minilm@W4-rtn, "
            "a folder that quantdrift run wrote, or two finished runs"
        )
    _refuse(options, "a spec", _OF_TWO)
    chosen = options if options.data is not None or options.task is not None else plan.config
    with extras_named(needed_for="quantdrift gate"):
        return target_of_run(measured(parse_pair(named), options, data=chosen.data, task=chosen.task))


def _refuse(options: GateOptions, what: str, unused: Sequence[str]) -> None:
    asked = [name for name in unused if given(options.context, name)]
    if asked:
        words = [f"--{'no-' if name in {'cache', 'noise_floor'} else ''}{name}".replace("_", "-") for name in asked]
        raise QuantDriftError(f"{', '.join(words)} does not apply to {what}; leave it out")


def _judged(plan: _Plan, target: Target, rules: Sequence[gate_rules.Rule]) -> GateResult:
    """What a run comes to, written to the reports."""
    result = gate(
        target,
        rules,
        plan.baseline,
        slices=plan.slices,
        alpha=plan.alpha,
        n_worst=plan.options.worst,
        accept_underpowered=plan.accepts,
    )
    for place in plan.options.report or ():
        output.write_report(result, place)
    return result


def _update(plan: _Plan, target: Target, rules: Sequence[gate_rules.Rule]) -> None:
    """Write the baseline; before it is written the earlier one is compared with, as information."""
    known = rules if plan.baseline is not None else [rule for rule in rules if not rule.compares]
    if known:
        note("for information, what is about to be accepted:")
        _print(plan, _judged(plan, target, known))
    elif plan.options.report:
        note("no report was written: before there is a baseline there is nothing to judge")
    snapshot = snapshot_for(target, rules, plan.baseline)
    write_baseline(snapshot, plan.path)
    done = "wrote" if plan.baseline is None else "updated"
    note(f"{done} the baseline {plan.path} ({snapshot.n_inputs:,} inputs); commit it")
    note(f"it holds {output.means_line(snapshot)}")
    for line in [*target.notes, *output.beyond_reach(rules, snapshot, alpha=plan.alpha)]:
        note(line)


def _print(plan: _Plan, result: GateResult) -> None:
    """Print the result. Whatever becomes of that, the verdict decides the exit code."""
    try:
        if plan.options.json_output:
            say(output.report_json(result).removesuffix("\n"))
        elif plan.options.markdown:
            say(output.markdown_text(result).removesuffix("\n"))
        else:
            emit(_shown(result))
        flush()
    except (OSError, SystemExit) as error:  # rich makes the latter of a reader that has gone
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            note(f"the result could not be printed: {error.strerror}")
        let_go(sys.stdout)


def _shown(result: GateResult) -> Shown:
    """The table of rules, the inputs to look at, the finding, and the verdict last."""
    head, cells = output.rows(result)
    kept = [place for place, title in enumerate(head) if title != "p no worse"]  # a terminal has no room for it
    grids = [
        Grid(
            head=[head[place] for place in kept],
            rows=[[row[place] for place in kept] for row in cells],
            words={"outcome"},
            stacked=True,
        )
    ]
    if result.worst:
        head, cells = output.worst_rows(result)
        grids.append(Grid(title=output.worst_title(result), head=head, rows=cells, words=output.NAMES))
    verdict = output.headline(result)
    lines = output.sentences(result)
    return Shown(title=output.subject(result), grids=grids, lines=lines, next=[verdict])
