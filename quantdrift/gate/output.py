"""What a judged run is told with, wherever: one line, and the sentences below the tables."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np

from quantdrift.display import clean, json_text, markdown_table, prose, shorten, shown
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.gate.baseline import Snapshot
from quantdrift.gate.judge import EXIT_CODES, GateResult, Judgement, Outcome, Worst, least_inputs
from quantdrift.gate.rules import Rule
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell, show, show_p, show_step
from quantdrift.records import check_writable, parse_json, write_text
from quantdrift.statistics import Estimate

# --- What a judged run is told with, wherever: one line, and the sentences below the tables -------

_LISTED = 3
_RULE = 100
_SENTENCE = 500

_CAME_TO: dict[Outcome, tuple[str, str]] = {
    "fail": ("failed", "failed"),
    "underpowered": ("is undecided", "are undecided"),
    "incomparable": ("cannot be compared", "cannot be compared"),
    "error": ("cannot be judged", "cannot be judged"),
}


def rule_name(judgement: Judgement) -> str:
    """The rule as it is shown; the name of a slice can be of any length."""
    return shorten(clean(str(judgement.rule)), _RULE)


def subject(result: GateResult) -> str:
    """Who was judged, on what.

    Args:
        result: a judged run.
    """
    identity = result.identity
    n, data = _inputs(result.n_inputs), shown(identity.data_name)
    # of two finished runs the data may have no other name than its size
    whole = f"{shown(identity.spec)} on {data}" + ("" if data == n else f", {n}")
    if result.baseline is None:
        return whole
    same = result.baseline.spec == identity.spec
    return f"{whole}, against a baseline of {'the same' if same else shown(result.baseline.spec)}"


def headline(result: GateResult, *, accept_underpowered: bool = False) -> str:
    """The verdict and why, on one line.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
    """
    verdict = result.verdict
    told = [each for each in result.judgements if each.outcome == verdict]
    total = len(result.judgements)
    if verdict == "pass":
        which = f"all {total:,} rules hold" if total > 1 else f"{_some(told)} holds"
        return f"pass: {which}"
    word = "underpowered, which is accepted" if _accepted(result, accept_underpowered) else verdict
    if verdict == "incomparable" and result.differs:
        more = len(result.differs) - 1
        also = f", and {more:,} more" if more else ""
        first = shorten(clean(result.differs[0]), _SENTENCE)
        return f"{word}: the run and the baseline differ in {first}{also}"
    one, several = _CAME_TO[verdict]
    came_to = one if len(told) == 1 else several
    why = f" ({clean(told[0].reason)})" if len(told) == 1 and told[0].reason else ""
    rules = "1 rule" if total == 1 else f"{total:,} rules"
    return f"{word}: {len(told):,} of {rules} {came_to}, {_some(told)}{why}"


def _accepted(result: GateResult, accept_underpowered: bool) -> bool:
    return accept_underpowered and result.verdict == "underpowered"


def _some(judgements: Sequence[Judgement]) -> str:
    names = [rule_name(each) for each in judgements]
    if len(names) > _LISTED:
        return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED:,} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "no rule"


def sentences(result: GateResult, *, accept_underpowered: bool = False, only: Judgement | None = None) -> list[str]:
    """What changed, what each rule that does not pass means and what to do, and what to know.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
        only: what is said of rules is said of this one only.
    """
    told = result.judgements if only is None else (only,)
    to_do = _to_do(result, told, accept_underpowered=accept_underpowered)
    lines = [
        *_changed(result),
        *(line for each in told if (line := _of_rule(each, result.alpha))),
        *(line for each in told if (line := _named(each))),
        *_incomparable(told),
        *(f"Differs: {difference}." for difference in result.differs),
        *to_do,
        *(line for each in told if (line := _set_aside(each))),
        *(f"Note: {note}." for note in result.notes),
    ]
    return [shorten(clean(line), _SENTENCE) for line in lines]


def _changed(result: GateResult) -> list[str]:
    n = _inputs(result.n_inputs)
    if result.n_changed:
        have = "has" if result.n_changed == 1 else "have"
        line = f"{result.n_changed:,} of {n} {have} another first answer than the reference"
    else:
        line = f"None of {n} has another first answer than the reference"
    if result.n_changed and result.n_new is not None:
        line += f"; {result.n_new:,} of them had not in the baseline"
    moved = result.n_answers_changed
    if moved is None:
        return [f"{line}."]
    if not moved:
        return [f"{line}.", "The candidate gives the first answers that it gave in the baseline."]
    return [f"{line}.", f"On {_inputs(moved)} the candidate answers otherwise than in the baseline."]


def _of_rule(each: Judgement, alpha: float) -> str | None:
    name = rule_name(each)
    if each.outcome == "fail":
        return f"{name} failed: {each.reason}{_by_how_much(each)}."
    if each.outcome in {"underpowered", "error"}:
        return f"{name} {_CAME_TO[each.outcome][0]}: {each.reason}."
    harmed = each.p_worse_holm is not None and each.p_worse_holm < alpha
    if each.outcome == "pass" and each.rule.compares and harmed:
        return f"{name} holds: {each.reason}."
    return None


def _named(each: Judgement) -> str | None:
    """The inputs that broke a rule of comparison."""
    if each.outcome != "fail" or not each.inputs:
        return None
    names = ", ".join(shown(name) for name in each.inputs)
    more = (each.worse or len(each.inputs)) - len(each.inputs)
    return f"{rule_name(each)}, worse on: {names}" + (f" and {more:,} more." if more > 0 else ".")


def _by_how_much(each: Judgement) -> str:
    if each.worse is not None and each.better is not None:
        return f" ({_inputs(each.worse)} worse than in the baseline, {each.better:,} better)"
    if each.now is not None and not each.rule.compares:
        return f" (it is {show(each.rule.metric, each.now)})"
    return ""


def _incomparable(told: Sequence[Judgement]) -> list[str]:
    """One sentence for all rules of one reason, which is mostly the same."""
    reasons: dict[str, list[Judgement]] = {}
    for each in told:
        if each.outcome == "incomparable":
            reasons.setdefault(each.reason, []).append(each)
    return [f"{_some(several)} cannot be compared: {why}." for why, several in reasons.items()]


def _to_do(result: GateResult, told: Sequence[Judgement], *, accept_underpowered: bool) -> list[str]:
    outcomes = {each.outcome for each in told}
    failed = [each.rule for each in told if each.outcome == "fail"]
    lines = []
    if any(rule.compares for rule in failed):
        look = "Look at the inputs listed and repair" if result.worst else "Repair"
        lines.append(
            f"{look} what made them worse. If the change is meant, accept it with --update and commit the new baseline."
        )
    if not all(rule.compares for rule in failed):
        lines.append("A limit does not move with the baseline: repair the model, or change the rule.")
    if "underpowered" in outcomes:
        lines.append(_for_underpowered(told, accepted=_accepted(result, accept_underpowered)))
    if "incomparable" in outcomes:
        lines.append(
            "If that is meant, write a new baseline with --update and commit it; otherwise measure "
            "again as the baseline was measured."
        )
    if "error" in outcomes:
        lines.append("Measure what the rule needs, or leave the rule out.")
    return lines


def _for_underpowered(told: Sequence[Judgement], *, accepted: bool) -> str:
    if accepted:
        return "Too few inputs are accepted (--accept-underpowered), so this ends in success."
    short = [
        (each.needed, each.n)
        for each in told
        if each.outcome == "underpowered" and each.needed is not None and each.needed > each.n
    ]
    more = "Measure more inputs"
    if short:
        needed, n = max(short)
        more = f"Measure about {needed:,} inputs (there are {n:,})"
    return f"{more}, allow a larger margin, or take this outcome for success with --accept-underpowered."


def _set_aside(each: Judgement) -> str | None:
    if not each.set_aside:
        return None
    one = each.set_aside == 1
    left = "1 input is" if one else f"{each.set_aside:,} inputs are"
    return f"{rule_name(each)}: {left} left out of the tests, as noise alone changes {'it' if one else 'them'}."


def _inputs(n: int) -> str:
    return "1 input" if n == 1 else f"{n:,} inputs"


# --- The tables of a judged run, as cells: one row per rule, and one per input to look at ---------

Table = tuple[list[str], list[list[str]]]
"""Column titles, and rows."""

NAMES = frozenset({"rule", "part", "input", "reference's answer", "candidate's answer"})
"""Titles of columns that hold text from outside, cleaned and shortened, but not escaped."""

_ALWAYS = frozenset({"rule", "outcome", "input", "reference's answer", "candidate's answer"})
_EMPTY = "-"


def rows(result: GateResult) -> Table:
    """One row per rule; a column that would be empty for all of them is left out.

    Args:
        result: a judged run.
    """
    return _filled([_cells_of_rule(each) for each in result.judgements])


def _cells_of_rule(each: Judgement) -> dict[str, str]:
    metric = each.rule.metric
    counts = None not in (each.worse, each.better)
    n = f"{each.n:,}" if each.n else _EMPTY
    step = _EMPTY if each.difference is None else show_step(metric, each.difference)
    return {
        "rule": rule_name(each),
        "now (95 %)": _EMPTY if each.now is None else cell(metric, each.now),
        "baseline": show(metric, Estimate(value=each.before)),
        "difference (95 %)": step,
        "worse / better": f"{each.worse:,} / {each.better:,}" if counts else _EMPTY,
        "n (needed)": n if each.needed is None or each.outcome != "underpowered" else f"{n} ({each.needed:,})",
        "p worse (Holm)": show_p(each.p_worse_holm),
        "p no worse": show_p(each.p_no_worse),
        "outcome": each.outcome,
    }


def worst_rows(result: GateResult) -> Table:
    """One row per input to look at, the worst first: what replaced what.

    Columns that are unknown for all of them are left out.

    Args:
        result: a judged run.
    """
    return _filled([_of_input(each) for each in result.worst])


def _of_input(worst: Worst) -> dict[str, str]:
    changed = worst.changed
    rank = changed.rank_after
    return {
        "part": shown(worst.part) if worst.part else _EMPTY,
        "input": shown(changed.input_id),
        "reference's answer": shown(changed.before),
        "now at rank": _EMPTY if rank is None else f"{rank:,}",
        "candidate's answer": shown(changed.after),
        "labels": _labels(changed.was_right, changed.is_right),
        "lead": _EMPTY if changed.lead is None else f"{changed.lead:.4f}",
        "new": {True: "new", False: "as before", None: _EMPTY}[worst.new],
    }


def _labels(was_right: bool | None, is_right: bool | None) -> str:
    if was_right is None or is_right is None:
        return _EMPTY
    words = {True: "right", False: "wrong"}
    # of numpy's truth values too
    return f"{words[bool(was_right)]} to {words[bool(is_right)]}"


def worst_title(result: GateResult) -> str:
    """How many of the changed inputs are listed.

    Args:
        result: a judged run.
    """
    return f"{len(result.worst):,} of {result.n_changed:,} changed inputs, the worst first"


def _filled(found: Sequence[dict[str, str]]) -> Table:
    if not found:
        return [], []
    head = [title for title in found[0] if title in _ALWAYS or any(row[title] != _EMPTY for row in found)]
    return head, [[row[title] for title in head] for row in found]


# --- A judged run as Markdown, for the summary page of a CI or a comment on a pull request --------

TITLE = "## quantdrift gate"
MOST_BYTES = 900_000
"""GitHub refuses a summary of a step above 1 MiB, whole."""

_OPEN = 5
"""Up to so many inputs are listed in the open."""
_MOST = 100
"""Rules, and sentences."""


def markdown_text(result: GateResult, *, accept_underpowered: bool = False) -> str:
    """The verdict, the rules, what it means, and the inputs to look at first.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.

    Returns:
        GitHub-flavored Markdown, at most `MOST_BYTES` long.
    """
    accepted = accept_underpowered and result.verdict == "underpowered"
    head, found = rows(result)
    told = sentences(result, accept_underpowered=accept_underpowered)
    blocks = [
        f"{TITLE}: {result.verdict}{' (accepted)' if accepted else ''}",
        f"{prose(subject(result))}.",
        prose(headline(result, accept_underpowered=accept_underpowered)),
        _table(head, found[:_MOST]),
    ]
    if len(found) > _MOST:
        blocks.append(f"And {len(found) - _MOST:,} more rules.")
    lines = [f"- {prose(line)}" for line in told[:_MOST]]
    if len(told) > _MOST:
        lines.append(f"- And {len(told) - _MOST:,} more sentences, which the terminal shows.")
    text = "\n\n".join([*blocks, "\n".join(lines)]) + "\n"
    return text + _worst(result, room=MOST_BYTES - len(text.encode()))


def error_markdown(message: str) -> str:
    """That nothing was judged, and why.

    Args:
        message: of the error.
    """
    lines = [prose(line) for line in message.splitlines() if line.strip()]
    return f"{TITLE}: error\n\n" + "\n\n".join(lines[:_MOST]) + "\n"


def _worst(result: GateResult, *, room: int) -> str:
    head, found = worst_rows(result)
    if not found:
        return ""
    folded = len(found) > _OPEN
    title = worst_title(result)
    before = f"\n<details>\n<summary>{title}</summary>\n\n" if folded else f"\n{title}:\n\n"
    after = "\n</details>\n" if folded else ""
    empty = len(_table(head, []).encode())
    room -= len(f"{before}{after}".encode()) + empty + _MOST
    kept = []
    for row in found:
        room -= len(_table(head, [row]).encode()) - empty
        if room < 0:
            break
        kept.append(row)
    left = len(found) - len(kept)
    more = f"\nAnd {left:,} more, for which there is no room.\n" if left else ""
    return f"{before}{_table(head, kept)}\n{more}{after}"


def _table(head: Sequence[str], found: Iterable[Sequence[str]]) -> str:
    return markdown_table(head, found, names=NAMES)


# --- A judged run as JUnit XML, which every CI reads: one test case per rule ----------------------

SUITE = "quantdrift gate"
_CLASS = "quantdrift.gate"
_REASON = 500

_Tag = Literal["failure", "error", "skipped"]


def junit_text(result: GateResult, *, accept_underpowered: bool = False) -> str:
    """JUnit XML of a judged run.

    A rule that fails is a failure; one that is undefined, or cannot be compared, an error; and one
    with too few inputs a failure of the type "underpowered", or skipped where that is accepted.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
    """
    tags = [_tag(each, accept_underpowered=accept_underpowered) for each in result.judgements]
    counts = {"tests": str(len(tags)), "failures": str(tags.count("failure")), "errors": str(tags.count("error"))}
    root = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **counts, "skipped": str(tags.count("skipped"))})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(result).items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
    where = f"{shown(result.identity.spec)} on {shown(result.identity.data_name)}"
    for row, (each, tag) in enumerate(zip(result.judgements, tags, strict=True)):
        name = f"{where}: {rule_name(each)}"
        case = ElementTree.SubElement(suite, "testcase", {"classname": _CLASS, "name": name, "time": "0"})
        numbers, reason = _numbers(result, row), shown(each.reason, _REASON)
        if tag is None:
            ElementTree.SubElement(case, "system-out").text = numbers
            continue
        found = ElementTree.SubElement(case, tag, {"type": each.outcome, "message": reason})
        told = sentences(result, accept_underpowered=accept_underpowered, only=each)
        worst = _junit_worst(result) if tag == "failure" else ""
        found.text = "\n\n".join(filter(None, [reason, numbers, "\n".join(told), worst]))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _tag(each: Judgement, *, accept_underpowered: bool) -> _Tag | None:
    if each.outcome == "underpowered" and accept_underpowered:
        return "skipped"
    tags: dict[str, _Tag] = {"fail": "failure", "underpowered": "failure", "incomparable": "error", "error": "error"}
    return tags.get(each.outcome)


def _properties(result: GateResult) -> dict[str, str]:
    baseline = None if result.baseline is None else result.baseline.spec
    return {
        "spec": shown(result.identity.spec),
        "data": shown(result.identity.data_name),
        "baseline": shown(baseline),
        "n_inputs": str(result.n_inputs),
        "alpha": f"{result.alpha:g}",
        "verdict": result.verdict,
    }


def _numbers(result: GateResult, row: int) -> str:
    head, found = rows(result)
    cells = zip(head, found[row], strict=True)
    return "\n".join(f"{title}: {text}" for title, text in cells if text != "-")


def _junit_worst(result: GateResult) -> str:
    head, found = worst_rows(result)
    if not found:
        return ""
    lines = ("; ".join(f"{title} {text}" for title, text in zip(head, row, strict=True)) for row in found)
    return f"{worst_title(result)}:\n" + "\n".join(lines)


# --- Where the result goes: files that are asked for, and the places that a CI offers -------------

SUMMARY = "GITHUB_STEP_SUMMARY"
OUTPUT = "GITHUB_OUTPUT"
"""Environment variables that hold a path, of GitHub and of those that run its actions."""

_AT_ONCE = getattr(os, "O_NONBLOCK", 0)
"""A pipe is opened without waiting for who reads it."""

_MOST_SUMMARY = 1024 * 1024
"""Bytes. GitHub shows nothing of a step whose summary is longer."""

_WRITERS: dict[str, Callable[..., str]] = {".md": markdown_text, ".markdown": markdown_text, ".xml": junit_text}
_SUFFIXES = (*_WRITERS, ".json")


def exit_code(result: GateResult, *, accept_underpowered: bool) -> int:
    """What the command ends with.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
    """
    accepted = accept_underpowered and result.verdict == "underpowered"
    return EXIT_CODES["pass"] if accepted else result.exit_code


def report_json(result: GateResult, *, accept_underpowered: bool = False) -> str:
    """A judged run as a JSON object, in ASCII; `exit_code` is what the command ends with.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
    """
    code = exit_code(result, accept_underpowered=accept_underpowered)
    content = {**result.to_json(), "exit_code": code}
    return f"{json_text(content)}\n"


def check_report(path: Path) -> None:
    """Refuse a place that cannot take a report, before hours go into one.

    Args:
        path: where it is to be written.

    Raises:
        QuantDriftError: the suffix tells no format, something other than a report is there, or
            it cannot be written to.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise QuantDriftError(
            f"the name of a report tells its format: expected .md or .markdown (Markdown), .xml "
            f"(JUnit) or .json; got {str(path)!r}"
        )
    if path.exists() and not _is_report(path):
        raise RunError(
            f"{path} holds something that is not a report of the gate; expected a new file or an "
            "earlier report to replace. Choose another place."
        )
    check_writable(path, what="the report")


def _is_report(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            return True
        if path.suffix.lower() == ".json":
            content = parse_json(text)
            return isinstance(content, dict) and {"verdict", "rules"} <= content.keys()
    except (OSError, ValueError):
        return False
    if path.suffix.lower() == ".xml":
        return f'<testsuites name="{SUITE}"' in text
    return text.startswith(TITLE)


def write_report(result: GateResult, path: Path, *, accept_underpowered: bool = False) -> None:
    """Write a report whole, replacing an earlier one; the suffix tells its format.

    Args:
        result: a judged run.
        path: the file: .md or .markdown, .xml (JUnit) or .json.
        accept_underpowered: whether too few inputs end in success.

    Raises:
        QuantDriftError: no format has that suffix, something else is there, or it cannot be
            written.
    """
    check_report(path)
    writer = _WRITERS.get(path.suffix.lower(), report_json)
    write_text(path, writer(result, accept_underpowered=accept_underpowered), what="the report")


def tell_ci(result: GateResult, environ: Mapping[str, str], *, accept_underpowered: bool = False) -> list[str]:
    """Tell the CI: Markdown for its summary page, and the verdict for the steps that follow.

    Args:
        result: a judged run.
        environ: environment variables.
        accept_underpowered: whether too few inputs end in success.

    Returns:
        Notes: what could not be written. The gate's verdict does not depend on it.
    """
    code = exit_code(result, accept_underpowered=accept_underpowered)
    text = markdown_text(result, accept_underpowered=accept_underpowered)
    return _tell(environ, text, result.verdict, code)


def tell_ci_of_error(message: str, environ: Mapping[str, str]) -> list[str]:
    """Tell the CI that nothing was judged, and why.

    Args:
        message: of the error.
        environ: environment variables.

    Returns:
        Notes, as `tell_ci`.
    """
    return _tell(environ, error_markdown(message), "error", EXIT_CODES["error"])


def _tell(environ: Mapping[str, str], text: str, verdict: str, code: int) -> list[str]:
    notes = []
    if place := environ.get(SUMMARY):
        notes += _append(Path(place), text, "the summary", SUMMARY, most=_MOST_SUMMARY)
    if place := environ.get(OUTPUT):
        lines = f"verdict={verdict}\nexit-code={code}\n"
        notes += _append(Path(place), lines, "the outputs", OUTPUT)
    return notes


def _append(path: Path, text: str, what: str, variable: str, *, most: int | None = None) -> list[str]:
    """Add to what others wrote; a note if that cannot be done."""
    try:
        place = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _AT_ONCE, 0o666)
        if not stat.S_ISREG(os.fstat(place).st_mode):
            os.close(place)
            return [
                f"{what} of the CI was not written to {path} ({variable}): expected a file; it is a pipe or a device"
            ]
        with open(place, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            start = "" if file.read() in {b"", b"\n"} else "\n"  # it may end within a line
            added = f"{start}{text}".encode()
            if most is not None and size + len(added) > most:
                return [
                    f"{what} of the CI was not written: with what is there ({size:,} bytes) it "
                    f"would be longer than {most:,} bytes, and none of it would be shown"
                ]
            file.write(added)
    except OSError as error:
        return [f"{what} of the CI was not written to {path} ({variable}): {error.strerror}"]
    return []


# --- What is told of a baseline when it is written: its figures, and rules it is too small for ----


def means_line(snapshot: Snapshot) -> str:
    """The mean of every column, for who commits the file.

    Args:
        snapshot: that is written.
    """
    told = []
    for name, values in snapshot.values.items():
        known = values[np.isfinite(values)]
        if len(known):
            mean = Estimate(value=float(known.mean()))
            told.append(f"{name} {show(parse_metric(name), mean)}")
    return ", ".join(told)


def beyond_reach(rules: Sequence[Rule], snapshot: Snapshot, *, alpha: float) -> list[str]:
    """Rules that too few inputs could ever show to be kept, one line each.

    Args:
        rules: that later runs are judged by.
        snapshot: the baseline.
        alpha: level of the tests.
    """
    lines = []
    for rule in rules:
        if not rule.compares or rule.number is None or rule.on is not None:
            continue
        if not math.isfinite(rule.span):
            continue
        values = snapshot.values.get(str(rule.metric))
        n = 0 if values is None else int(np.isfinite(values).sum())
        least = least_inputs(rule, alpha=alpha)
        if 0 < n < least:
            lines.append(
                f"'{rule}' rests on {n:,} inputs, and of another candidate that does not differ it "
                f"takes {least:,} to show it; measure more, or allow a larger margin"
            )
    return lines
