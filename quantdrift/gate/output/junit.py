"""A judged run as JUnit XML, which every CI reads: one test case per rule.

GitLab shows of a test case the content of its failure, error or skipped element, drops all but the
first of two test cases of one name, and reads system-out of test cases only; Jenkins refuses
a file without a test case. So the content says everything, and a name holds the spec and the data.
"""

from __future__ import annotations

from typing import Literal
from xml.etree import ElementTree

from quantdrift.display import shown
from quantdrift.gate.output.cells import rows, worst_rows, worst_title
from quantdrift.gate.output.words import rule_name, sentences
from quantdrift.gate.result import GateResult, Judgement

__all__ = ["SUITE", "junit_text"]

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
    counts = {
        "tests": str(len(tags)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
    }
    root = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": SUITE, **counts, "skipped": str(tags.count("skipped"))}
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(result).items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
    where = f"{shown(result.identity.spec)} on {shown(result.identity.data)}"
    for row, (each, tag) in enumerate(zip(result.judgements, tags, strict=True)):
        name = f"{where}: {rule_name(each)}"
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": _CLASS, "name": name, "time": "0"}
        )
        numbers, reason = _numbers(result, row), shown(each.reason, _REASON)
        if tag is None:
            ElementTree.SubElement(case, "system-out").text = numbers
            continue
        found = ElementTree.SubElement(case, tag, {"type": each.outcome, "message": reason})
        told = sentences(result, accept_underpowered=accept_underpowered, only=each)
        worst = _worst(result) if tag == "failure" else ""
        found.text = "\n\n".join(filter(None, [reason, numbers, "\n".join(told), worst]))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _tag(each: Judgement, *, accept_underpowered: bool) -> _Tag | None:
    if each.outcome == "underpowered" and accept_underpowered:
        return "skipped"
    tags: dict[str, _Tag] = {
        "fail": "failure",
        "underpowered": "failure",
        "incomparable": "error",
        "error": "error",
    }
    return tags.get(each.outcome)


def _properties(result: GateResult) -> dict[str, str]:
    baseline = None if result.baseline is None else result.baseline.spec
    return {
        "spec": shown(result.identity.spec),
        "data": shown(result.identity.data),
        "baseline": shown(baseline),
        "n_inputs": str(result.n_inputs),
        "alpha": f"{result.alpha:g}",
        "verdict": result.verdict,
    }


def _numbers(result: GateResult, row: int) -> str:
    head, found = rows(result)
    cells = zip(head, found[row], strict=True)
    return "\n".join(f"{title}: {text}" for title, text in cells if text != "-")


def _worst(result: GateResult) -> str:
    head, found = worst_rows(result)
    if not found:
        return ""
    lines = (
        "; ".join(f"{title} {text}" for title, text in zip(head, row, strict=True)) for row in found
    )
    return f"{worst_title(result)}:\n" + "\n".join(lines)
