"""The table of changed inputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from quantdrift.base.display import shown
from quantdrift.evidence.record import Evidence
from quantdrift.finished.texts import Texts
from quantdrift.runs.changes import KINDS, Changed
from quantdrift.runs.identity import classifies
from quantdrift.show.tables import Column, Grid, Kind, table

_TEXT = 240
"""Characters of a text on a terminal at most."""
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("rank_before", "rank_after"), "count"),
    **dict.fromkeys(("was_right", "is_right"), "flag"),
    **dict.fromkeys(("gap", "score_before", "score_after", "separation"), "number"),
}
"""Kinds of those fields of a changed input that are not words."""


def changed_columns(texts: Texts, *, exact: bool) -> list[Column]:
    """Columns for the input, the answers of both arms and the change; JSON and files have every field and whole texts.

    Args:
        texts: the texts of inputs and items.
        exact: whether separations are exact; of truncated lists they are upper bounds.
    """

    def named(changed: Changed) -> str:
        text = texts.inputs.get(changed.input_id)
        return shown(changed.input_id) + ("" if text is None else f": {shown(text, _TEXT)}")

    def answer(arm: str, other: str, changed: Changed) -> str:
        """The first answer of an arm with its score, relevance, rank in the other arm, and text."""
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
    what = f"other first {k}" if k > 1 else "another class" if classifies(record) else "another top-1"
    parts = ", ".join(f"{count:,} {name}" for name, count in counts_of(changed).items())
    lines = (
        [f"{len(listed):,} of {len(changed):,} are shown; --all shows all"] if 0 < len(listed) < len(changed) else []
    )
    grid = table(
        changed_columns(texts, exact=evidence.exact),
        listed,
        title=f"{shown(record['spec'])} on {shown(record['data']['name'])}: {len(changed):,} of {evidence.n_inputs:,} "
        f"inputs have {what}{f' ({parts})' if parts else ''}",
        lines=[*lines, f"{texts.told[0].upper()}{texts.told[1:]}"] if changed else [],
    )
    return replace(grid, plain=[line for n, row in enumerate(grid.rows, start=1) for line in _lines(n, *row)])


def _lines(number: int, name: str, reference: str, candidate: str, change: str) -> Iterator[str]:
    yield f"\n{number:<10} {name}   {change}"
    yield f"reference  {reference}"
    yield f"candidate  {candidate}"
