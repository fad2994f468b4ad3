"""The state that one pass over the items keeps of the scores, and the merging of states."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.base.errors import ScoreError
from quantdrift.scoring.topk import EMPTY, PairedTopK, merge_top, pack, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreState:
    """The state that one pass keeps of the scores of `n_queries` queries against the items seen so far.

    Attributes:
        reference_keys: int64 [n_queries, k], the reference's top-K, best first, as packed (score, position);
            `topk.EMPTY` for an empty place.
        reference_paired: float32 [n_queries, k], the candidate's scores of those items.
        candidate_keys: int64 [n_queries, k], the candidate's top-K, likewise.
        candidate_paired: float32 [n_queries, k], the reference's scores of those items.
        delta_min: float32 [n_queries], least candidate-minus-reference score over all items.
        delta_max: float32 [n_queries], greatest candidate-minus-reference score over all items.
        n_items: int64 [n_queries], number of scored items.
        told: the deployment of the candidate, for run.json; None for exact search in float32.
        notes: sentences about the deployment for the output of a run.
        exact: the state with the candidate's ranking by exhaustive search of the same codes; None without an index.
        listed: whether the candidate's scores are known only for the documents that it returned.
        times: seconds per query, for run.json; None without an index.
    """

    reference_keys: Tensor
    reference_paired: Tensor
    candidate_keys: Tensor
    candidate_paired: Tensor
    delta_min: Tensor
    delta_max: Tensor
    n_items: Tensor
    told: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    exact: "ScoreState | None" = None
    listed: bool = False
    times: Mapping[str, float] | None = None

    def reference_top(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the reference's top-K as (positions, reference scores, candidate scores), all [n_queries, k].

        Positions are int64. An empty place has position -1 and scores NaN.
        """
        return _as_top(self.reference_keys, self.reference_paired)

    def exchanged(self) -> "ScoreState":
        """Exchange the rankings of the arms; the extremes of delta stay."""
        return replace(
            self,
            reference_keys=self.candidate_keys,
            reference_paired=self.candidate_paired,
            candidate_keys=self.reference_keys,
            candidate_paired=self.reference_paired,
        )

    def candidate_top(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the candidate's top-K as (positions, reference scores, candidate scores)."""
        positions, scores, paired = _as_top(self.candidate_keys, self.candidate_paired)
        return positions, paired, scores


def _as_top(keys: Tensor, paired: Tensor) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    scores, positions = unpack(keys)
    empty = keys == EMPTY
    return (
        positions.masked_fill(empty, -1).cpu().numpy(),
        scores.masked_fill(empty, math.nan).cpu().numpy(),
        paired.masked_fill(empty, math.nan).cpu().numpy(),
    )


FIELDS = tuple(field.name for field in fields(ScoreState) if field.default is MISSING)
"""Names of the arrays in a state, in order."""


def merge(left: ScoreState, right: ScoreState) -> ScoreState:
    """Merge the states of two disjoint sets of items, for the same queries.

    Merging is exactly commutative and associative, as nothing is rounded.
    """
    if left.reference_keys.shape != right.reference_keys.shape:
        raise ScoreError(
            "states merge when both hold the same queries and the same k; got shapes "
            f"{tuple(left.reference_keys.shape)} and {tuple(right.reference_keys.shape)}"
        )
    tops = [
        merge_top(*(getattr(state, f"{arm}_{part}") for state in (left, right) for part in ("keys", "paired")))
        for arm in ("reference", "candidate")
    ]
    low, high = torch.minimum(left.delta_min, right.delta_min), torch.maximum(left.delta_max, right.delta_max)
    return state_of(*tops[0], *tops[1], low, high, left.n_items + right.n_items)


def state_of(*values: Tensor) -> ScoreState:
    """Make a state of its arrays, in the order of FIELDS."""
    by_name: dict[str, Any] = dict(zip(FIELDS, values, strict=True))
    return ScoreState(**by_name)


def joined(states: Sequence[ScoreState]) -> ScoreState:
    """Join the states of several sets of queries, one after another."""
    return state_of(*(torch.cat([getattr(state, name) for state in states]) for name in FIELDS))


def at_positions(state: ScoreState, positions: NDArray[Any]) -> ScoreState:
    """Number the items of a state by `positions` [n_items], increasing, so that ties keep their order."""
    index = torch.from_numpy(np.asarray(positions, dtype=np.int64)).to(state.reference_keys.device)
    if int(index[0]) < 0 or bool((index.diff() <= 0).any()):
        raise ScoreError("positions must be one increasing integer per item, from 0 up, so that ties keep order")

    def moved(keys: Tensor) -> Tensor:
        scores, local = unpack(keys)
        there = pack(scores, index[local.clamp(0, len(index) - 1)])
        return torch.where(keys == EMPTY, keys, there)

    return replace(state, reference_keys=moved(state.reference_keys), candidate_keys=moved(state.candidate_keys))


class Block:
    """The state of one block of queries while tiles of scores are added."""

    def __init__(self, n_queries: int, k: int, device: torch.device) -> None:
        self.top = PairedTopK(n_queries, k, device)
        self.extremes = torch.tensor([[math.inf], [-math.inf]], device=device).repeat(1, n_queries)
        self.n_items = torch.zeros(n_queries, dtype=torch.int64, device=device)

    def add(self, reference: Tensor, candidate: Tensor, delta: Tensor, offset: int, skip: Tensor | None) -> None:
        """Add one tile of scores.

        `skip`: int64 [n_queries], the column that does not count; a number outside of the tile if all count.
        """
        width = reference.shape[1]
        self.n_items += width if skip is None else width - ((skip >= 0) & (skip < width)).long()
        torch.sub(candidate, reference, out=delta)
        low, high = delta, delta
        if skip is not None and len(rows := ((skip >= 0) & (skip < width)).nonzero()[:, 0]):
            columns = skip[rows]
            low, high = (delta.index_put((rows, columns), delta.new_tensor(end)) for end in (math.inf, -math.inf))
            reference[rows, columns] = candidate[rows, columns] = -math.inf
        # NaN (inf - inf, from products that overflow) passes through and is refused at the end
        self.extremes[0] = torch.minimum(self.extremes[0], low.amin(1))
        self.extremes[1] = torch.maximum(self.extremes[1], high.amax(1))
        self.top.add(reference, candidate, offset)

    def finish(self) -> ScoreState:
        """Return the state of all tiles."""
        low, high = self.extremes + 0.0  # no -0.0, whose order relative to 0.0 is undefined
        return state_of(*self.top.finish(), low, high, self.n_items)
