"""The result of a gate for people and programs: sentences, tables, Markdown, JUnit, JSON, and the files of a CI."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from quantdrift.base.display import clean, json_text, markdown_table, note, prose, shorten, shown
from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import check_writable, write_text
from quantdrift.base.text import counted, some
from quantdrift.gate.baseline import Snapshot
from quantdrift.gate.judge import least_inputs
from quantdrift.gate.result import GateResult, Judgement, Verdict, Worst, slices_of_failed
from quantdrift.gate.rules import Rule
from quantdrift.metrics.numbers import cell, show, show_p, show_step
from quantdrift.show.tables import Column, Grid, table
from quantdrift.statistics.estimates import Estimate

_LISTED = 3
_RULE = 100
_SENTENCE = 500
_EMPTY = "-"

TO_DO: dict[str, str] = {
    "fail": "Repair what made the inputs worse; or, if the change is meant, accept it with --update and commit the new "
    "baseline.",
    "limit": "A limit does not move with the baseline: repair the model, or change the rule.",
    "underpowered": "Measure more inputs, allow a larger margin, or take this outcome for success with "
    "--accept-underpowered.",
    "incomparable": "If that is meant, write a new baseline with --update and commit it; otherwise measure again as "
    "the baseline was measured.",
    "error": "Measure what the rule needs, or leave the rule out.",
}

# --- in words ---------------------------------------------------------------------------------


def rule_name(judgement: Judgement) -> str:
    """The rule as it is shown; the name of a slice can be of any length."""
    return shorten(clean(str(judgement.rule)), _RULE)


def subject(result: GateResult) -> str:
    """Name the candidate and its data."""
    n, data = counted(result.n_inputs, "input"), shown(result.data)
    # of two finished runs the data may have no other name than its size
    whole = f"{shown(result.spec)} on {data}" + ("" if data == n else f", {n}")
    if result.baseline is None:
        return whole
    same = result.baseline.spec == result.spec
    return f"{whole}, against a baseline of {'the same' if same else shown(result.baseline.spec)}"


def finding(result: GateResult) -> str:
    """Why the verdict is what it is, on one line."""
    if result.verdict == "incomparable" and result.differs:
        return f"the run and the baseline differ in {shorten(clean(result.differs[0]), _SENTENCE)}"
    decisive = [judgement for judgement in result.rules if judgement.outcome == result.verdict]
    why = f" ({clean(decisive[0].reason)})" if len(decisive) == 1 else ""
    return f"{len(decisive):,} of {len(result.rules):,} rules, {some(map(rule_name, decisive), _LISTED)}{why}"


def headline(result: GateResult) -> str:
    """The verdict and why, on one line."""
    return f"{result.verdict}{', which is accepted' if result.accepted else ''}: {finding(result)}"


def sentences(result: GateResult) -> list[str]:
    """Say what changed, what each rule that does not pass means, what to do, and what to know."""
    n, changed, moved = counted(result.n_inputs, "input"), result.n_changed, result.n_answers_changed
    new = f"; {result.n_new:,} of them had not in the baseline" if changed and result.n_new is not None else ""
    lines = [f"{changed:,} of {n} {'has' if changed == 1 else 'have'} another top-1 than the reference{new}."]
    if moved is not None:
        lines.append(f"On {counted(moved, 'input')} the candidate answers otherwise than in the baseline.")
    for judgement in result.rules:
        lines += _of_rule(judgement, result.alpha)
    lines += [f"Differs: {difference}." for difference in result.differs]
    kinds = [
        "limit" if judgement.outcome == "fail" and not judgement.rule.compares else judgement.outcome
        for judgement in result.rules
    ]
    lines += [TO_DO[kind] for kind in dict.fromkeys(kinds) if kind in TO_DO and not result.accepted]
    lines += [f"Note: {note}." for note in result.notes]
    return [shorten(clean(line), _SENTENCE) for line in lines]


def _of_rule(judgement: Judgement, alpha: float) -> list[str]:
    name, outcome, how_much, lines = rule_name(judgement), judgement.outcome, "", []
    if outcome == "fail" and judgement.worse is not None:
        how_much = f" ({counted(judgement.worse, 'input')} worse than in the baseline, {judgement.better:,} better)"
    elif outcome == "fail" and judgement.now is not None:
        how_much = f" (it is {show(judgement.rule.metric, judgement.now)})"
    harmed = judgement.p_worse_holm is not None and judgement.p_worse_holm < alpha
    if outcome != "pass" or harmed:
        lines.append(f"{name}: {outcome}, {judgement.reason}{how_much}.")
    if outcome == "fail" and judgement.inputs:
        more = (judgement.worse or 0) - len(judgement.inputs)
        names = ", ".join(map(shown, judgement.inputs))
        lines.append(f"{name}, worse on: {names}" + (f" and {more:,} more." if more > 0 else "."))
    if judgement.set_aside:
        aside = counted(judgement.set_aside, "input")
        lines.append(f"{name}: {aside} left out of the tests: noise changes the first answer there.")
    return lines


# --- as tables: one row per rule, and one per input to look at ---------------------------------


def _cell(show: Callable[..., str], name: str) -> Callable[[Judgement], str]:
    """A function that shows an estimate of a judgement in the unit of its metric."""

    def text(judgement: Judgement) -> str:
        value = getattr(judgement, name)
        return _EMPTY if value is None else show(judgement.rule.metric, value)

    return text


def _rests_on(judgement: Judgement) -> str:
    few = judgement.needed is not None and judgement.outcome == "underpowered"
    return f"{judgement.n:,}{f' ({judgement.needed:,})' if few else ''}" if judgement.n else _EMPTY


def _labels(worst: Worst) -> str:
    labels = ["right" if right else "wrong" for right in (worst.was_right, worst.is_right) if right is not None]
    return " to ".join(labels) if len(labels) > 1 else _EMPTY


RULES = (
    Column("rule", rule_name, kind="words"),
    Column("now (95 %)", _cell(cell, "now")),
    Column("baseline", lambda row: show(row.rule.metric, Estimate(value=row.before))),
    Column("difference (95 %)", _cell(show_step, "difference")),
    Column("worse / better", lambda row: _EMPTY if row.worse is None else f"{row.worse:,} / {row.better:,}"),
    Column("n (needed)", _rests_on),
    Column("p worse (Holm)", "p_worse_holm", show_p),
    Column("p no worse", "p_no_worse", show_p),
    Column("outcome", "outcome", kind="words"),
)
_INPUTS = (
    Column("part", "part", lambda part: shown(part or None), kind="words"),
    Column("input", "input_id", shown, kind="words"),
    Column("reference's answer", "before", shown, kind="words"),
    Column("now at rank", "rank_after", lambda rank: _EMPTY if rank is None else f"{rank:,}"),
    Column("candidate's answer", "after", shown, kind="words"),
    Column("labels", _labels),
    Column("gap", "gap", lambda gap: _EMPTY if gap is None else f"{gap:.4f}"),
    Column("new", "new", {True: "new", False: "as before", None: _EMPTY}.__getitem__),
)


def rules_table(result: GateResult, columns: Sequence[Column] = RULES, **more: Any) -> Grid:
    """One row per rule; a column that would be empty for all of them is left out."""
    return _filled(columns, result.rules, **more)


def worst_table(result: GateResult) -> Grid:
    """One row per input to look at, what replaced what; columns that are unknown for all are left out."""
    inside = "changed inputs of the slices that failed"
    of = inside if slices_of_failed(result.rules) else f"of {result.n_changed:,} changed inputs"
    title = f"{len(result.worst):,} {of}, the worst first"
    return _filled(_INPUTS, result.worst, title=title)


def _filled(columns: Sequence[Column], rows: Sequence[Any], **more: Any) -> Grid:
    def kept(column: Column) -> bool:
        name = column.kind == "words" and column.title != "part"  # and a name may look as if it were empty
        return name or any(column.show(column.of(row)) != _EMPTY for row in rows)

    return table(list(filter(kept, columns)) if rows else [], rows, **more)


# --- Markdown, for the summary page of a CI or a comment on a pull request --------------------

TITLE = "## quantdrift gate"
_OPEN = 5
"""Up to so many inputs are listed in the open."""
_MOST = 100
"""Rules, sentences and inputs: GitHub refuses a summary of a step above 1 MiB, whole."""


def markdown_text(result: GateResult) -> str:
    """The verdict, the rules, what it means, and the inputs to look at."""
    blocks = [
        f"{TITLE}: {result.verdict}{' (accepted)' if result.accepted else ''}",
        f"{prose(subject(result))}.",
        prose(headline(result)),
        _markdown(rules_table(result)),
        "\n".join(f"- {prose(line)}" for line in sentences(result)[:_MOST]),
    ]
    if result.worst:
        inputs, folded = worst_table(result), len(result.worst) > _OPEN
        title = f"<details>\n<summary>{inputs.title}</summary>" if folded else f"{inputs.title}:"
        blocks += [title, _markdown(inputs), *(["</details>"] if folded else [])]
    return "\n\n".join(blocks) + "\n"


def _markdown(grid: Grid) -> str:
    return markdown_table(grid.head, grid.rows[:_MOST], names={*grid.words} - {"outcome"})


# --- JUnit XML, which every CI reads: one test case per rule ----------------------------------

SUITE = "quantdrift gate"
_TAGS: Mapping[Verdict, str] = {"fail": "failure", "underpowered": "failure", "incomparable": "error", "error": "error"}


def junit_text(result: GateResult) -> str:
    """JUnit XML of a judged run.

    A rule that fails is a failure; one that is undefined, or cannot be compared, an error; and one with too few
    inputs a failure of the type "underpowered", or skipped where that is accepted.
    """
    rules = rules_table(result)
    tags = [
        "skipped" if outcome == "underpowered" and result.accept_underpowered else _TAGS.get(outcome)
        for outcome in (judgement.outcome for judgement in result.rules)
    ]
    counts = {"tests": str(len(tags)), "failures": str(tags.count("failure")), "errors": str(tags.count("error"))}
    root = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **counts, "skipped": str(tags.count("skipped"))})
    on = f"{shown(result.spec)} on {shown(result.data)}"
    for judgement, tag, row in zip(result.rules, tags, rules.rows, strict=True):
        case = {"classname": "quantdrift.gate", "name": f"{on}: {rule_name(judgement)}", "time": "0"}
        element = ElementTree.SubElement(suite, "testcase", case)
        numbers = [f"{title}: {text}" for title, text in zip(rules.head, row, strict=True) if text != _EMPTY]
        lines = [shorten(clean(line), _SENTENCE) for line in _of_rule(judgement, result.alpha)]
        reason = {"type": judgement.outcome, "message": shown(judgement.reason, _SENTENCE)} if tag else {}
        ElementTree.SubElement(element, tag or "system-out", reason).text = "\n".join([*numbers, *lines])
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


# --- files that are asked for, and the places that a CI offers --------------------------------


def report_json(result: GateResult) -> str:
    """A judged run as a JSON object, in ASCII; `exit_code` is what the command ends with."""
    return f"{json_text(result.to_json())}\n"


_WRITERS: Mapping[str, Callable[[GateResult], str]] = {".md": markdown_text, ".xml": junit_text, ".json": report_json}


def check_report(path: Path) -> None:
    """Refuse a place that cannot take a report, before hours go into one."""
    if path.suffix.lower() not in _WRITERS:
        raise QuantDriftError(
            f"the name of a report tells its format: expected .md (Markdown), .xml (JUnit) or .json; got {str(path)!r}"
        )
    check_writable(path, what="the report")


def write_report(result: GateResult, path: Path) -> None:
    """Write a report whole, replacing what was there; the suffix tells its format."""
    write_text(path, _WRITERS[path.suffix.lower()](result), what="the report")


def tell_ci(environ: Mapping[str, str], *, verdict: Verdict, code: int, summary: str) -> None:
    """Tell the CI: Markdown for its summary page, and the verdict for the steps that follow."""
    outputs = f"verdict={verdict}\nexit-code={code}\n"
    for variable, text in (("GITHUB_STEP_SUMMARY", summary), ("GITHUB_OUTPUT", outputs)):
        if place := environ.get(variable):
            try:
                with open(place, "a", encoding="utf-8") as file:
                    file.write(text)
            except OSError as error:
                note(f"nothing was written to {place} ({variable}): {error.strerror}")


# --- what is told of a baseline when it is written --------------------------------------------


def beyond_reach(rules: Sequence[Rule], snapshot: Snapshot, *, alpha: float) -> list[str]:
    """Rules that too few inputs could ever show to be kept, one line each."""
    lines = []
    for rule in rules:
        values = snapshot.values.get(str(rule.metric))
        if values is None or not rule.compares or rule.number is None or rule.on or math.isinf(rule.metric.span):
            continue
        n, least = int(np.isfinite(values).sum()), least_inputs(rule, alpha=alpha)
        if 0 < n < least:
            lines.append(f"'{rule}' rests on {n:,} inputs, and it takes {least:,}: measure more, or allow more")
    return lines
