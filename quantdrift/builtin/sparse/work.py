"""Sparse models of sentence-transformers, with weights for some terms of the vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from quantdrift.base.errors import ScoreError, UnsupportedError
from quantdrift.builtin.multi_vector.kept import RowStage
from quantdrift.builtin.multi_vector.model import RowEncoder
from quantdrift.builtin.multi_vector.scoring import Keep, Product
from quantdrift.builtin.sentence.work import load_sentence_transformer
from quantdrift.models.files.named import ModelSource
from quantdrift.models.loading import Placed
from quantdrift.models.vetting import refuse_other_kinds
from quantdrift.scoring.ragged import Matrix, Ragged
from quantdrift.scoring.similarity import Similarity

_MOST_TERMS = 1 << 24
"""Largest vocabulary whose term numbers float32 holds exactly."""


_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms(Product):
    """The inner product of term weights; a row of an input is the number of a term and its weight.

    Attributes:
        n_terms: size of the vocabulary.
        cosine: whether weights are divided by their Euclidean norm.
    """

    n_terms: int
    cosine: bool = False

    of: ClassVar[str] = "weights of terms"

    @property
    def name(self) -> str:
        """Name of the product in a run."""
        return "cosine" if self.cosine else "dot"

    def prepared(self, side: Ragged, device: torch.device) -> Any:
        """Return a sparse matrix [n, n_terms], which the CPU multiplies."""
        rows = side.flat()
        ends = np.concatenate([[0], np.cumsum(side.lengths)])
        terms, weights = rows[:, 0].astype(np.int64), np.ascontiguousarray(rows[:, 1])
        inner = np.ones(max(0, len(terms) - 1), dtype=np.bool_)
        inner[ends[1:-1][(ends[1:-1] > 0) & (ends[1:-1] < len(terms))] - 1] = False  # the next input begins
        within = not len(terms) or (int(terms.min()) >= 0 and int(terms.max()) < self.n_terms)
        if not within or (rows[:, 0] != terms).any() or (np.diff(terms)[inner] <= 0).any():
            raise ScoreError(f"a sparse embedding has terms that are not rising numbers from 0 to {self.n_terms - 1}")
        matrix: Any = csr_array((weights, terms, ends), shape=(len(side), self.n_terms))
        if self.cosine:
            norms = np.sqrt(matrix.multiply(matrix).sum(axis=1))
            matrix = csr_array(matrix.multiply((1 / np.where(norms > 0, norms, 1)).astype(np.float32)[:, None]))
        return matrix

    def scores(self, queries: Any, documents: Any) -> Tensor:
        """Return scores float32 [n_queries, n_docs]; terms are added in one order, so equal documents score equally."""
        return torch.from_numpy((queries @ documents.T).toarray().astype(np.float32))

    def exact(self, query: NDArray[Any], documents: Ragged) -> NDArray[np.float64]:
        """Return the scores of one query in float64."""
        left, right = (self.prepared(side, _CPU).astype(np.float64) for side in (Ragged.of([query]), documents))
        return np.asarray((left @ right.T).toarray()[0])

    def values(self, rows: Matrix) -> Matrix:
        """Return the weights."""
        return rows[:, 1:]

    def row_bits(self, width: int, bits: int) -> int:
        """Return the bits of a weight, and the 32 bits of its term."""
        return 32 + bits


class TermWeights(RowStage):
    """Pruning of a candidate's documents to terms of the largest weights."""

    takes = ("weights of terms",)

    def keep(self) -> Keep | None:
        """Return the pruning."""
        return partial(pruned, most=int(self.scheme.option("terms", "")))

    def record(self) -> Mapping[str, Any]:
        """Return the most terms of a document."""
        return {"terms": int(self.scheme.option("terms", ""))}


def pruned(part: Ragged, most: int) -> Ragged:
    """Keep the terms with the largest weights of each document; of equal ones the lower number."""
    matrices = []
    for terms in part:
        order = np.lexsort((terms[:, 0], -terms[:, 1]))[:most]
        matrices.append(terms[np.sort(order)])
    return Ragged.of(matrices)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparseModel(RowEncoder):
    """A SparseEncoder; a row of an input is the number of a term and its weight."""

    terms: Terms

    def product(self) -> Terms:
        """Return the product of weights."""
        return self.terms

    def rows(self, items: list[Any], role: str, batch_size: int) -> list[Any]:
        """Return the terms of each input by number, with their weights; no dense batch is kept."""
        encode = self.model.encode_query if role == "query" else self.model.encode_document
        matrices = []
        for at in range(0, len(items), batch_size):
            matrices += term_weights(
                encode(items[at : at + batch_size], batch_size=batch_size, show_progress_bar=False)
            )
        return matrices


def term_weights(encoded: Tensor) -> list[Matrix]:
    """Turn a sparse tensor [n, n_terms] into the terms of each input by number, with their weights."""
    batch = encoded.cpu().coalesce()
    (inputs, terms), weights = batch.indices().numpy(), batch.values().float().numpy()
    ends = np.searchsorted(inputs, np.arange(batch.shape[0] + 1))
    rows = np.stack([terms.astype(np.float32), weights], axis=1)
    return [rows[a:b] for a, b in pairwise(ends.tolist())]


def load_sparse(source: ModelSource, **where: Unpack[Placed]) -> SparseModel:
    """Load a sparse model, whose head computes its weights."""
    model, notes = load_sentence_transformer(source, kind="SparseEncoder", reads="head", **where)
    return sparse_of(model, source, notes=notes)


def sparse_of(model: Any, source: ModelSource, *, notes: Sequence[str] = ()) -> SparseModel:
    """Make a model of a loaded SparseEncoder and its notes."""
    refuse_other_kinds(getattr(model, "model_type", None), source.name, "SparseEncoder")
    product = sparse_product(model, source.name)
    similarity = Similarity(product.name)
    return SparseModel(model=model, source=source, similarity=similarity, notes=tuple(notes), terms=product)


def sparse_product(model: Any, name: str) -> Terms:
    """Return the product of a SparseEncoder; refuse one that compares otherwise."""
    compares = str(model.similarity_fn_name)
    n_terms = int(model.encode_query(["."], show_progress_bar=False).shape[1])  # its config may name another width
    if compares not in {"dot", "cosine"} or n_terms > _MOST_TERMS:
        raise UnsupportedError(
            f"{name!r} compares embeddings of {n_terms:,} terms by {compares!r}; expected dot or cosine, and at most "
            f"{_MOST_TERMS:,}"
        )
    return Terms(n_terms=n_terms, cosine=compares == "cosine")
