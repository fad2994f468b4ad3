"""The inputs whose answer changed, the worst first: what gave way to what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.evidence import Evidence

__all__ = ["Changed", "changed_inputs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An input whose first answer changed.

    Attributes:
        input_id: its name.
        before: the reference's first answer.
        after: the candidate's.
        rank_before: rank that the candidate's first answer has in the reference's list; None if it
            is not among the ranks kept.
        rank_after: rank that the reference's first answer has in the candidate's list.
        was_right: whether the reference's was relevant; None without labels.
        is_right: likewise the candidate's.
        lead: the reference's gap between ranks 1 and 2; None if it is not known.
    """

    input_id: str
    before: str | None
    after: str | None
    rank_before: int | None
    rank_after: int | None
    was_right: bool | None
    is_right: bool | None
    lead: float | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


def changed_inputs(evidence: Evidence) -> list[Changed]:
    """The inputs that flipped: first right answers that became wrong, and the largest leads first.

    Args:
        evidence: of one part.
    """
    rows = np.flatnonzero(perturbation.flips(evidence))
    gaps = perturbation.gap(evidence)
    found = [_changed(evidence, int(row), float(gaps[row])) for row in rows]
    return sorted(found, key=_how_bad)


def _how_bad(changed: Changed) -> tuple[int, float]:
    if changed.was_right is None:
        kind = 1
    else:
        kind = 1 + int(bool(changed.is_right)) - int(changed.was_right)
    return kind, -(changed.lead or 0.0)


def _changed(evidence: Evidence, row: int, gap: float) -> Changed:
    before = int(evidence.reference_top.items[row, 0])
    after = int(evidence.candidate_top.items[row, 0])
    labels = {} if evidence.judgements is None else evidence.judgements.of(row)
    return Changed(
        input_id=str(evidence.input_ids[row]),
        before=_name(evidence, before),
        after=_name(evidence, after),
        rank_before=_rank(evidence.reference_top.items[row], after),
        rank_after=_rank(evidence.candidate_top.items[row], before),
        was_right=labels.get(before, 0) > 0 if labels else None,
        is_right=labels.get(after, 0) > 0 if labels else None,
        lead=None if math.isnan(gap) else gap,
    )


def _name(evidence: Evidence, item: int) -> str | None:
    return str(evidence.item_ids[item]) if item >= 0 else None


def _rank(items: NDArray[np.int64], item: int) -> int | None:
    places = np.flatnonzero(items == item)
    return int(places[0]) + 1 if item >= 0 and len(places) else None
