"""A judged run as Markdown, for the summary page of a CI or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quantdrift.display import markdown_table, prose
from quantdrift.gate.output.cells import NAMES, rows, worst_rows, worst_title
from quantdrift.gate.output.words import headline, sentences, subject
from quantdrift.gate.result import GateResult

__all__ = ["MOST_BYTES", "TITLE", "error_markdown", "markdown_text"]

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
