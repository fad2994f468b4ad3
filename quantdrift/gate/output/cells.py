"""The tables of a judged run, as cells: one row per rule, and one per input to look at."""

from __future__ import annotations

from collections.abc import Sequence

from quantdrift.display import shown
from quantdrift.gate.output.words import rule_name
from quantdrift.gate.result import GateResult, Judgement, Worst
from quantdrift.report.numbers import cell, show, show_p, show_step
from quantdrift.statistics import Estimate

__all__ = ["NAMES", "rows", "worst_rows", "worst_title"]

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
    return _filled([_of_rule(each) for each in result.judgements])


def _of_rule(each: Judgement) -> dict[str, str]:
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
        "n (needed)": n
        if each.needed is None or each.outcome != "underpowered"
        else f"{n} ({each.needed:,})",
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
    head = [
        title
        for title in found[0]
        if title in _ALWAYS or any(row[title] != _EMPTY for row in found)
    ]
    return head, [[row[title] for title in head] for row in found]
