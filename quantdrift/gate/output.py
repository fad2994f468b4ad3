"""Show the result of a gate: as sentences, tables, Markdown, JUnit XML and JSON, and to the CI."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from quantdrift.base.display import clean, json_text, markdown_table, note, prose, shorten, shown
from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import check_writable, write_text
from quantdrift.base.text import counted, some
from quantdrift.gate.result import GateResult, Judgement, Verdict, Worst
from quantdrift.metrics.numbers import cell, show, show_p, show_step
from quantdrift.show.tables import Column, Grid, table
from quantdrift.statistics.estimates import Estimate

_LISTED = 3
"""Rules that the finding names."""
_RULE, _SENTENCE = 100, 500
"""Characters of a rule and of a sentence at most."""
_EMPTY = "-"
_NOW, _NEEDED = "now (95 %)", "n (needed)"

TO_DO: dict[str, str] = {
    "fail": "Repair the candidate; or, if the change is intended, accept it with --update and commit the new baseline.",
    "limit": "A limit does not move with the baseline: repair the candidate, or change the rule.",
    "underpowered": "Measure more inputs, allow a larger margin, or accept this outcome with --accept-underpowered.",
    "incomparable": "If the difference is intended, write a new baseline with --update and commit it; otherwise "
    "measure again as the baseline was measured.",
    "error": "Measure what the rule needs, or remove the rule.",
}
"""Advice by outcome."""

# --- sentences --------------------------------------------------------------------------------


def rule_name(judgement: Judgement) -> str:
    """The rule, shortened: the name of its slice can be of any length."""
    return shorten(clean(str(judgement.rule)), _RULE)


def subject(result: GateResult) -> str:
    """Name the candidate, its data and the baseline."""
    n, data = counted(result.n_inputs, "input"), shown(result.data)
    # the data of two finished runs may be named by their size
    if (drawn := result.sequential) is not None:
        n = f"{drawn.n:,} of {counted(drawn.of, 'input')}, in a random order (seed {drawn.seed})"
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


def sentences(result: GateResult, *, named: bool = True) -> list[str]:
    """Say what changed, why each rule did not pass, what to do, and the notes; the inputs of a rule where `named`."""
    n, changed, moved = counted(result.n_inputs, "input"), result.n_changed, result.n_answers_changed
    new = f"; {result.n_new:,} of these changes are new" if changed and result.n_new is not None else ""
    lines = [f"{changed:,} of {n} {'has' if changed == 1 else 'have'} another top-1 than the reference{new}."]
    if moved is not None and not result.n_new:
        lines.append(f"On {counted(moved, 'input')} the candidate gives another answer than in the baseline.")
    seen = {worst.input_id for worst in result.worst}
    for judgement in result.rules:
        lines += _of_rule(judgement, result.alpha, seen, named=named)
        seen |= {*judgement.inputs}
    lines += [f"Differs: {difference}." for difference in result.differs]
    kinds = [
        "limit" if judgement.outcome == "fail" and not judgement.rule.compares else judgement.outcome
        for judgement in result.rules
    ]
    lines += [TO_DO[kind] for kind in dict.fromkeys(kinds) if kind in TO_DO and not result.accepted]
    lines += [f"Note: {note}." for note in result.notes]
    return [shorten(clean(line), _SENTENCE) for line in lines]


def _of_rule(judgement: Judgement, alpha: float, seen: Collection[str] = (), *, named: bool = True) -> list[str]:
    """Sentences on a rule; inputs in `seen` are named elsewhere."""
    name, outcome, how_much, lines = rule_name(judgement), judgement.outcome, "", []
    if outcome == "fail" and judgement.worse is not None:
        how_much = f" ({counted(judgement.worse, 'input')} worse than in the baseline, {judgement.better:,} better)"
    elif outcome == "fail" and judgement.now is not None:
        how_much = f" (it is {show(judgement.rule.metric, judgement.now)})"
    harmed = judgement.p_worse_holm is not None and judgement.p_worse_holm < alpha
    if outcome != "pass" or harmed or (judgement.p_no_worse is not None and not judgement.rule.compares):
        lines.append(f"{name}: {outcome}, {judgement.reason}{how_much}.")
    names = [shown(name) for name in judgement.inputs if named and name not in seen]
    if outcome == "fail" and names:
        lines.append(f"{name}, {'also ' if seen else ''}worse on: {some(names, len(names))}.")
    if judgement.set_aside:
        aside = counted(judgement.set_aside, "input")
        lines.append(f"{name}: {aside} left out of the tests, as noise alone changes the top-1 there.")
    return lines


# --- tables -----------------------------------------------------------------------------------


def _cell(show: Callable[..., str], name: str) -> Callable[[Judgement], str]:
    """A function that shows an estimate of a judgement in the unit of its metric."""

    def text(judgement: Judgement) -> str:
        value = getattr(judgement, name)
        return _EMPTY if value is None else show(judgement.rule.metric, value)

    return text


def _inputs(judgement: Judgement) -> str:
    few = judgement.needed is not None and judgement.outcome == "underpowered" and judgement.needed > judgement.n
    return f"{judgement.n:,}{f' ({judgement.needed:,})' if few else ''}" if judgement.n else _EMPTY


def _labels(worst: Worst) -> str:
    labels = ["right" if right else "wrong" for right in (worst.was_right, worst.is_right) if right is not None]
    return " to ".join(labels) if len(labels) > 1 else _EMPTY


RULES = (
    Column("rule", rule_name, kind="words"),
    Column(_NOW, _cell(cell, "now")),
    Column("baseline", lambda row: show(row.rule.metric, Estimate(value=row.before))),
    Column("difference (95 %)", _cell(show_step, "difference")),
    Column("worse / better", lambda row: _EMPTY if row.worse is None else f"{row.worse:,} / {row.better:,}"),
    Column(_NEEDED, _inputs),
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
    if result.sequential is not None:  # the ends are bounds, each at the level of the tests
        title = f"now (bounds, {100 * (1 - result.alpha):g} % each)"
        columns = [replace(column, title=title) if column.title == _NOW else column for column in columns]
    if not any("(" in _inputs(rule) for rule in result.rules):
        columns = [replace(column, title="n") if column.title == _NEEDED else column for column in columns]
    return _filled(columns, result.rules, **more)


def worst_table(result: GateResult) -> Grid:
    """One row per changed input, the worst first; a column that is unknown for all of them is left out."""
    title = f"{len(result.worst):,} of {result.n_changed:,} changed inputs, the worst first"
    return _filled(_INPUTS, result.worst, title=title)


def _filled(columns: Sequence[Column], rows: Sequence[Any], **more: Any) -> Grid:
    def kept(column: Column) -> bool:
        named = column.kind == "words" and column.title != "part"  # a name may be "-"
        return named or any(column.show(column.of(row)) != _EMPTY for row in rows)

    return table(list(filter(kept, columns)) if rows else [], rows, **more)


# --- Markdown, for the summary page of a CI or a comment on a pull request --------------------

TITLE = "## quantdrift gate"
_OPEN = 5
"""Inputs up to which the list is not folded."""
_MOST = 100
"""Rules, sentences and inputs at most: GitHub refuses a step's summary of more than 1 MiB."""


def markdown_text(result: GateResult) -> str:
    """The verdict, the rules, the sentences and the worst inputs as Markdown."""
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
    """JUnit XML, one test case per rule.

    An outcome of "fail" is a failure; "error" and "incomparable" are errors; "underpowered" is a failure of that type,
    or skipped where it is accepted.
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


# --- files, and the places that a CI offers ---------------------------------------------------


def report_json(result: GateResult) -> str:
    """The result as a JSON object, in ASCII."""
    return f"{json_text(result.to_json())}\n"


_WRITERS: Mapping[str, Callable[[GateResult], str]] = {".md": markdown_text, ".xml": junit_text, ".json": report_json}


def check_report(path: Path) -> None:
    """Refuse a file that no report can be written to, before hours of measuring."""
    if path.suffix.lower() not in _WRITERS:
        raise QuantDriftError(f"expected a report named .md (Markdown), .xml (JUnit) or .json; got {str(path)!r}")
    check_writable(path, what="the report")


def write_report(result: GateResult, path: Path) -> None:
    """Write the result in the format of the file's suffix, replacing an earlier file."""
    write_text(path, _WRITERS[path.suffix.lower()](result), what="the report")


def tell_ci(environ: Mapping[str, str], *, verdict: Verdict, code: int, summary: str) -> None:
    """Give GitHub Actions the summary of this step, and the verdict for the steps that follow."""
    outputs = f"verdict={verdict}\nexit-code={code}\n"
    for variable, text in (("GITHUB_STEP_SUMMARY", summary), ("GITHUB_OUTPUT", outputs)):
        if place := environ.get(variable):
            try:
                with open(place, "a", encoding="utf-8") as file:
                    file.write(text)
            except OSError as error:
                note(f"nothing was written to {place} ({variable}): {error.strerror}")
