"""Scores of outputs that are several rows an input, such as MaxSim of token vectors.

Documents are read a tile at a time, so a corpus stays on disk; of every pair of query and document both arms' scores
go into the same running state as everywhere.
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
"""Rows, and documents, that are multiplied at a time."""
BLOCK_ROWS = 2048
"""Rows of queries that are multiplied at a time: with a tile 64 MiB of products."""
NO_TOKENS = -1e9
"""MaxSim of a document without a token vector, as in sentence-transformers: behind every other."""


class Product(Protocol):
    """How rows of a query and of a document become a score.

    Attributes:
        of: what the rows are, as stages name it.
        signed: whether numbers are of either sign, each dimension with a range of its own.
    """

    of: ClassVar[str]
    signed: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """What a run calls it."""

    def prepared(self, side: Ragged, device: torch.device) -> Any:
        """Queries or documents as they are multiplied."""

    def scores(self, queries: Any, documents: Any) -> Tensor:
        """Scores float32 [n_queries, n_docs]."""

    def exact(self, query: NDArray[Any], documents: Ragged) -> NDArray[np.float64]:
        """The scores of one query in float64."""

    def values(self, rows: Matrix) -> Matrix:
        """The numbers of rows that a precision changes, as a view."""

    def row_bits(self, width: int, bits: int) -> int:
        """What a row takes, if each of its numbers takes so many bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSim(Product):
    """The sum over a query's token vectors of the largest inner product with one of the document's.

    Attributes:
        mean: whether the sum is divided by the number of the query's vectors.
        half: the type that products, and their sum, are rounded to; float32 if None.
    """

    mean: bool = False
    half: torch.dtype | None = None

    of: ClassVar[str] = "token vectors"
    signed: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """What a run calls it."""
        return "meanmaxsim" if self.mean else "maxsim"

    def prepared(self, side: Ragged, device: torch.device) -> tuple[Tensor, list[int]]:
        """Queries or documents as they are multiplied."""
        rows = torch.from_numpy(np.array(side.flat(), dtype=np.float32)).to(device)
        return self._rounded(rows), side.lengths.tolist()

    def scores(self, queries: tuple[Tensor, list[int]], documents: tuple[Tensor, list[int]]) -> Tensor:
        """Scores float32 [n_queries, n_docs]."""
        (left, n_left), (right, n_right) = queries, documents
        # a product of one shape takes one path: equal vectors get equal scores wherever they stand
        padded = torch.nn.functional.pad(right, (0, 0, 0, max(0, TILE_ROWS - len(right))))
        products = self._rounded(left @ padded.T)[:, : len(right)]
        nothing = torch.full((len(left),), NO_TOKENS, device=left.device)
        best = torch.stack(
            [part.amax(1) if part.shape[1] else nothing for part in torch.split(products, n_right, dim=1)]
        )
        scores = self._rounded(torch.stack([part.sum(1) for part in torch.split(best, n_left, dim=1)]))
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
        """All of a token vector."""
        return rows

    def row_bits(self, width: int, bits: int) -> int:
        """Every number takes the same."""
        return width * bits

    def _rounded(self, numbers: Tensor) -> Tensor:
        return numbers if self.half is None else numbers.to(self.half).float()


Keep = Callable[[Ragged], Ragged]
"""How the candidate's documents are kept: some of them as a model makes them to the same as they are multiplied."""


def score_rows(
    products: tuple[Product, Product],
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
        products: how the reference's and the candidate's rows become scores.
        queries: of either arm.
        documents: likewise; one object where both are the same.
        k: how many documents of either ranking to keep.
        keep: how the candidate's documents are kept.
        excluded: int64 [n_queries], one document position per query that does not count, or -1.
        device: where they are multiplied.
        progress: called with the number of documents done since its last call.

    Returns:
        The state of all queries, and the rows that the candidate keeps of a document on average. Memory beyond the
        inputs grows with n_queries * k and the size of a tile.

    Raises:
        ScoreError: a score is not finite.
    """
    device = torch.device(device)
    n_queries, n_docs = len(queries[0]), len(documents[0])
    slices = list(_runs(np.maximum(queries[0].lengths, queries[1].lengths), BLOCK_ROWS))
    prepared = [
        [product.prepared(arm[rows], device) for rows in slices] for product, arm in zip(products, queries, strict=True)
    ]
    blocks = [Block(rows.stop - rows.start, k, device) for rows in slices]
    skips = skipped(excluded, n_queries, device)
    same = documents[0] is documents[1] and keep is None and products[0] == products[1]
    kept = 0
    with float32_products():
        for tile in _runs(np.maximum(documents[0].lengths, documents[1].lengths), TILE_ROWS):
            full, low = documents[0][tile], documents[1][tile]
            low = low if keep is None else keep(low)
            kept += int(low.lengths.sum())
            first = products[0].prepared(full, device)
            second = first if same else products[1].prepared(low, device)
            for rows, block, once, again in zip(slices, blocks, *prepared, strict=True):
                scores = products[0].scores(once, first), products[1].scores(again, second)
                skip = None if skips is None else skips[rows] - tile.start
                block.add(*scores, torch.empty_like(scores[0]), tile.start, skip)
            if progress is not None:
                progress(tile.stop - tile.start)
    return check_state(joined([block.finish() for block in blocks])), kept / max(1, n_docs)


def _runs(lengths: NDArray[np.int64], most: int) -> Iterator[slice]:
    """Runs of inputs of at most so many rows, or of one input that has more."""
    start = rows = 0
    for place, length in enumerate(lengths.tolist()):
        if place > start and (rows + length > most or place - start >= TILE_INPUTS):
            yield slice(start, place)
            start, rows = place, 0
        rows += length
    if len(lengths):
        yield slice(start, len(lengths))
