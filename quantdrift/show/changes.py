"""Rows of a table of changed inputs."""

from __future__ import annotations

from collections.abc import Iterator

from quantdrift.base.display import shown
from quantdrift.finished.texts import Texts
from quantdrift.runs.changes import Changed

HEAD = ("input", "reference", "candidate", "change")
_TEXT = 240
"""Characters of a text on the screen."""


def changed_row(one: Changed, texts: Texts, *, exact: bool) -> Iterator[str]:
    """The input, what either arm answers, and how it changed; of cut lists the separation is a bound."""
    text = texts.inputs.get(one.input_id)
    yield shown(one.input_id) + ("" if text is None else f": {shown(text, _TEXT)}")
    for name, score, right, rank, other in (
        (one.before, one.score_before, one.was_right, one.rank_after, "candidate"),
        (one.after, one.score_after, one.is_right, one.rank_before, "reference"),
    ):
        parts = [] if score is None else [f"{score:.4f}"]
        parts += [] if right is None else ["relevant" if right else "not relevant"]
        parts += [] if rank is None else [f"rank {rank:,} in the {other}"]
        answer = texts.item(one.input_id, name)
        words = f" ({', '.join(parts)})" if parts else ""
        yield shown(name, _TEXT) + words + ("" if answer is None else f"  {shown(answer, _TEXT)}")
    change: list[str] = [one.kind or "no label"]
    change += [] if one.gap is None else [f"gap {one.gap:.4g}"]
    change += [] if one.separation is None else [f"separation {'' if exact else '≤ '}{one.separation:.3g}"]
    yield ", ".join(change)
