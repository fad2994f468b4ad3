"""The inputs of a run whose top-1 changed, and all inputs as a data frame."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from quantdrift.base.errors import RunError
from quantdrift.base.extras import extras_named
from quantdrift.base.records import Amount, Real, Some
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.metrics import parse_metric
from quantdrift.statistics.estimates import finite

if TYPE_CHECKING:
    import pandas as pd


Kind = Literal["harmful", "neutral", "beneficial"]


KINDS: tuple[Kind, ...] = ("harmful", "neutral", "beneficial")
"""Relevant items among the first k: fewer than before, as many, more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An input whose top-1 changed; with a cut-off k, the set of its first k.

    Attributes:
        input_id: its name.
        before: the reference's first answer; with a cut-off, the first that left the first k, a relevant one if there
            is any.
        after: the candidate's; likewise the first that came in.
        rank_before: rank that `after` has in the reference's list; None if it is not among the ranks kept.
        rank_after: rank that `before` has in the candidate's list.
        was_right: whether `before` is relevant; None without labels.
        is_right: likewise `after`.
        gap: the reference's gap between ranks k and k + 1; None if it is not known.
        kind: one of KINDS; None without labels.
        score_before: what the reference gave to `before`; None where answers have no scores.
        score_after: what the candidate gave to `after`.
        separation: that gap in units of 2 epsilon; None if it is not known.
    """

    input_id: str
    before: str | None
    after: str | None
    rank_before: Some | None
    rank_after: Some | None
    was_right: bool | None
    is_right: bool | None
    gap: Amount | None
    kind: Kind | None = None
    score_before: Real | None = None
    score_after: Real | None = None
    separation: Amount | None = None


def changed_inputs(evidence: Evidence, k: int = 1) -> list[Changed]:
    """The inputs whose first k changed: relevant items lost first, and the largest leads first."""
    if k > evidence.depth and evidence.cut_short:
        raise RunError(f"expected at most {evidence.depth} ranks, which are stored; got {k}")
    scores = evidence.reference_top.reference_scores.astype(np.float64)
    gaps = scores[:, k - 1] - scores[:, k] if scores.shape[1] > k else np.full(len(scores), np.nan)
    ratios = perturbation.cut_separation(evidence, k)
    rows = np.flatnonzero(~perturbation.top_set_kept(evidence, k)).tolist()
    changed = [_changed(evidence, row, k, finite(gaps[row]), finite(ratios[row])) for row in rows]
    return sorted(changed, key=lambda change: (KINDS.index(change.kind or "neutral"), -(change.gap or 0.0)))


def _changed(evidence: Evidence, row: int, k: int, gap: float | None, separation: float | None) -> Changed:
    tops = (evidence.reference_top, evidence.candidate_top)
    places = [{item: rank for rank, item in enumerate(top.items[row].tolist()) if item >= 0} for top in tops]
    firsts = [[item for item, rank in ranks.items() if rank < k] for ranks in places]
    labels = {} if evidence.judgements is None else evidence.judgements.of(row)
    relevant = {item for item, grade in labels.items() if grade > 0}
    # what left the first k, and what came in: a relevant one if there is any
    before, after = (
        next(iter(sorted(set(here) - set(there), key=lambda item: (item not in relevant, here.index(item)))), -1)
        for here, there in (firsts, firsts[::-1])
    )
    was, now = (len(relevant.intersection(items)) for items in firsts)

    def score(arm: int, item: int) -> float | None:
        scores = (tops[0].reference_scores, tops[1].candidate_scores)[arm]
        return finite(scores[row, places[arm][item]]) if item >= 0 else None

    return Changed(
        input_id=str(evidence.input_ids[row]),
        before=_name(evidence, before),
        after=_name(evidence, after),
        rank_before=places[0][after] + 1 if after in places[0] else None,
        rank_after=places[1][before] + 1 if before in places[1] else None,
        was_right=before in relevant if labels else None,
        is_right=after in relevant if labels else None,
        gap=gap,
        kind=KINDS[1 + (now > was) - (now < was)] if labels else None,
        score_before=score(0, before),
        score_after=score(1, after),
        separation=separation,
    )


def _name(evidence: Evidence, item: int) -> str | None:
    return str(evidence.item_ids[item]) if item >= 0 else None


def frame_of(evidence: Evidence, metrics: Iterable[str] = ()) -> pd.DataFrame:
    """The figures and first answers of every input as a data frame, with a column for each metric."""
    with extras_named(needed_for="Run.to_pandas"):
        import pandas as pd  # noqa: PLC0415 -- an extra
    columns: dict[str, Any] = {name: figure(evidence) for name, figure in perturbation.FIGURES.items()}
    columns["n_items"] = evidence.n_items
    labels = [{} if evidence.judgements is None else evidence.judgements.of(row) for row in range(evidence.n_inputs)]
    for arm in ("reference", "candidate"):
        top = getattr(evidence, f"{arm}_top")
        firsts = top.items[:, 0].tolist()
        columns[arm] = [_name(evidence, item) for item in firsts]
        columns[f"{arm}_score"] = getattr(top, f"{arm}_scores")[:, 0]
        # missing where an input has no labels
        relevant = [held.get(item, 0) > 0 if held else None for held, item in zip(labels, firsts, strict=True)]
        columns[f"{arm}_relevant"] = pd.array(relevant, dtype="boolean")
    for name in [metrics] if isinstance(metrics, str) else metrics:
        columns[name] = parse_metric(name).per_input(evidence)
    return pd.DataFrame(columns, index=pd.Index(evidence.input_ids, name="input_id"))
