"""The changed inputs of a page: harmful ones first, with both rankings, and with texts as far as there is room."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from quantdrift.base.display import clean, shorten, shown
from quantdrift.evidence.record import Evidence
from quantdrift.finished.texts import Texts
from quantdrift.report.page import LARGEST, json_size
from quantdrift.runs.changes import KINDS, Changed

MOST = 10_000
"""Inputs of one page at most."""
_RANKS, _MANY, _RANKS_OF_MANY = 10, 2_000, 5
"""Ranks of each list, the number of inputs above which fewer ranks are shown, and how many then."""
_MISSED = 3
"""Relevant items below these ranks that are named at most."""
_INPUT, _ITEM, _NAME = 2_000, 700, 120
"""Characters of an input's text, of an item's text and of a name at most."""
_ROOM = LARGEST - 2_500_000
"""Bytes of the list at most; the rest is for the charts and the scripts that draw them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """The different items in the list; a choice belongs to its question."""

    texts: Texts
    places: dict[tuple[str, str], int] = field(default_factory=dict)

    def place(self, input_id: str, item: str | None) -> int | None:
        """The number of an item; None if there is no item."""
        owner = input_id if input_id in self.texts.choices else ""
        return None if item is None else self.places.setdefault((owner, item), len(self.places))


def changes_of(
    changed: Sequence[Changed], *, arms: tuple[str, str], right: str, texts: Texts, evidence: Evidence
) -> dict[str, Any]:
    """Changed inputs as JSON, in order.

    Args:
        changed: the inputs.
        arms: names of the reference and the candidate.
        right: the word for a right answer: "relevant", "the right class".
        texts: the texts of inputs and items.
        evidence: the evidence of the run, for both rankings.
    """
    items = Items(texts=texts)
    kinds = Counter(change.kind for change in changed)
    listed = [_entry_of(change, items) for change in changed[:MOST]]
    _add_rankings(listed, changed, evidence, items)
    content = {
        "arms": list(arms),
        "right": right,
        "labelled": bool(set(kinds) - {None}),
        "kinds": {kind: kinds[kind] for kind in KINDS if kinds[kind]},
        "changed": listed,
    }
    return _with_texts(content, changed, items)


def _with_texts(content: dict[str, Any], changed: Sequence[Changed], items: Items) -> dict[str, Any]:
    """The content with the texts that fit into a page, the names of the items, and notes on what is left out."""
    notes = [f"The worst {MOST:,} of {len(changed):,} are listed."] if len(changed) > MOST else []
    inputs, texts_of_items, left_out = _texts(changed[:MOST], items, _ROOM - json_size(content))
    for entry, text in zip(content["changed"], inputs, strict=True):
        entry.update({} if text is None else {"text": text})
    names = [shown(name, _NAME) for _, name in items.places]
    notes += [f"There is no room for {left_out:,} of the texts."] if left_out else []
    notes += [f"{items.texts.told[:1].upper()}{items.texts.told[1:]}."] if items.texts.told else []
    return {**content, "items": [list(item) for item in zip(names, texts_of_items, strict=True)], "notes": notes}


def _entry_of(change: Changed, items: Items) -> dict[str, Any]:
    """A changed input, without its text and rankings."""
    facts = {
        "kind": change.kind,
        "before": items.place(change.input_id, change.before),
        "after": items.place(change.input_id, change.after),
        **{name: getattr(change, name) for name in ("rank_before", "rank_after", "was_right", "is_right")},
        **{name: _number(getattr(change, name)) for name in ("gap", "separation", "score_before", "score_after")},
    }
    # links use the name; where two long names are shortened to the same text, a link finds the first
    name = shorten(clean(change.input_id), _NAME)
    return {"id": name, **{name: value for name, value in facts.items() if value is not None}}


def _add_rankings(listed: list[dict[str, Any]], changed: Sequence[Changed], evidence: Evidence, items: Items) -> None:
    """Add the first ranks of both arms, and the relevant items below them.

    A rank is the item, its score by the reference and by the candidate, its grade, and its rank in the other arm.
    """
    depth = min(_RANKS if len(changed) <= _MANY else _RANKS_OF_MANY, evidence.depth)
    rows = evidence.rows_of(change.input_id for change in changed).tolist()
    tops = {"reference": evidence.reference_top, "candidate": evidence.candidate_top}
    for entry, change, row in zip(listed, changed, rows, strict=False):
        labels = {} if evidence.judgements is None else evidence.judgements.of(row)
        ranks = {
            arm: {item: rank for rank, item in enumerate(top.items[row].tolist(), 1) if item >= 0}
            for arm, top in tops.items()
        }

        def place(item: int, input_id: str = change.input_id) -> int | None:
            return items.place(input_id, str(evidence.item_ids[item]))

        for arm, other in (("reference", "candidate"), ("candidate", "reference")):
            scores = (tops[arm].reference_scores[row].tolist(), tops[arm].candidate_scores[row].tolist())
            entry[arm] = [
                [place(item), *map(_number, both), labels.get(item), ranks[other].get(item)]
                for item, *both in zip(islice(ranks[arm], depth), *scores, strict=False)
            ]
        above = {item for arm in tops for item in islice(ranks[arm], depth)}
        below = [item for item, grade in labels.items() if grade > 0 and item not in above]
        if below:
            entry["missed"] = [[place(item), *(ranks[arm].get(item) for arm in tops)] for item in below[:_MISSED]]


def _texts(changed: Sequence[Changed], items: Items, room: int) -> tuple[list[str | None], list[str | None], int]:
    """The texts of inputs and of items that fit, those of the worst inputs first, and the number that do not."""
    texts, left_out = items.texts, 0

    def fitting(text: str | None, most: int) -> str | None:
        nonlocal room, left_out
        if text is None:
            return None
        cut = _cut(text, most)
        room -= json_size(cut)
        if room < 0:
            left_out += 1
            return None
        return cut

    inputs = [fitting(texts.inputs.get(change.input_id), _INPUT) for change in changed]
    return inputs, [fitting(texts.item(owner, item), _ITEM) for owner, item in items.places], left_out


def _cut(text: str, most: int) -> str:
    line = clean(text[: 4 * most])
    if len(text) <= 4 * most and len(line) <= most:
        return line
    return f"{line[:most]}… ({len(text):,} characters, of which the first {most:,} are shown)"


def _number(value: float | None) -> float | None:
    """Round to six digits, the precision of float32 scores."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
