"""Embeddings of both arms to a state, a tile of documents at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.base.errors import ScoreError
from quantdrift.scoring.similarity import Similarity, prepare, scores_from_products
from quantdrift.scoring.state import Block, ScoreState, at_positions, joined, with_rows
from quantdrift.scoring.topk import EMPTY, unpack

# --- Embeddings of both arms to a state, a tile of documents at a time ----------------------------

# 1,024 documents x 384 dimensions and the 1,024 x 1,024 scores they give stay in a core's L2 cache;
# wider tiles measured slower. The width is part of the result's definition (see `_tiles`).
TILE = 1024
WIDE_TILE = 16384  # an accelerator needs more work per call than a core's cache holds
QUERY_BLOCK = 1024
# In a long pass most work is items that enter the top-K only because it is still filling; a sample
# tells beforehand about how good the K-th best will be.
_PRIME_SAMPLE = 2048
_PRIME_FROM = 200  # documents per kept item from which the sample pays for itself


def all_scores(queries: Tensor, documents: Tensor, similarity: Similarity) -> Tensor:
    """Scores float32 [n_queries, n_docs] of prepared embeddings, the same numbers as a streamed pass has."""
    n_docs, tile = len(documents), TILE if documents.device.type == "cpu" else WIDE_TILE
    scores = torch.empty((len(queries), n_docs), device=documents.device)
    product = torch.empty((len(queries), tile), device=documents.device)
    with full_precision():
        for at in range(0, n_docs, tile):
            part = documents[at : at + tile]
            width = len(part)
            part = torch.nn.functional.pad(part, (0, 0, 0, tile - width))  # as `_Pass.documents_at` does
            scores_from_products(queries, part, similarity, out=product)
            scores[:, at : at + width] = product[:, :width]
    return scores


def score_embeddings(
    reference_queries: Any,
    candidate_queries: Any,
    reference_documents: Any,
    candidate_documents: Any,
    *,
    similarity: Similarity | str = Similarity.COSINE,
    k: int = 200,
    excluded: NDArray[Any] | None = None,
    offset: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> ScoreState:
    """Score every query against every document in both arms, streamed over the documents.

    delta = candidate score - reference score, in float32, for every (query, document).

    Args:
        reference_queries: [n_queries, dim] float array, memory map or tensor.
        candidate_queries: [n_queries, dim_c] likewise; dim_c may differ from dim.
        reference_documents: [n_docs, dim]; read a tile at a time, so a memory map stays on disk.
        candidate_documents: [n_docs, dim_c]; the same object as `reference_documents` when only the
            query side is quantized.
        similarity: how embeddings become scores: "cosine", "dot" or "euclidean".
        k: how many items of either ranking to keep.
        excluded: int64 [n_queries], per query one document position that does not count (a
            self-match), or -1. Positions count from `offset`, as in the result.
        offset: position of the first document, when this call sees a part of a larger corpus.
        device: where the products are computed.
        progress: called with the number of documents done since its last call.

    Returns:
        The state of all queries. Memory beyond the inputs grows with n_queries * k, not n_docs.

    Raises:
        ScoreError: shapes do not fit, or a score is not finite.
        UnknownNameError: there is no such similarity.
    """
    n_docs = _check_shapes(reference_queries, candidate_queries, reference_documents, candidate_documents, k)
    device, similarity = torch.device(device), Similarity.of(similarity)
    queries = (prepare(reference_queries, similarity, device), prepare(candidate_queries, similarity, device))
    documents = (reference_documents, candidate_documents)
    skips = skipped(excluded, len(queries[0]), device)
    plan = _Pass(queries, documents, similarity, k, skips, offset, device)
    with full_precision():
        bars = plan.bars() if n_docs >= _PRIME_FROM * k else None
        state = plan.run(bars, progress)
        if bars is not None:
            short = _at_bar(state.reference_keys, bars[0]) | _at_bar(state.candidate_keys, bars[1])
            if bool(short.any()):  # a bar was too high for these queries: score them without one
                state = with_rows(state, short, plan.rows(short).run(None, None))
    return check_state(state)


@contextmanager
def full_precision() -> Iterator[None]:
    """Inside, products are in float32, not in what a program may have allowed instead (TF32, bfloat16)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass over the documents for some queries."""

    queries: tuple[Tensor, Tensor]
    documents: tuple[Any, Any]
    similarity: Similarity
    k: int
    skips: Tensor | None
    offset: int
    device: torch.device

    def rows(self, mask: Tensor) -> Self:
        """Return a pass like this for some of the queries."""
        queries = (self.queries[0][mask], self.queries[1][mask])
        return replace(self, queries=queries, skips=None if self.skips is None else self.skips[mask])

    @property
    def tile(self) -> int:
        """Documents per product."""
        return TILE if self.device.type == "cpu" else WIDE_TILE

    def documents_at(self, arm: int, at: int, width: int) -> Tensor:
        """Documents at..at+width of one arm, padded with zero rows to the full tile.

        The padding keeps the shape of every product the same, so that a matrix library takes the same path for every
        document: equal vectors get equal scores wherever they stand.
        """
        tile = prepare(self.documents[arm][at : at + width], self.similarity, self.device)
        if width < self.tile:
            tile = torch.nn.functional.pad(tile, (0, 0, 0, self.tile - width))
        return tile

    def bars(self) -> tuple[Tensor, Tensor]:
        """Scores that the k-th best will beat almost surely, from an even sample of the documents.

        Of m sampled documents, k * m / n_docs are expected among the k best; the bar is the sample's score at that
        rank plus five standard deviations.
        """
        n_docs = len(self.documents[0])
        at = np.linspace(0, n_docs - 1, _PRIME_SAMPLE).astype(np.int64)
        expected = self.k * _PRIME_SAMPLE / n_docs
        rank = min(_PRIME_SAMPLE, int(expected + 5 * expected**0.5 + 2))
        tiles = [prepare(documents[at], self.similarity, self.device) for documents in self.documents]
        bars = torch.empty((2, len(self.queries[0])), device=self.device)
        for arm in (0, 1):
            for start in range(0, len(bars[arm]), QUERY_BLOCK):
                rows = slice(start, start + QUERY_BLOCK)
                scores = torch.empty((len(bars[arm, rows]), _PRIME_SAMPLE), device=self.device)
                scores_from_products(self.queries[arm][rows], tiles[arm], self.similarity, out=scores)
                bars[arm, rows] = scores.topk(rank, dim=1, sorted=False).values.amin(1)
        return bars[0], bars[1]

    def run(self, bars: tuple[Tensor, Tensor] | None, progress: Callable[[int], None] | None) -> ScoreState:
        """Stream all documents past all queries."""
        n_queries = len(self.queries[0])
        slices = [slice(at, at + QUERY_BLOCK) for at in range(0, n_queries, QUERY_BLOCK)]
        buffers = torch.empty((3, min(QUERY_BLOCK, n_queries), self.tile), device=self.device)
        shared = self.documents[0] is self.documents[1]
        n_docs = len(self.documents[0])
        blocks = []
        for rows in slices:
            here = None if bars is None else (bars[0][rows], bars[1][rows])
            blocks.append(Block(len(self.queries[0][rows]), self.k, self.device, here))
        for at in range(0, n_docs, self.tile):
            width = min(self.tile, n_docs - at)
            tile_r = self.documents_at(0, at, width)
            tile_c = tile_r if shared else self.documents_at(1, at, width)
            for rows, block in zip(slices, blocks, strict=True):
                sr, sc, delta = buffers[:, : len(block.n_items)]
                scores_from_products(self.queries[0][rows], tile_r, self.similarity, out=sr)
                scores_from_products(self.queries[1][rows], tile_c, self.similarity, out=sc)
                skip = None if self.skips is None else self.skips[rows] - self.offset - at
                block.add(sr[:, :width], sc[:, :width], delta[:, :width], self.offset + at, skip)
            if progress is not None:
                progress(width)
        return joined([block.finish() for block in blocks])


def _at_bar(keys: Tensor, bar: Tensor) -> Tensor:
    """Mask of queries whose k-th best does not beat the bar: the list is short, or filled by the other arm's."""
    worst = keys[:, -1]
    return (worst == EMPTY) | ~(unpack(worst)[0] > bar)


def check_state(joined: ScoreState) -> ScoreState:
    """The state, if all of its scores are finite; ScoreError names the first query otherwise."""
    counted = joined.n_items > 0
    finite = torch.isfinite(joined.delta_min) & torch.isfinite(joined.delta_max)
    if bool((counted & ~finite).any()):
        row = int((counted & ~finite).nonzero()[0, 0])
        raise ScoreError(
            f"the scores of query {row} are not all finite: embeddings this large overflow float32 "
            "under this similarity; expected finite scores. Normalize the embeddings or use cosine."
        )
    return joined


def skipped(excluded: NDArray[Any] | None, n_queries: int, device: torch.device) -> Tensor | None:
    """Per query the position that does not count, as a tensor; None where all count."""
    if excluded is None:
        return None
    positions = np.asarray(excluded, dtype=np.int64)
    if positions.shape != (n_queries,):
        raise ScoreError(f"expected one excluded position per query, shape ({n_queries},); got {positions.shape}")
    return torch.from_numpy(positions).to(device) if (positions >= 0).any() else None


def _check_shapes(rq: Any, cq: Any, rd: Any, cd: Any, k: int) -> int:
    if k < 1:
        raise ScoreError(f"expected k of at least 1; got {k}")
    shapes = [tuple(part.shape) for part in (rq, rd, cq, cd)]
    matrices = all(len(shape) == 2 and shape[0] for shape in shapes)  # noqa: PLR2004 -- two axes
    fits = matrices and (len(rq), len(rd)) == (len(cq), len(cd))
    if not fits or rq.shape[1] != rd.shape[1] or cq.shape[1] != cd.shape[1]:
        raise ScoreError(
            "expected queries [n_queries, dim] and documents [n_docs, dim] of one dim in either arm, and the same in "
            f"both; got {shapes[0]} and {shapes[1]}, and {shapes[2]} and {shapes[3]}"
        )
    return len(rd)


# --- Scores that are already there (a shortlist, logits) to a state -------------------------------


def score_matrix(
    reference_scores: NDArray[Any],
    candidate_scores: NDArray[Any],
    *,
    k: int = 200,
    positions: NDArray[Any] | None = None,
    excluded: NDArray[Any] | None = None,
) -> ScoreState:
    """The state of scores [n_queries, n_items] that are already there, of items at increasing positions.

    Per query one column, or -1, can be `excluded`: it does not count.
    """
    if reference_scores.shape != candidate_scores.shape or reference_scores.ndim != 2:  # noqa: PLR2004 -- a matrix
        raise ScoreError(
            "expected two score matrices of the same shape [n_queries, n_items]; got "
            f"{reference_scores.shape} and {candidate_scores.shape}"
        )
    if k < 1:
        raise ScoreError(f"expected k of at least 1; got {k}")
    if 0 in reference_scores.shape:
        raise ScoreError(f"nothing to score: n_queries x n_items is {reference_scores.shape}")
    reference = torch.from_numpy(np.array(reference_scores, dtype=np.float32))
    candidate = torch.from_numpy(np.array(candidate_scores, dtype=np.float32))
    # finite scores can still be further apart than float32 reaches
    if not all(t.isfinite().all() for t in (reference, candidate, candidate - reference)):
        raise ScoreError("expected finite scores; at least one is NaN or infinite")
    n_queries, n_items = reference.shape
    block = Block(n_queries, k, reference.device)
    block.add(reference, candidate, torch.empty_like(reference), 0, skipped(excluded, n_queries, reference.device))
    state = block.finish()
    if positions is None:
        return state
    if len(positions) != n_items:
        raise ScoreError(f"positions must be one increasing integer per item ({n_items}); got {len(positions)}")
    return at_positions(state, positions)


def score_ragged(
    rows: Sequence[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]], *, k: int
) -> ScoreState:
    """The state of queries with items of their own: positions, reference and candidate scores of each query."""
    if not rows:
        raise ScoreError("nothing to score: there are no queries")
    states = [
        score_matrix(reference[None, :], candidate[None, :], k=k, positions=positions)
        for positions, reference, candidate in rows
    ]
    return joined(states)
