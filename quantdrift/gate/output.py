"""What a judged run is told with: sentences and cells, Markdown, JUnit, JSON, and the files of a CI."""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from quantdrift.display import clean, json_text, markdown_table, prose, shorten, shown
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.gate.baseline import Snapshot
from quantdrift.gate.judge import EXIT_CODES, GateResult, Judgement, Verdict, Worst, least_inputs
from quantdrift.gate.rules import Rule
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell, show, show_p, show_step
from quantdrift.records import check_writable, parse_json, write_text
from quantdrift.statistics.estimates import Estimate

_LISTED = 3
_RULE = 100
_SENTENCE = 500
_EMPTY = "-"

_CAME_TO: dict[Verdict, tuple[str, str]] = {
    "fail": ("failed", "failed"),
    "underpowered": ("is undecided", "are undecided"),
    "incomparable": ("cannot be compared", "cannot be compared"),
    "error": ("cannot be judged", "cannot be judged"),
}

# --- in words ---------------------------------------------------------------------------------


def rule_name(judgement: Judgement) -> str:
    """The rule as it is shown; the name of a slice can be of any length."""
    return shorten(clean(str(judgement.rule)), _RULE)


def subject(result: GateResult) -> str:
    """Who was judged, on what."""
    identity = result.identity
    n, data = _inputs(result.n_inputs), shown(identity.data_name)
    # of two finished runs the data may have no other name than its size
    whole = f"{shown(identity.spec)} on {data}" + ("" if data == n else f", {n}")
    if result.baseline is None:
        return whole
    same = result.baseline.spec == identity.spec
    return f"{whole}, against a baseline of {'the same' if same else shown(result.baseline.spec)}"


def headline(result: GateResult) -> str:
    """The verdict and why, on one line."""
    verdict, total = result.verdict, len(result.judgements)
    told = [each for each in result.judgements if each.outcome == verdict]
    names = [rule_name(each) for each in told]
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    which = ", ".join(names[:_LISTED]) + more
    if verdict == "pass":
        return f"pass: all {total:,} rules hold" if total > 1 else f"pass: {which or 'no rule'} holds"
    word = f"{verdict}, which is accepted" if result.accepted else verdict
    if verdict == "incomparable" and result.differs:
        also = f", and {len(result.differs) - 1:,} more" if len(result.differs) > 1 else ""
        return f"{word}: the run and the baseline differ in {shorten(clean(result.differs[0]), _SENTENCE)}{also}"
    came_to = _CAME_TO[verdict][len(told) > 1]
    why = f" ({clean(told[0].reason)})" if len(told) == 1 and told[0].reason else ""
    return f"{word}: {len(told):,} of {'1 rule' if total == 1 else f'{total:,} rules'} {came_to}, {which}{why}"


def sentences(result: GateResult, *, only: Judgement | None = None) -> list[str]:
    """What changed, what each rule (or only one) that does not pass means, what to do, what to know."""
    told = result.judgements if only is None else (only,)
    lines = [
        *_changed(result),
        *(line for each in told for line in _of_rule(each, result.alpha)),
        *(f"Differs: {difference}." for difference in result.differs),
        *_to_do(result, told),
        *(f"Note: {note}." for note in result.notes),
    ]
    return [shorten(clean(line), _SENTENCE) for line in lines]


def _changed(result: GateResult) -> list[str]:
    n, changed, moved = _inputs(result.n_inputs), result.n_changed, result.n_answers_changed
    many = f"{changed:,} of {n} {'has' if changed == 1 else 'have'}" if changed else f"None of {n} has"
    new = f"; {result.n_new:,} of them had not in the baseline" if changed and result.n_new is not None else ""
    lines = [f"{many} another first answer than the reference{new}."]
    if moved == 0:
        lines.append("The candidate gives the first answers that it gave in the baseline.")
    elif moved is not None:
        lines.append(f"On {_inputs(moved)} the candidate answers otherwise than in the baseline.")
    return lines


def _of_rule(each: Judgement, alpha: float) -> list[str]:
    name, lines = rule_name(each), []
    if each.outcome == "fail":
        how_much = "" if each.now is None else f" (it is {show(each.rule.metric, each.now)})"
        if each.worse is not None and each.better is not None:
            how_much = f" ({_inputs(each.worse)} worse than in the baseline, {each.better:,} better)"
        lines.append(f"{name} failed: {each.reason}{how_much}.")
        if each.inputs:
            more = (each.worse or 0) - len(each.inputs)
            names = ", ".join(shown(input_id) for input_id in each.inputs)
            lines.append(f"{name}, worse on: {names}" + (f" and {more:,} more." if more > 0 else "."))
    elif each.outcome != "pass":
        lines.append(f"{name} {_CAME_TO[each.outcome][0]}: {each.reason}.")
    elif each.p_worse_holm is not None and each.p_worse_holm < alpha:
        lines.append(f"{name} holds: {each.reason}.")
    if each.set_aside:
        left = "1 input is" if each.set_aside == 1 else f"{each.set_aside:,} inputs are"
        lines.append(f"{name}: {left} left out of the tests, as noise alone changes the first answer there.")
    return lines


def _to_do(result: GateResult, told: Sequence[Judgement]) -> list[str]:
    outcomes = {each.outcome for each in told}
    failed = [each.rule.compares for each in told if each.outcome == "fail"]
    lines = []
    if any(failed):
        look = "Look at the inputs listed and repair" if result.worst else "Repair"
        accept = "If the change is meant, accept it with --update and commit the new baseline."
        lines.append(f"{look} what made them worse. {accept}")
    if not all(failed):
        lines.append("A limit does not move with the baseline: repair the model, or change the rule.")
    if "underpowered" in outcomes and result.accepted:
        lines.append("Too few inputs are accepted (--accept-underpowered), so this ends in success.")
    elif "underpowered" in outcomes:
        few = [each for each in told if each.outcome == "underpowered"]
        needed, n = max(((each.needed, each.n) for each in few if each.needed and each.needed > each.n), default=(0, 0))
        more = f"about {needed:,} inputs (there are {n:,})" if needed else "more inputs"
        lines.append(
            f"Measure {more}, allow a larger margin, or take this outcome for success with --accept-underpowered."
        )
    if "incomparable" in outcomes:
        lines.append(
            "If that is meant, write a new baseline with --update and commit it; otherwise measure "
            "again as the baseline was measured."
        )
    if "error" in outcomes:
        lines.append("Measure what the rule needs, or leave the rule out.")
    return lines


def _inputs(n: int) -> str:
    return "1 input" if n == 1 else f"{n:,} inputs"


# --- as cells: one row per rule, and one per input to look at ---------------------------------

Table = tuple[list[str], list[list[str]]]
"""Column titles, and rows."""

NAMES = frozenset({"rule", "part", "input", "reference's answer", "candidate's answer"})
"""Titles of columns that hold text from outside, cleaned and shortened, but not escaped."""

_ALWAYS = frozenset({"rule", "outcome", "input", "reference's answer", "candidate's answer"})


def rows(result: GateResult) -> Table:
    """One row per rule; a column that would be empty for all of them is left out."""
    return _filled([_cells_of_rule(each) for each in result.judgements])


def worst_rows(result: GateResult) -> Table:
    """One row per input to look at, what replaced what; columns that are unknown for all are left out."""
    return _filled([_cells_of_input(each) for each in result.worst])


def worst_title(result: GateResult) -> str:
    """How many of the changed inputs are listed."""
    return f"{len(result.worst):,} of {result.n_changed:,} changed inputs, the worst first"


def _cells_of_rule(each: Judgement) -> dict[str, str]:
    metric = each.rule.metric
    needed = f" ({each.needed:,})" if each.needed is not None and each.outcome == "underpowered" else ""
    return {
        "rule": rule_name(each),
        "now (95 %)": _EMPTY if each.now is None else cell(metric, each.now),
        "baseline": show(metric, Estimate(value=each.before)),
        "difference (95 %)": _EMPTY if each.difference is None else show_step(metric, each.difference),
        "worse / better": _EMPTY if each.worse is None else f"{each.worse:,} / {each.better:,}",
        "n (needed)": f"{each.n:,}{needed}" if each.n else _EMPTY,
        "p worse (Holm)": show_p(each.p_worse_holm),
        "p no worse": show_p(each.p_no_worse),
        "outcome": each.outcome,
    }


def _cells_of_input(worst: Worst) -> dict[str, str]:
    changed = worst.changed
    labels = ["right" if right else "wrong" for right in (changed.was_right, changed.is_right) if right is not None]
    return {
        "part": shown(worst.part) if worst.part else _EMPTY,
        "input": shown(changed.input_id),
        "reference's answer": shown(changed.before),
        "now at rank": _EMPTY if changed.rank_after is None else f"{changed.rank_after:,}",
        "candidate's answer": shown(changed.after),
        "labels": " to ".join(labels) if len(labels) > 1 else _EMPTY,
        "lead": _EMPTY if changed.lead is None else f"{changed.lead:.4f}",
        "new": {True: "new", False: "as before", None: _EMPTY}[worst.new],
    }


def _filled(found: Sequence[dict[str, str]]) -> Table:
    titles = found[0] if found else ()
    head = [title for title in titles if title in _ALWAYS or any(row[title] != _EMPTY for row in found)]
    return head, [[row[title] for title in head] for row in found]


# --- Markdown, for the summary page of a CI or a comment on a pull request --------------------

TITLE = "## quantdrift gate"
MOST_BYTES = 900_000
"""GitHub refuses a summary of a step above 1 MiB, whole."""

_OPEN = 5
"""Up to so many inputs are listed in the open."""
_MOST = 100
"""Rules, and sentences."""


def markdown_text(result: GateResult) -> str:
    """The verdict, the rules, what it means, and the inputs to look at first, at most `MOST_BYTES` long."""
    head, found = rows(result)
    told = sentences(result)
    blocks = [
        f"{TITLE}: {result.verdict}{' (accepted)' if result.accepted else ''}",
        f"{prose(subject(result))}.",
        prose(headline(result)),
        markdown_table(head, found[:_MOST], names=NAMES),
    ]
    if len(found) > _MOST:
        blocks.append(f"And {len(found) - _MOST:,} more rules.")
    lines = [f"- {prose(line)}" for line in told[:_MOST]]
    if len(told) > _MOST:
        lines.append(f"- And {len(told) - _MOST:,} more sentences, which the terminal shows.")
    text = "\n\n".join([*blocks, "\n".join(lines)]) + "\n"
    return text + _worst(result, room=MOST_BYTES - len(text.encode()) - _SENTENCE)


def _worst(result: GateResult, *, room: int) -> str:
    head, found = worst_rows(result)
    if not found:
        return ""
    title, folded = worst_title(result), len(found) > _OPEN
    before = f"<details>\n<summary>{title}</summary>" if folded else f"{title}:"
    lines = markdown_table(head, found, names=NAMES).split("\n")
    kept = sum(size <= room for size in accumulate(len(line.encode()) + 1 for line in lines))
    more = f"\nAnd {len(lines) - kept:,} more, for which there is no room.\n" if kept < len(lines) else ""
    return f"\n{before}\n\n" + "\n".join(lines[:kept]) + f"\n{more}" + ("\n</details>\n" if folded else "")


# --- JUnit XML, which every CI reads: one test case per rule ----------------------------------

SUITE = "quantdrift gate"
_TAGS: Mapping[Verdict, str] = {"fail": "failure", "underpowered": "failure", "incomparable": "error", "error": "error"}


def junit_text(result: GateResult) -> str:
    """JUnit XML of a judged run.

    A rule that fails is a failure; one that is undefined, or cannot be compared, an error; and one with too few
    inputs a failure of the type "underpowered", or skipped where that is accepted.
    """
    head, cells = rows(result)
    tags = [
        "skipped" if each.outcome == "underpowered" and result.accept_underpowered else _TAGS.get(each.outcome)
        for each in result.judgements
    ]
    counts = {"tests": str(len(tags)), "failures": str(tags.count("failure")), "errors": str(tags.count("error"))}
    root = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": SUITE, **counts, "skipped": str(tags.count("skipped"))})
    spec, data = shown(result.identity.spec), shown(result.identity.data_name)
    properties = {
        "spec": spec,
        "data": data,
        "baseline": shown(None if result.baseline is None else result.baseline.spec),
        "n_inputs": str(result.n_inputs),
        "alpha": f"{result.alpha:g}",
        "verdict": result.verdict,
    }
    listed = ElementTree.SubElement(suite, "properties")
    for name, value in properties.items():
        ElementTree.SubElement(listed, "property", {"name": name, "value": value})
    for each, tag, row in zip(result.judgements, tags, cells, strict=True):
        case = {"classname": "quantdrift.gate", "name": f"{spec} on {data}: {rule_name(each)}", "time": "0"}
        element = ElementTree.SubElement(suite, "testcase", case)
        numbers = "\n".join(f"{title}: {text}" for title, text in zip(head, row, strict=True) if text != _EMPTY)
        if tag is None:
            ElementTree.SubElement(element, "system-out").text = numbers
            continue
        reason = shown(each.reason, _SENTENCE)
        parts = [reason, numbers, "\n".join(sentences(result, only=each))]
        if tag == "failure" and result.worst:
            titles, inputs = worst_rows(result)
            told = ("; ".join(f"{title} {text}" for title, text in zip(titles, row, strict=True)) for row in inputs)
            parts.append("\n".join([f"{worst_title(result)}:", *told]))
        found = ElementTree.SubElement(element, tag, {"type": each.outcome, "message": reason})
        found.text = "\n\n".join(parts)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


# --- files that are asked for, and the places that a CI offers --------------------------------


def report_json(result: GateResult) -> str:
    """A judged run as a JSON object, in ASCII; `exit_code` is what the command ends with."""
    return f"{json_text(result.to_json())}\n"


_WRITERS: Mapping[str, Callable[[GateResult], str]] = {
    ".md": markdown_text,
    ".markdown": markdown_text,
    ".xml": junit_text,
    ".json": report_json,
}


def check_report(path: Path) -> None:
    """Refuse a place that cannot take a report, before hours go into one."""
    if path.suffix.lower() not in _WRITERS:
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
        if path.suffix.lower() == ".json" and text.strip():
            content = parse_json(text)
            return isinstance(content, dict) and {"verdict", "rules"} <= content.keys()
    except (OSError, ValueError):
        return False
    return not text.strip() or text.startswith(TITLE) or f'<testsuites name="{SUITE}"' in text


def write_report(result: GateResult, path: Path) -> None:
    """Write a report whole, replacing an earlier one; the suffix tells its format."""
    check_report(path)
    write_text(path, _WRITERS[path.suffix.lower()](result), what="the report")


def tell_ci(told: GateResult | str, environ: Mapping[str, str]) -> list[str]:
    """Tell the CI: Markdown for its summary page, and the verdict for the steps that follow."""
    if isinstance(told, str):
        verdict, code = "error", EXIT_CODES["error"]
        lines = [prose(line) for line in told.splitlines() if line.strip()]
        text = f"{TITLE}: error\n\n" + "\n\n".join(lines[:_MOST]) + "\n"
    else:
        verdict, code, text = told.verdict, told.exit_code, markdown_text(told)
    notes = []
    for variable, what, added, most in (
        # GitHub shows nothing of a step whose summary is longer
        ("GITHUB_STEP_SUMMARY", "the summary", text, 1024 * 1024),
        ("GITHUB_OUTPUT", "the outputs", f"verdict={verdict}\nexit-code={code}\n", math.inf),
    ):
        if place := environ.get(variable):
            try:
                _append(place, added, most)
            except OSError as error:
                notes.append(f"{what} of the CI was not written to {place} ({variable}): {error.strerror}")
    return notes


def _append(path: str, text: str, most: float) -> None:
    """Add to what others wrote."""
    # a pipe is opened without waiting for who reads it
    place = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o666)
    with open(place, "r+b", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise OSError(errno.EINVAL, "expected a file; it is a pipe or a device")
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        start = "" if file.read() in {b"", b"\n"} else "\n"  # it may end within a line
        added = f"{start}{text}".encode()
        if size + len(added) > most:
            raise OSError(errno.EFBIG, f"with what is there ({size:,} bytes) it would be longer than {most:,} bytes")
        file.write(added)


# --- what is told of a baseline when it is written --------------------------------------------


def means_line(snapshot: Snapshot) -> str:
    """The mean of every column, for who commits the file."""
    known = {name: values[np.isfinite(values)] for name, values in snapshot.values.items()}
    means = {name: Estimate(value=float(values.mean())) for name, values in known.items() if len(values)}
    return ", ".join(f"{name} {show(parse_metric(name), mean)}" for name, mean in means.items())


def beyond_reach(rules: Sequence[Rule], snapshot: Snapshot, *, alpha: float) -> list[str]:
    """Rules that too few inputs could ever show to be kept, one line each."""
    lines = []
    for rule in rules:
        values = snapshot.values.get(str(rule.metric))
        if values is None or not rule.compares or rule.number is None or rule.on or math.isinf(rule.span):
            continue
        n, least = int(np.isfinite(values).sum()), least_inputs(rule, alpha=alpha)
        if 0 < n < least:
            lines.append(
                f"'{rule}' rests on {n:,} inputs, and of another candidate that does not differ it "
                f"takes {least:,} to show it; measure more, or allow a larger margin"
            )
    return lines
