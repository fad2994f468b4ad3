"""Columns of a table of changed inputs."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

from quantdrift.base.display import shown
from quantdrift.finished.texts import Texts
from quantdrift.runs.changes import Changed
from quantdrift.show.tables import Column, Kind

_TEXT = 240
"""Characters of a text on the screen."""
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("rank_before", "rank_after"), "count"),
    **dict.fromkeys(("was_right", "is_right"), "flag"),
    **dict.fromkeys(("gap", "score_before", "score_after", "separation"), "number"),
}
"""Kinds of the fields of a changed input that are no words."""


def changed_columns(texts: Texts, *, exact: bool) -> list[Column]:
    """The input, what either arm answers, and how it changed; in JSON and files every field, and whole texts.

    Args:
        texts: of inputs and items.
        exact: whether separations are exact; of cut lists they are bounds.
    """

    def named(changed: Changed) -> str:
        text = texts.inputs.get(changed.input_id)
        return shown(changed.input_id) + ("" if text is None else f": {shown(text, _TEXT)}")

    def answer(arm: str, other: str, changed: Changed) -> str:
        """An arm's first answer, its score, whether it is relevant, its rank in the other arm, and its text."""
        here, there, right = ("before", "after", "was") if arm == "reference" else ("after", "before", "is")
        name, score, rank = (getattr(changed, part) for part in (here, f"score_{here}", f"rank_{there}"))
        relevant = getattr(changed, f"{right}_right")
        parts = [] if score is None else [f"{score:.4f}"]
        parts += [] if relevant is None else ["relevant" if relevant else "not relevant"]
        parts += [] if rank is None else [f"rank {rank:,} in the {other}"]
        text = texts.item(changed.input_id, name)
        words = f" ({', '.join(parts)})" if parts else ""
        return shown(name, _TEXT) + words + ("" if text is None else f"  {shown(text, _TEXT)}")

    def change(changed: Changed) -> str:
        parts: list[str] = [changed.kind or "no label"]
        parts += [] if changed.gap is None else [f"gap {changed.gap:.4g}"]
        parts += [] if changed.separation is None else [f"separation {'' if exact else '≤ '}{changed.separation:.3g}"]
        return ", ".join(parts)

    return [
        Column("input", named, kind="words"),
        Column("reference", partial(answer, "reference", "candidate"), kind="words"),
        Column("candidate", partial(answer, "candidate", "reference"), kind="words"),
        Column("change", change, kind="words"),
        *(Column("", field.name, kind=_KINDS.get(field.name, "words")) for field in fields(Changed)),
        Column("", lambda changed: texts.inputs.get(changed.input_id), kind="words", key="text"),
        Column("", lambda changed: texts.item(changed.input_id, changed.before), kind="words", key="text_before"),
        Column("", lambda changed: texts.item(changed.input_id, changed.after), kind="words", key="text_after"),
    ]
