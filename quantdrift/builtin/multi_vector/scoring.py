"""Scores of outputs of several rows an input, such as MaxSim of token vectors.

Documents are read tile by tile, so a corpus stays on disk; both arms' scores of every query and document go into the
usual running state.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.scoring.ragged import Matrix, Ragged
from quantdrift.scoring.state import Block, ScoreState, joined
from quantdrift.scoring.streamed import check_state, float32_products, skipped

TILE_ROWS, TILE_INPUTS = 8192, 1024
"""Rows and documents of a tile."""
BLOCK_ROWS = 2048
"""Rows of queries in a block; with a tile, 64 MiB of products."""
NO_TOKENS = -1e9
"""MaxSim of a document without a token vector, as in sentence-transformers: behind every other."""


class Product(Protocol):
    """The product of rows that scores a query and a document.

    Attributes:
        of: meaning of the rows, as stages name it.
        signed: whether numbers have both signs, with a range for each dimension.
    """

    of: ClassVar[str]
    signed: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the product in a run."""

    def prepared(self, side: Ragged, device: torch.device) -> Any:
        """Queries or documents as they are multiplied."""

    def scores(self, queries: Any, documents: Any) -> Tensor:
        """Scores float32 [n_queries, n_docs]."""

    def exact(self, query: NDArray[Any], documents: Ragged) -> NDArray[np.float64]:
        """The scores of one query in float64."""

    def values(self, rows: Matrix) -> Matrix:
        """Return a view of the numbers that a precision changes."""

    def row_bits(self, width: int, bits: int) -> int:
        """Return the bits of a row whose numbers take `bits` each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSim(Product):
    """The sum over a query's token vectors of the largest inner product with one of the document's.

    Attributes:
        mean: whether the sum is divided by the number of the query's vectors.
    """

    mean: bool = False

    of: ClassVar[str] = "token vectors"
    signed: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name of the product in a run."""
        return "meanmaxsim" if self.mean else "maxsim"

    def prepared(self, side: Ragged, device: torch.device) -> tuple[Tensor, list[int]]:
        """Queries or documents as they are multiplied."""
        rows = torch.from_numpy(np.array(side.flat(), dtype=np.float32)).to(device)
        return rows, side.lengths.tolist()

    def scores(self, queries: tuple[Tensor, list[int]], documents: tuple[Tensor, list[int]]) -> Tensor:
        """Scores float32 [n_queries, n_docs]."""
        (left, n_left), (right, n_right) = queries, documents
        # products of one shape are computed alike: equal vectors get equal scores at any position
        padded = torch.nn.functional.pad(right, (0, 0, 0, max(0, TILE_ROWS - len(right))))
        products = (left @ padded.T)[:, : len(right)]
        nothing = torch.full((len(left),), NO_TOKENS, device=left.device)
        best = torch.stack(
            [part.amax(1) if part.shape[1] else nothing for part in torch.split(products, n_right, dim=1)]
        )
        scores = torch.stack([part.sum(1) for part in torch.split(best, n_left, dim=1)])
        scores[:, [not length for length in n_right]] = NO_TOKENS
        if self.mean:
            scores /= torch.tensor(n_left, device=left.device).clamp(min=1)[:, None]
        return scores

    def exact(self, query: NDArray[Any], documents: Ragged) -> NDArray[np.float64]:
        """The scores of one query in float64."""
        left = query.astype(np.float64)
        scores = [
            (left @ document.astype(np.float64).T).max(axis=1).sum() if len(document) else NO_TOKENS
            for document in documents
        ]
        return np.array(scores) / (max(1, len(query)) if self.mean else 1)

    def values(self, rows: Matrix) -> Matrix:
        """Return all numbers."""
        return rows

    def row_bits(self, width: int, bits: int) -> int:
        """Return the bits of all numbers."""
        return width * bits


Keep = Callable[[Ragged], Ragged]
"""Stores the candidate's documents: from the model's output to the rows that are multiplied."""


def score_rows(
    product: Product,
    queries: tuple[Ragged, Ragged],
    documents: tuple[Ragged, Ragged],
    *,
    k: int,
    keep: Keep | None = None,
    excluded: NDArray[Any] | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> tuple[ScoreState, float]:
    """Score every query against every document in both arms, streamed over the documents.

    Args:
        product: how rows become scores.
        queries: of either arm.
        documents: likewise; one object where both are the same.
        k: how many documents of either ranking to keep.
        keep: storage of the candidate's documents.
        excluded: int64 [n_queries], one document position per query that does not count, or -1.
        device: device of the products.
        progress: called with the number of documents done since its last call.

    Returns:
        The state of all queries, and the candidate's mean number of rows per document. Memory beyond the
        inputs grows with n_queries * k and the size of a tile.

    Raises:
        ScoreError: a score is not finite.
    """
    device = torch.device(device)
    n_queries, n_docs = len(queries[0]), len(documents[0])
    slices = list(_runs(np.maximum(queries[0].lengths, queries[1].lengths), BLOCK_ROWS))
    prepared = [[product.prepared(arm[rows], device) for rows in slices] for arm in queries]
    blocks = [Block(rows.stop - rows.start, k, device) for rows in slices]
    skips = skipped(excluded, n_queries, device)
    same = documents[0] is documents[1] and keep is None
    kept = 0
    with float32_products():
        for tile in _runs(np.maximum(documents[0].lengths, documents[1].lengths), TILE_ROWS):
            full, low = documents[0][tile], documents[1][tile]
            low = low if keep is None else keep(low)
            kept += int(low.lengths.sum())
            first = product.prepared(full, device)
            second = first if same else product.prepared(low, device)
            for rows, block, once, again in zip(slices, blocks, *prepared, strict=True):
                scores = product.scores(once, first), product.scores(again, second)
                skip = None if skips is None else skips[rows] - tile.start
                block.add(*scores, torch.empty_like(scores[0]), tile.start, skip)
            if progress is not None:
                progress(tile.stop - tile.start)
    return check_state(joined([block.finish() for block in blocks])), kept / max(1, n_docs)


def _runs(lengths: NDArray[np.int64], most: int) -> Iterator[slice]:
    """Yield runs of inputs with at most `most` rows together, or of one input with more."""
    start = rows = 0
    for place, length in enumerate(lengths.tolist()):
        if place > start and (rows + length > most or place - start >= TILE_INPUTS):
            yield slice(start, place)
            start, rows = place, 0
        rows += length
    if len(lengths):
        yield slice(start, len(lengths))
