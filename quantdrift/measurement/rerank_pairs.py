"""What a cross-encoder reads together: the pairs of shortlists, and those it is calibrated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.measurement.embeddings import digest_of
from quantdrift.measurement.inputs import Inputs
from quantdrift.models.cross_encoder import CrossEncoderModel

__all__ = ["OPENING", "Pairs", "asked_for", "opening_of", "pair_inputs", "pairs_of"]

OPENING = 12
"""Words of a document that stand for a query, where a model reads both together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """The query-document pairs of all shortlists, those of a query beside each other.

    Attributes:
        query_ids: of the queries that have a shortlist, in order.
        document_ids: of the whole corpus, by position.
        query_rows: int64 [n_pairs], numbers in `query_ids`.
        document_rows: int64 [n_pairs], positions in `document_ids`, increasing within a query.
        starts: int64 [n_queries + 1], where the pairs of each query begin.
    """

    query_ids: tuple[str, ...]
    document_ids: tuple[str, ...]
    query_rows: NDArray[np.int64]
    document_rows: NDArray[np.int64]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.query_rows)

    def ids(self) -> list[str]:
        """Names of the pairs, for messages."""
        return [
            f"{self.query_ids[query]} with {self.document_ids[document]}"
            for query, document in zip(
                self.query_rows.tolist(), self.document_rows.tolist(), strict=True
            )
        ]

    def numbers(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which pairs are of these documents.

        Args:
            positions: int64 [n_queries, depth], documents of each query's shortlist; -1 for none.

        Returns:
            int64 [n_queries, depth], numbers of pairs; -1 for none.
        """
        found = np.full(positions.shape, -1, dtype=np.int64)
        for row, wanted in enumerate(positions):
            start, stop = self.starts[row : row + 2]
            there = wanted >= 0
            own = self.document_rows[start:stop]
            found[row, there] = start + np.searchsorted(own, wanted[there])
        return found


def pairs_of(shortlist: Mapping[str, Sequence[str]], document_ids: Sequence[str]) -> Pairs:
    """The pairs of shortlists.

    Args:
        shortlist: query id to document ids, each at most once; its order is that of the queries.
        document_ids: of the whole corpus, all of the shortlists' among them.
    """
    position = {name: row for row, name in enumerate(document_ids)}
    rows = [
        np.sort(np.array([position[name] for name in names], dtype=np.int64))
        for names in shortlist.values()
    ]
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    return Pairs(
        query_ids=tuple(shortlist),
        document_ids=tuple(document_ids),
        query_rows=np.repeat(np.arange(len(rows), dtype=np.int64), counts),
        document_rows=np.concatenate([np.empty(0, dtype=np.int64), *rows]),
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


def pair_inputs(
    model: CrossEncoderModel, pairs: Pairs, queries: Sequence[str], documents: Sequence[str]
) -> Inputs:
    """Pairs as inputs, whose one number is their score.

    Args:
        model: what scores them.
        pairs: which.
        queries: texts of the pairs' queries, as numbered there.
        documents: texts of the whole corpus.
    """
    query_rows, document_rows = pairs.query_rows, pairs.document_rows

    def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        chosen = zip(query_rows[rows].tolist(), document_rows[rows].tolist(), strict=True)
        texts = [(queries[query], documents[document]) for query, document in chosen]
        return model.scores(texts, batch_size)[:, None]

    lengths = [np.array([len(t) for t in side], dtype=np.int64) for side in (queries, documents)]
    return Inputs(
        role="pair",
        ids=pairs.ids(),
        encode=encode,
        key={
            "queries": digest_of(queries),
            "documents": digest_of(documents[row] for row in np.unique(document_rows).tolist()),
            "pairs": [digest_of(query_rows), digest_of(document_rows)],
            "cross_encoder": model.describe(),
        },
        lengths=lengths[0][query_rows] + lengths[1][document_rows],
    )


def asked_for(model: CrossEncoderModel, documents: Sequence[str]) -> Inputs:
    """Documents, each asked for by its own first words: to calibrate on without using a query.

    Args:
        model: what reads them.
        documents: texts.
    """
    kept = tuple(documents)

    def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        texts = [kept[row] for row in rows.tolist()]
        return model.scores([(opening_of(text), text) for text in texts], batch_size)[:, None]

    return Inputs(
        role="document",
        ids=tuple(str(number) for number in range(len(kept))),
        encode=encode,
        key={"texts": digest_of(kept), "opening": OPENING, "cross_encoder": model.describe()},
        lengths=np.array([len(text) for text in kept], dtype=np.int64),
    )


def opening_of(text: str) -> str:
    """The first words of a document, in place of a query.

    >>> opening_of("Of mice  and men")
    'Of mice and men'

    Args:
        text: of the document.

    Returns:
        Never empty: a full stop where there is no word.
    """
    return " ".join(text.split()[:OPENING]) or "."
