"""Scores both arms' embeddings into a state, a tile of documents at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.base.errors import ScoreError
from quantdrift.scoring.similarity import Similarity, prepare, scores_from_products
from quantdrift.scoring.state import Block, ScoreState, at_positions, joined

# 1,024 documents x 384 dimensions and the 1,024 x 1,024 scores they give stay in a core's L2 cache;
# wider tiles measured slower. The width is part of the result's definition (see `_tiles`).
TILE = 1024
WIDE_TILE = 16384  # an accelerator needs more work per call than a core's cache holds
QUERY_BLOCK = 1024


def all_scores(queries: Tensor, documents: Tensor, similarity: Similarity) -> Tensor:
    """Score prepared embeddings, float32 [n_queries, n_docs], with the same numbers as a streamed pass."""
    n_docs, tile = len(documents), TILE if documents.device.type == "cpu" else WIDE_TILE
    scores = torch.empty((len(queries), n_docs), device=documents.device)
    product = torch.empty((len(queries), tile), device=documents.device)
    with float32_products():
        for at in range(0, n_docs, tile):
            part = documents[at : at + tile]
            width = len(part)
            scores_from_products(queries, _padded(part, tile), similarity, out=product)
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
        similarity: the score of two embeddings: "cosine", "dot" or "euclidean".
        k: number of items of each ranking to keep.
        excluded: int64 [n_queries], per query one document position that does not count (a
            self-match), or -1. Positions count from `offset`, as in the result.
        offset: position of the first document, when this call sees a part of a larger corpus.
        device: device of the products.
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
    skips = skipped(excluded, len(queries[0]), device)
    tile = TILE if device.type == "cpu" else WIDE_TILE
    slices = [slice(at, at + QUERY_BLOCK) for at in range(0, len(queries[0]), QUERY_BLOCK)]
    blocks = [Block(len(queries[0][rows]), k, device) for rows in slices]
    buffers = torch.empty((3, min(QUERY_BLOCK, len(queries[0])), tile), device=device)
    with float32_products():
        for at in range(0, n_docs, tile):
            width = min(tile, n_docs - at)
            reference_tile = _padded(prepare(reference_documents[at : at + width], similarity, device), tile)
            candidate_tile = reference_tile
            if candidate_documents is not reference_documents:
                candidate_tile = _padded(prepare(candidate_documents[at : at + width], similarity, device), tile)
            for rows, block in zip(slices, blocks, strict=True):
                reference, candidate, delta = buffers[:, : len(block.n_items)]
                scores_from_products(queries[0][rows], reference_tile, similarity, out=reference)
                scores_from_products(queries[1][rows], candidate_tile, similarity, out=candidate)
                skip = None if skips is None else skips[rows] - offset - at
                block.add(reference[:, :width], candidate[:, :width], delta[:, :width], offset + at, skip)
            if progress is not None:
                progress(width)
    return check_state(joined([block.finish() for block in blocks]))


def _padded(documents: Tensor, tile: int) -> Tensor:
    """Pad documents [width, dim] with zero rows to a full tile.

    So every product has the same shape, and a matrix library takes the same path for every document: equal vectors get
    equal scores wherever they stand.
    """
    missing = tile - len(documents)
    return torch.nn.functional.pad(documents, (0, 0, 0, missing)) if missing else documents


@contextmanager
def float32_products() -> Iterator[None]:
    """Inside, matrix products are computed in float32, not in TF32 or bfloat16, which a program may have allowed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def check_state(joined: ScoreState) -> ScoreState:
    """Return the state if all of its scores are finite; otherwise ScoreError names the first query."""
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
    """Return the excluded position of each query as a tensor; None if all positions count."""
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


# --- given scores (a shortlist, logits) --------------------------------------------------------


def score_matrix(
    reference_scores: NDArray[Any],
    candidate_scores: NDArray[Any],
    *,
    k: int = 200,
    positions: NDArray[Any] | None = None,
    excluded: NDArray[Any] | None = None,
) -> ScoreState:
    """Make a state of given scores [n_queries, n_items], of items at increasing positions.

    `excluded` is one column per query that does not count, or -1.
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
    """Make a state of queries with items of their own: positions, reference scores and candidate scores of each."""
    if not rows:
        raise ScoreError("nothing to score: there are no queries")
    states = [
        score_matrix(reference[None, :], candidate[None, :], k=k, positions=positions)
        for positions, reference, candidate in rows
    ]
    return joined(states)
