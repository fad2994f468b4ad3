"""`quantdrift gate`: judge a run by rules, against the committed baseline; the exit code is the verdict."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from quantdrift.base.display import error_line, note, prose
from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.base.extras import extras_named
from quantdrift.base.text import as_typed
from quantdrift.cli import USAGE, Interrupted
from quantdrift.cli.measuring import measured
from quantdrift.cli.options import (
    COMMON,
    COMPLETE,
    CONFIG,
    PART,
    QRELS,
    MeasuringAny,
    argument,
    flag,
    given,
    option,
    prints,
    share_option,
)
from quantdrift.data.retrieval import read_qrels
from quantdrift.finished.diff import diff_runs
from quantdrift.finished.formats import read_finished
from quantdrift.finished.texts import read_texts
from quantdrift.gate import output
from quantdrift.gate import rules as gate_rules
from quantdrift.gate.baseline import NAME, Baseline, Snapshot
from quantdrift.gate.judge import gate, refuse_sequential, settled, snapshot_for
from quantdrift.gate.result import ALPHA, GateResult
from quantdrift.gate.target import Target, target_of_diff, target_of_run
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.folder import find_runs, read_run
from quantdrift.show.changes import changes_grid
from quantdrift.show.output import Output
from quantdrift.spec.grammar import parse_pair

# the options that some kinds of targets do not take
_DATA = ("data", "columns", "task", "keep_own_ids")
_OF_TWO = ("qrels", "common", "complete", "part")
_LISTED = 3
"""Changed inputs on a terminal, with their texts."""
_MEASURING = [field.name for field in fields(MeasuringAny) if field.name not in {*_DATA, "quiet"}]


@dataclass(frozen=True, kw_only=True)
class GateOptions(MeasuringAny):
    """The options of `quantdrift gate`; None and empty where pyproject.toml decides."""

    context: typer.Context
    target: str | None = argument(
        "TARGET: What to judge: a spec, such as minilm@W4-rtn, which is measured on --data or --task; a run folder; "
        "or, with CANDIDATE, the finished run of the reference, in any format that quantdrift diff reads. By default "
        "the target in pyproject.toml.",
        None,
    )
    candidate: Path | None = argument("CANDIDATE: The finished run of the candidate.", None)
    baseline: Path | None = option(
        "FILE: The committed file with the outcome of every input; by default drift-baseline.json. --update writes it."
    )
    rule: list[str] | None = option(
        "-r --rule RULE: A rule, such as 'flip@1 no worse by 0.03' (than the baseline), 'flip@1 <= 0.25' or "
        "'flip@1 [german] <= 0.3'; may be repeated, and replaces the rules of pyproject.toml."
    )
    slices: list[str] | None = option(
        "--slice NAME=PATTERN: A name for some inputs, which rules can use, by patterns on ids: german=de-*; may be "
        "repeated."
    )
    alpha: float | None = share_option(
        "P: Chance of a false alarm over all rules together; 0.05 by default.", min=1e-9, max=0.5
    )
    update: bool = flag("--update: Write the baseline from this run; commit it.")
    accept_underpowered: bool = flag("--accept-underpowered: Count it as success if there are too few inputs to tell.")
    sequential: bool = flag("--sequential: Answer inputs in random order, until every rule surely passed or failed.")
    report: list[Path] | None = option(
        "FILE: Also write the result into a file: .md (Markdown), .xml (JUnit) or .json; may be repeated."
    )
    worst: int = option(
        "N: How many of the changed inputs to list: 10 in reports; on a terminal 3, and none where all passed.",
        default=10,
        min=0,
    )
    config: Path | None = option(CONFIG)
    qrels: Path | None = option(QRELS)
    part: list[str] | None = option(PART)
    common: bool = flag(COMMON)
    complete: bool = flag(COMPLETE)


@prints("json", "markdown")
def command(options: GateOptions) -> Output | None:
    """Judge a quantized model in CI: by limits, and input by input against a baseline.

    Once, to write drift-baseline.json, which you commit: quantdrift gate minilm@W4-rtn --data FOLDER --update

    In CI run the same line without --update.

    The exit code is 0 (pass), 1 (fail), 2 (error), 3 (incomparable: the data, model or settings are not those of the
    baseline) or 4 (underpowered: too few inputs to tell).

    The default rules are that flip@1 and ndcg@10 are no worse than the baseline by 0.03, and gold_lost@10 by 0.05; on
    classification data, flip@1 and accuracy by 0.03. A comparison passes where the run is shown to be no worse by the
    margin. It fails where the run is shown to be worse, by an exact or a randomization test on the inputs that differ,
    with Holm's adjustment over the rules. Rules, baseline and target can be set in pyproject.toml, under
    [tool.quantdrift.gate].

    With --sequential inputs are answered in a random order, and no more of them than it takes until every limit on a
    rate is surely kept or broken: of classes, rerankers, models on servers, and searches with +query.

    A finished run is judged without a model and without torch. In GitHub Actions the result is also shown on the
    summary page.

    More: docs/reference/gate.md
    """
    try:
        return _judged(options)
    except Interrupted:
        raise  # Ctrl-C is no verdict
    except Exception as error:
        summary = f"{output.TITLE}: error\n\n{prose(error_line(error))}\n"
        output.tell_ci(os.environ, verdict="error", code=USAGE, summary=summary)
        raise


def _judged(options: GateOptions) -> Output | None:
    for place in options.report or ():
        output.check_report(place)
    config, beside = gate_rules.configured(options.config)
    rules = [gate_rules.parse_rule(text) for text in options.rule or config.rules]
    slices = gate_rules.slices_of({**config.slices, **dict(map(gate_rules.parse_slice, options.slices or ()))}, rules)
    alpha = options.alpha or config.alpha or ALPHA
    until: dict[str, Any] = {}
    if options.sequential:
        refuse_sequential(rules)
        if options.update:
            raise QuantDriftError("--update writes a baseline of all inputs; leave out --sequential, or --update")
        until["part"] = ("sequential", alpha, slices, *map(str, rules))
        until["enough"] = partial(settled, rules=rules, slices=slices, alpha=alpha)
    path = options.baseline or (beside / NAME if config.baseline is None else Path(config.baseline))
    baseline = _earlier(path) if options.update else _baseline(path, rules, options)
    target = _target(options, config, until)
    rules = rules or gate_rules.default_rules(target)
    # without an earlier baseline only limits can be judged
    judged = [rule for rule in rules if baseline is not None or not rule.compares]
    result = gate(
        target,
        judged,
        baseline,
        slices=slices,
        alpha=alpha,
        n_worst=options.worst,
        accept_underpowered=options.accept_underpowered or config.accept_underpowered,
    )
    for place in (options.report or ()) if judged else ():
        output.write_report(result, place)
    if not options.update:
        summary = output.markdown_text(result)
        output.tell_ci(os.environ, verdict=result.verdict, code=result.exit_code, summary=summary)
        return _shown(result, options)
    snapshot = snapshot_for(target, rules, baseline)
    Baseline.of(snapshot).write(path)
    note(f"{'wrote' if baseline is None else 'updated'} the baseline {path} ({snapshot.n_inputs:,} inputs); commit it")
    if options.candidate is None and not Path(options.target or config.target or "").exists():
        note("quantdrift gate --plan with the same words says how small a change so many inputs can tell")
    for line in target.notes:
        note(line)
    if not judged:
        return None
    shown = _shown(result, options)
    lines = [line for line in shown.lines if line not in output.TO_DO.values()]
    against = "its limits" if baseline is None else "the earlier baseline"
    return replace(
        shown, code=0, lines=[*lines, f"This verdict is against {against}; the new baseline is written in any case."]
    )


def _earlier(path: Path) -> Snapshot | None:
    """The baseline that is about to be replaced; None if there is none, or it cannot be read."""
    Baseline.check_place(path)
    try:
        return Baseline.read(path).snapshot() if path.exists() else None
    except RunError as error:
        note(f"the earlier baseline is not compared with: {error}")
        return None


def _baseline(path: Path, rules: Sequence[gate_rules.Rule], options: GateOptions) -> Snapshot | None:
    if path.exists():
        return Baseline.read(path).snapshot()
    if options.baseline is None and rules and not any(rule.compares for rule in rules):
        return None
    raise RunError(
        f"expected a baseline to compare with; {path} does not exist. Write it with the same command and --update, and "
        "commit it; or give limits only, such as --rule 'flip@1 <= 0.25', without --baseline"
    )


# --- the target -----------------------------------------------------------------------------------


def _target(options: GateOptions, config: gate_rules.GateConfig, until: Mapping[str, Any]) -> Target:
    """The target; a spec is measured first."""
    name = options.target or config.target
    if name is None:
        raise QuantDriftError(
            "expected what to judge: a spec such as minilm@W4-rtn with --data FOLDER, a run folder, or two finished "
            "runs; or target = ... in pyproject.toml, under [tool.quantdrift.gate]"
        )
    if options.candidate is not None:
        _refuse(options, "two finished runs (labels go to --qrels)", [*_DATA, "sequential", *_MEASURING])
        difference = diff_runs(
            read_finished(Path(name)),
            read_finished(options.candidate),
            qrels=None if options.qrels is None else read_qrels(options.qrels),
            common=options.common,
            complete=options.complete,
            only=options.part or (),
        )
        return target_of_diff(difference)
    if (path := Path(name)).exists():
        _refuse(options, "a finished run", [*_DATA, *_OF_TWO, "sequential", *_MEASURING])
        runs = find_runs([path])
        if len(runs) > 1:
            raise RunError(f"expected one run; {path} holds {len(runs):,}, such as {runs[0].path}")
        if options.update and (limit := runs[0].record["data"].get("limit")):
            raise RunError(
                f"expected a run of all inputs as the baseline; {path} is a quick try on the first {limit.get('n')} of "
                f"{limit.get('of')}. Measure again without --limit"
            )
        return target_of_run(runs[0])
    if "@" not in name and " vs " not in name:
        raise QuantDriftError(f"{name!r} is neither a run folder that exists nor a spec, such as minilm@W4-rtn")
    _refuse(options, "a spec", _OF_TWO)
    named = config.data_for(options.data, options.columns, options.task)
    with extras_named(needed_for="quantdrift gate"):
        run = measured(parse_pair(name), replace(options, **named), **until)
    return target_of_run(run, sequential=options.sequential)


def _refuse(options: GateOptions, what: str, unused: Sequence[str]) -> None:
    if asked := [name.replace("_", "-") for name in unused if given(options.context, name)]:
        raise QuantDriftError(f"--{asked[0]} does not apply to {what}; leave it out")


def _shown(result: GateResult, options: GateOptions) -> Output:
    """The table of rules, the worst inputs, the sentences, and the verdict last."""
    asked = given(options.context, "worst")
    worst = result.worst[: options.worst if asked else _LISTED * (result.verdict != "pass")]
    # too wide for a terminal; where inputs were drawn, bounds tell the same
    left_out = {"p no worse"} if result.sequential is None else {"p no worse", "p worse (Holm)"}
    columns = [column for column in output.RULES if column.title not in left_out]
    inputs, after = [output.worst_table(replace(result, worst=worst))] if worst else [], [output.headline(result)]
    if worst and result.path is not None:
        run = read_run(result.path)
        evidence = run.evidence(drawn=True)
        inputs = [changes_grid(run.record, evidence, changed_inputs(evidence), worst, read_texts(run))]
        after.insert(0, f"quantdrift show {as_typed(result.path)}   # all {result.n_changed:,}, with texts")
    return Output(
        data=result.to_json(),
        title=output.subject(result),
        grids=[output.rules_table(result, columns, stacked=True), *inputs],
        lines=output.sentences(result, named=result.path is None),
        next=after,
        markdown=output.markdown_text(result),
        code=result.exit_code,
    )
