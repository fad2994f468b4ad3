"""The inputs whose answer changed, the worst first: what gave way to what."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift import perturbation
from quantdrift.errors import RunError
from quantdrift.evidence import Evidence, Top

__all__ = ["KINDS", "Changed", "Kind", "changed_inputs"]

Kind = Literal["harmful", "neutral", "beneficial"]
KINDS: tuple[Kind, ...] = ("harmful", "neutral", "beneficial")
"""Relevant items among the first k: fewer than before, as many, more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An input whose first answer changed; with a cut-off k, the set of its first k.

    Attributes:
        input_id: its name.
        before: the reference's first answer; with a cut-off, the first that left the first k, a
            relevant one if there is any.
        after: the candidate's; likewise the first that came in.
        rank_before: rank that `after` has in the reference's list; None if it is not among the
            ranks kept.
        rank_after: rank that `before` has in the candidate's list.
        was_right: whether `before` is relevant; None without labels.
        is_right: likewise `after`.
        lead: the reference's gap between ranks k and k + 1; None if it is not known.
        kind: one of KINDS; None without labels.
        score_before: what the reference gave to `before`; None where answers have no scores.
        score_after: what the candidate gave to `after`.
        separation: that gap in units of 2 epsilon; None if it is not known.
    """

    input_id: str
    before: str | None
    after: str | None
    rank_before: int | None
    rank_after: int | None
    was_right: bool | None
    is_right: bool | None
    lead: float | None
    kind: Kind | None = None
    score_before: float | None = None
    score_after: float | None = None
    separation: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


def changed_inputs(evidence: Evidence, k: int = 1) -> list[Changed]:
    """The inputs whose first k changed: relevant items lost first, and the largest leads first.

    Args:
        evidence: of one part.
        k: how many of the first ranks are looked at, as a set.

    Raises:
        RunError: fewer ranks are stored.
    """
    if k > evidence.depth and evidence.cut_short:
        raise RunError(f"expected at most {evidence.depth} ranks, which are stored; got {k}")
    rows = np.flatnonzero(~perturbation.top_set_kept(evidence, k))
    scores = evidence.reference_top.reference_scores.astype(np.float64)
    known = scores.shape[1] > k
    gaps = scores[:, k - 1] - scores[:, k] if known else np.full(len(scores), np.nan)
    ratios = perturbation.cut_separation(evidence, k)
    found = [_changed(evidence, row, k, gaps[row], ratios[row]) for row in rows.tolist()]
    return sorted(found, key=_how_bad)


def _how_bad(changed: Changed) -> tuple[int, float]:
    return KINDS.index(changed.kind or "neutral"), -(changed.lead or 0.0)


def _changed(evidence: Evidence, row: int, k: int, gap: float, ratio: float) -> Changed:
    reference, candidate = evidence.reference_top, evidence.candidate_top
    firsts = [
        [item for item in top.items[row, :k].tolist() if item >= 0]
        for top in (reference, candidate)
    ]
    labels = {} if evidence.judgements is None else evidence.judgements.of(row)
    relevant = {item for item, grade in labels.items() if grade > 0}
    before, after = (
        _telling((item for item in here if item not in there), relevant)
        for here, there in (firsts, reversed(firsts))
    )
    kind: Kind | None = None
    if labels:
        was, now = (len(relevant.intersection(items)) for items in firsts)
        kind = "harmful" if now < was else "beneficial" if now > was else "neutral"
    return Changed(
        input_id=str(evidence.input_ids[row]),
        kind=kind,
        before=_name(evidence, before),
        after=_name(evidence, after),
        score_before=_score(reference, reference.reference_scores, row, before),
        score_after=_score(candidate, candidate.candidate_scores, row, after),
        rank_before=_rank(reference, row, after),
        rank_after=_rank(candidate, row, before),
        was_right=before in relevant if labels else None,
        is_right=after in relevant if labels else None,
        lead=_finite(gap),
        separation=_finite(ratio),
    )


def _telling(items: Iterable[int], relevant: set[int]) -> int:
    """The first relevant item, else the first; -1 if there is none."""
    listed = list(items)
    return next((item for item in listed if item in relevant), listed[0] if listed else -1)


def _name(evidence: Evidence, item: int) -> str | None:
    return str(evidence.item_ids[item]) if item >= 0 else None


def _rank(top: Top, row: int, item: int) -> int | None:
    places = np.flatnonzero(top.items[row] == item)
    return int(places[0]) + 1 if item >= 0 and len(places) else None


def _score(top: Top, scores: NDArray[np.float32], row: int, item: int) -> float | None:
    rank = _rank(top, row, item)
    return None if rank is None else _finite(float(scores[row, rank - 1]))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
