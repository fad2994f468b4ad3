"""The table of changed inputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from quantdrift.base.display import shown
from quantdrift.base.text import counted
from quantdrift.evidence.record import Evidence
from quantdrift.finished.texts import Texts
from quantdrift.runs.changes import KINDS, Changed
from quantdrift.runs.identity import answers
from quantdrift.show.tables import Column, Grid, Kind, table

_TEXT = 240
"""Characters of a text on a terminal at most."""
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("rank_before", "rank_after"), "count"),
    **dict.fromkeys(("was_right", "is_right"), "flag"),
    **dict.fromkeys(("gap", "score_before", "score_after", "separation"), "number"),
}
"""Kinds of those fields of a changed input that are not words."""


def changed_columns(texts: Texts, *, exact: bool, classes: bool) -> list[Column]:
    """Columns for the input, the answers of both arms and the change; JSON and files have every field and whole texts.

    Args:
        texts: the texts of inputs and items.
        exact: whether separations are exact; of truncated lists they are upper bounds.
        classes: whether answers are right or wrong, not documents that are relevant or not.
    """

    right, wrong = ("right", "wrong") if classes else ("relevant", "not relevant")

    def named(changed: Changed) -> str:
        text = texts.inputs.get(changed.input_id)
        return shown(changed.input_id) + ("" if text is None else f": {shown(text, _TEXT)}")

    def answer(arm: str, other: str, changed: Changed) -> str:
        """The first answer of an arm with its score, relevance, rank in the other arm, and text."""
        here, there, label = ("before", "after", "was") if arm == "reference" else ("after", "before", "is")
        name, score, rank = (getattr(changed, part) for part in (here, f"score_{here}", f"rank_{there}"))
        relevant = getattr(changed, f"{label}_right")
        parts = [] if score is None else [f"{score:.4f}"]
        parts += [] if relevant is None else [right if relevant else wrong]
        parts += [] if rank is None else [f"rank {rank:,} in the {other}"]
        text = texts.item(changed.input_id, name)
        words = f" ({', '.join(parts)})" if parts else ""
        return shown(name, _TEXT) + words + ("" if text is None else f"  {shown(text, _TEXT)}")

    def change(changed: Changed) -> str:
        parts: list[str] = [changed.kind or "no label"]
        parts += ["new"] if getattr(changed, "new", False) else []  # of a gate
        parts += [] if changed.gap is None else [f"reference's gap {changed.gap:.4g}"]
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


_WORDS = (
    "Each score is that of its own model; the two are not compared. gap: how far the first answer leads the second. "
    "separation: the gap, divided by twice the largest change of a score; above 1 none can overturn the first answer."
)


def counts_of(changed: Sequence[Changed]) -> dict[str, int]:
    """Number of inputs for each kind of change; empty without labels."""
    kinds = [change.kind for change in changed]
    return {} if set(kinds) <= {None} else {name: kinds.count(name) for name in KINDS}


def changes_grid(
    record: Mapping[str, Any],
    evidence: Evidence,
    changed: Sequence[Changed],
    listed: Sequence[Changed],
    texts: Texts,
    *,
    k: int = 1,
) -> Grid:
    """Show `listed`, which are some of the changed inputs of a run."""
    what, parts = counted(len(changed), "changed input"), ""
    if k > 1:  # of first answers the verdict has these counts
        what = f"{counted(len(changed), 'input')} whose first {k} changed"
        parts = ", ".join(f"{count:,} {name}" for name, count in counts_of(changed).items())
    worst = f"The worst {len(listed):,} of " if 0 < len(listed) < len(changed) else ""
    grid = table(
        changed_columns(texts, exact=evidence.exact, classes=answers(record) != "top-1"),
        listed,
        title=f"{worst}{what}{f' ({parts})' if parts else ''}",
        lines=[
            *([f"{texts.told[0].upper()}{texts.told[1:]}"] if listed and texts.told and not texts.inputs else []),
            *([_WORDS] if any(change.separation is not None for change in listed) else []),
        ],
    )
    return replace(grid, plain=[line for n, row in enumerate(grid.rows, start=1) for line in _lines(n, *row)])


def _lines(number: int, name: str, reference: str, candidate: str, change: str) -> Iterator[str]:
    yield f"\n{number:<10} {name}   {change}"
    yield f"reference  {reference}"
    yield f"candidate  {candidate}"
