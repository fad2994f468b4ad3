"""What a test that fails says, and the line of each assertion at the end of the session."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quantdrift.display import shown
from quantdrift.gate.judge import GateResult
from quantdrift.gate.output import headline, rows, sentences, subject, worst_rows, worst_title
from quantdrift_pytest.drift import Drift

__all__ = ["failure_text", "headline_of", "summary_line"]

_SAID_HERE = {
    "--update": "pytest --quantdrift-update",
    "--accept-underpowered": "accept_underpowered=True",
}
"""Options of `quantdrift gate` in its sentences, and what stands for them in pytest."""


def failure_text(result: GateResult) -> str:
    """The verdict, the rules as a table, what to do, and the inputs to look at.

    Args:
        result: a judged run.
    """
    parts = [headline_of(result), subject(result), "", *_table(*rows(result)), ""]
    parts += [_here(line) for line in sentences(result)]
    if result.worst:
        parts += ["", worst_title(result), *_table(*worst_rows(result))]
    return "\n".join(parts)


def headline_of(result: GateResult, *, accept_underpowered: bool = False) -> str:
    """The verdict and why, on one line.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
    """
    return _here(headline(result, accept_underpowered=accept_underpowered))


def summary_line(drift: Drift, result: GateResult, item: pytest.Item | None) -> str:
    """One assertion on one line.

    Args:
        drift: what was measured.
        result: what it came to.
        item: the test.
    """
    where = "" if item is None else f"{item.nodeid}: "
    how = "measured before" if drift.kept else "measured now"
    return (
        f"{where}{shown(drift.spec)} on {shown(drift.data)} ({how}): {result.n_changed:,} of "
        f"{result.n_inputs:,} first answers changed; {result.verdict}"
    )


def _here(line: str) -> str:
    for option, meant in _SAID_HERE.items():
        line = line.replace(option, meant)
    return line


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Columns of plain text, two spaces between them."""
    lines = [head, *body]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
