"""The candidate as it is deployed: embeddings at a precision, and an approximate index in front of them.

The reference is always searched exactly in float32. For the candidate three things are kept apart: the score of every
document by its stored codes, the ranking by exhaustive search of these codes, and the ranking that the index returns.
Without an index the last two are the same.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.base.errors import UnsupportedError
from quantdrift.scoring.indexes import DEFAULT_LIMIT, SearchIndex
from quantdrift.scoring.similarity import Similarity, prepare
from quantdrift.scoring.stages import VectorStage
from quantdrift.scoring.state import Block, ScoreState, joined
from quantdrift.scoring.stored import BITS, Stored, on_ranges
from quantdrift.scoring.streamed import QUERY_BLOCK, all_scores
from quantdrift.scoring.topk import EMPTY, pack

_ROOM = 1 << 25
"""Most scores of one kind in memory."""
_FEW = 1_000
"""Documents below which a search by an index looks at a large part of them."""
_TIMED = 32
"""Number of queries that are timed."""
_FITTED = (64, 2048)
"""Most queries and documents in the fit that maps scores of codes to the reference's scale."""


def score_deployed(
    stages: Sequence[VectorStage],
    reference: tuple[Any, Any],
    candidate: tuple[Any, Any],
    *,
    similarity: Similarity,
    k: int,
    excluded: NDArray[Any] | None = None,
    ids: Sequence[str] = (),
    progress: Callable[[int], None] | None = None,
) -> ScoreState:
    """Score both arms, and rank the candidate's documents as its stages do.

    Args:
        stages: stages of the candidate between embeddings and results.
        reference: queries [n_queries, dim] and documents [n_docs, dim], as the model makes them.
        candidate: likewise.
        similarity: the score of two embeddings.
        k: ranks to keep.
        excluded: int64 [n_queries], one document position per query that does not count, or -1.
        ids: ids of the documents, for an index that exists already.
        progress: called with the number of queries done since its last call.

    Raises:
        UnsupportedError: a stage cannot be applied to these embeddings.
    """
    cpu = torch.device("cpu")
    queries, documents = (prepare(part, similarity, cpu) for part in reference)
    kept, plain = (_cut(stages, both, similarity) for both in (candidate, reference))
    kept = replace(kept, ids=ids)
    for stage in stages:
        kept = stage.stored(kept, plain.documents.numpy())
    with ExitStack() as opened:
        indexes = [index for stage in stages if (index := stage.index(kept, similarity)) is not None]
        for made in indexes:
            opened.callback(made.close)
        if len(indexes) > 1:
            raise UnsupportedError(
                "two stages of the scheme give an index each, and one is searched; leave one of them out"
            )
        index, first = indexes[0] if indexes else None, max(stage.first for stage in stages)
        listed = index is not None and not index.known
        if listed and first:
            raise UnsupportedError(
                "+rescore= orders by vectors that this index does not give; leave it out, and let +search= say how the "
                "engine itself rescores"
            )
        decoded = kept.decoded() if first else None
        scorer = _Scorer(first, kept, index, similarity, decoded)
        scale = None if listed else scorer.scale(queries, documents)
        n_docs = len(documents)
        block = max(1, min(QUERY_BLOCK, _ROOM // n_docs))
        states, exact = [], []
        for at in range(0, len(queries), block):
            rows = slice(at, at + block)
            full = all_scores(queries[rows], documents, similarity)
            skip = None if excluded is None else torch.from_numpy(np.asarray(excluded[rows], dtype=np.int64))
            state, other = scorer.ranked(rows, full, scale, k, skip)
            states.append(state)
            exact += [] if other is None else [other]
            if progress is not None:
                progress(len(full))
        record: dict[str, Any] = {
            "precision": kept.precision or "float32",
            "dim": int(kept.documents.shape[1]),
            "bytes_per_document": kept.bits / 8,
            "scale": None if scale is None else list(scale),
            "returned": DEFAULT_LIMIT,
            "rescored": first or None,
            "index": None if index is None else _described(index, n_docs),
        }
        for stage in stages:
            record |= stage.record()
        return replace(
            joined(states),
            exact=joined(exact) if exact else None,
            told=record,
            notes=(*on_ranges(kept, n_docs), *(() if index is None else (*_on_index(record, n_docs), *index.notes))),
            listed=listed,
            times=None if index is None else _times(index, kept, decoded, first),
        )


def _on_index(told: Mapping[str, Any], n_docs: int) -> Iterator[str]:
    """Say where an index says little of a larger one, and where it stores more than the codes that it was given."""
    name, size, codes = told["index"]["name"], told["index"]["bytes_per_document"], told["bytes_per_document"]
    if n_docs < _FEW:
        larger = "says little of a larger corpus, in which an index misses more: measure again there"
        yield f"{name} over {n_docs:,} documents {larger}"
    if told["precision"] != "float32" and size is not None and size >= 4 * told["dim"]:
        itself = re.sub(r"^(HNSW\d*).*", r"\1_SQ8", name) if "HNSW" in name else name.replace("Flat", "SQ8")
        instead = f". For bytes inside the index: +index={itself}, without +emb=" if ":" not in name else ""
        yield (
            f"{name} keeps what +emb={told['precision']} gives it as float32, so nothing is saved: {size:,.0f} bytes a "
            f"document, {codes:,.0f} without an index{instead}"
        )


def _described(index: SearchIndex, n_docs: int) -> dict[str, Any]:
    """Describe the index, with its bytes per document."""
    told = index.describe()
    return {**told, "bytes_per_document": None if told["bytes"] is None else told["bytes"] / n_docs}


def _times(index: SearchIndex, kept: Stored, decoded: Tensor | None, first: int) -> dict[str, float]:
    """Return the median seconds of a single query, by the index and by exact search, in this process.

    The index also finds the documents to rescore, and these are scored again.
    """
    some = kept.queries[: _TIMED + 1]
    wanted = min(index.returns or DEFAULT_LIMIT, len(kept.documents))

    def searched(query: Tensor) -> object:
        positions = index.search(query[None].numpy(), min(max(wanted, first), len(kept.documents))).positions[0]
        return None if decoded is None else (decoded[positions] @ query).topk(min(wanted, len(positions)))

    searches: dict[str, Callable[[Tensor], object]] = {
        "index": searched,
        "exact": lambda query: (kept.documents @ query).topk(wanted),
    }
    seconds: dict[str, float] = {}
    for name, search in searches.items():
        taken = []
        for query in some:
            start = perf_counter()
            search(query)
            taken.append(perf_counter() - start)
        seconds[name] = float(np.median(taken[1:] or taken))  # the first one warms up
    return {**seconds, "ratio": seconds["index"] / seconds["exact"]}


def _cut(stages: Sequence[VectorStage], arm: tuple[Any, Any], similarity: Similarity) -> Stored:
    """Return an arm's embeddings, shortened by the stages but not coded yet."""
    queries, documents = (np.asarray(side) for side in arm)
    for stage in stages:
        queries, documents = stage.vectors(queries), stage.vectors(documents)
    return Stored.plain(queries, documents, similarity)


@dataclass(frozen=True, slots=True)
class _Scorer:
    """Computes scores and rankings of the candidate, for a block of queries at a time."""

    first: int
    stored: Stored
    index: SearchIndex | None
    similarity: Similarity
    decoded: Tensor | None

    def final(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the scores float32 [n, n_docs] that find documents, and the scores that rank them in the end.

        Scores of coded documents are in units of the codes.
        """
        queries = self.stored.queries[rows]
        if self.index is None or self.index.lossless:
            scores = self.stored.rounded(all_scores(queries, self.stored.documents, self.similarity))
        else:
            scores = torch.from_numpy(self.index.scores(queries.numpy()))
        if self.decoded is None:
            return scores, scores
        return scores, all_scores(self.stored.exact_queries[rows], self.decoded, self.similarity)

    def scale(self, queries: Tensor, documents: Tensor) -> tuple[float, float] | None:
        """Return slope and offset that map scores of codes to the reference's scale; None if they are on it already.

        Ranks do not depend on them. The slope is a least-squares fit of the reference's scores to the candidate's
        within queries; the offset is the same for all queries.
        """
        lossy = self.index is not None and not self.index.lossless
        if not self.stored.coded and not lossy:
            return None
        if self.decoded is not None and self.stored.precision not in BITS:
            return None  # in units of embeddings again
        n_queries, n_docs = len(queries), len(documents)
        some = np.unique(np.linspace(0, n_queries - 1, min(n_queries, _FITTED[0])).astype(int))
        columns = np.unique(np.linspace(0, n_docs - 1, min(n_docs, _FITTED[1])).astype(int))
        full, low = [], []
        for row in some.tolist():
            rows = slice(row, row + 1)
            full.append(all_scores(queries[rows], documents, self.similarity)[0, columns].double())
            low.append(self.final(rows)[1][0, columns].double())
        once, coded = torch.stack(full), torch.stack(low)
        left, right = once - once.mean(1, keepdim=True), coded - coded.mean(1, keepdim=True)
        variance = float(right.square().sum())
        slope = float((left * right).sum()) / variance if variance else 1.0
        slope = slope if slope > 0 else 1.0
        return slope, float(once.mean() - slope * coded.mean())

    def ranked(
        self, rows: slice, full: Tensor, scale: tuple[float, float] | None, k: int, skip: Tensor | None
    ) -> tuple[ScoreState, ScoreState | None]:
        """Return the state with the final ranking; if an index gave it, also the state of exhaustive search.

        Args:
            rows: rows of the queries.
            full: the reference's scores [n, n_docs].
            scale: slope and offset for the candidate's scores.
            k: ranks to keep.
            skip: [n], one document position per query that does not count, or -1.
        """
        if self.index is not None and not self.index.known:
            return self._listed(rows, full, k, skip), None
        search_scores, score = self.final(rows)
        if scale is not None:
            score = score * scale[0] + scale[1]
        state = _scored(full, score, k, skip)
        if self.index is None and self.decoded is None:
            return state, None
        depth = min(max(k, self.first), full.shape[1])
        top = torch.from_numpy(_scored(full, search_scores, depth, skip).candidate_top()[0])
        exact = _with_list(state, self._reordered(top, score), full, score)
        if self.index is None:
            return exact, None
        places, _ = self._returned(rows, depth, skip)
        return _with_list(state, self._reordered(places, score), full, score), exact

    def _returned(self, rows: slice, depth: int, skip: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the positions [n, depth] that the index finds, without excluded ones, and scores if it gives any."""
        assert self.index is not None  # else there is nothing to ask
        asked = min(depth, max(self.index.returns or depth, self.first))
        # one more if one may be excluded, so that all lists have the same length
        found = self.index.search(self.stored.queries[rows].numpy(), asked + (skip is not None))
        places = torch.from_numpy(found.positions)
        scores = None if found.scores is None else torch.from_numpy(found.scores)
        if skip is not None:
            places, scores = _without(places, scores, skip)

        def deep(part: Tensor, value: float) -> Tensor:
            return torch.nn.functional.pad(part[:, :asked], (0, depth - min(asked, part.shape[1])), value=value)

        return deep(places, -1), None if scores is None else deep(scores, torch.nan)

    def _listed(self, rows: slice, full: Tensor, k: int, skip: Tensor | None) -> ScoreState:
        """Return the state for an index that gives scores only of the documents that it returns.

        The extremes of delta are over these documents; `n_items` counts the documents in either list.
        """
        state = _scored(full, full, k, skip)
        places, values = self._returned(rows, min(k, full.shape[1]), skip)
        assert values is not None  # an index that is not `known` gives scores
        n_docs = full.shape[1]
        score = torch.full((len(full), n_docs + 1), torch.nan)  # the last column takes empty places
        score = score.scatter_(1, torch.where(places < 0, n_docs, places), values)[:, :n_docs]
        reference = torch.from_numpy(state.reference_top()[0])
        paired = score.gather(1, reference.clamp_min(0))
        known, delta = ~score.isnan(), score - full
        return replace(
            _with_list(state, places, full, score),
            reference_paired=paired,
            delta_min=delta.masked_fill(~known, torch.inf).amin(1).masked_fill(~known.any(1), 0.0),
            delta_max=delta.masked_fill(~known, -torch.inf).amax(1).masked_fill(~known.any(1), 0.0),
            n_items=known.sum(1) + ((reference >= 0) & paired.isnan()).sum(1),
        )

    def _reordered(self, positions: Tensor, score: Tensor) -> Tensor:
        """Sort the first places of a list by the scores; ties go to the lower position."""
        if not self.first:
            return positions
        head = positions[:, : self.first]
        keys = pack(score.gather(1, head.clamp_min(0)), head.clamp_min(0)).masked_fill(head < 0, EMPTY)
        return torch.cat([head.gather(1, keys.argsort(dim=1, descending=True)), positions[:, self.first :]], dim=1)


def as_ranked(scores: NDArray[Any]) -> NDArray[np.float32]:
    """Lower every score [n, k] of a list that is not below the score before it.

    A harness sorts by score, and ties by name. The list of a deployment has to keep its order, also if codes tie or
    only its first places were scored again.
    """
    lowered = np.array(scores, dtype=np.float32)
    for place in range(1, lowered.shape[1]):
        before = lowered[:, place - 1]
        above = lowered[:, place] >= before
        lowered[above, place] = np.nextafter(before[above], np.float32(-np.inf))
    return lowered


def _scored(full: Tensor, low: Tensor, k: int, skip: Tensor | None) -> ScoreState:
    """Return the state of scores [n, n_docs] of both arms."""
    block = Block(len(full), k, full.device)
    block.add(full.clone(), low.clone(), torch.empty_like(full), 0, skip)
    return block.finish()


def _with_list(state: ScoreState, positions: Tensor, full: Tensor, score: Tensor) -> ScoreState:
    """Replace the candidate's list in a state."""
    k = state.candidate_keys.shape[1]
    places = torch.nn.functional.pad(positions[:, :k], (0, max(0, k - positions.shape[1])), value=-1)
    missing, places = places < 0, places.clamp_min(0)
    keys = pack(score.gather(1, places), places).masked_fill(missing, EMPTY)
    return replace(state, candidate_keys=keys, candidate_paired=full.gather(1, places))


def _without(positions: Tensor, scores: Tensor | None, skip: Tensor) -> tuple[Tensor, Tensor | None]:
    """Remove the excluded position from each list; later places move up."""
    gone = (positions == skip[:, None]) & (skip[:, None] >= 0)
    order = gone.to(torch.int8).argsort(dim=1, stable=True)
    return positions.masked_fill(gone, -1).gather(1, order), None if scores is None else scores.gather(1, order)
