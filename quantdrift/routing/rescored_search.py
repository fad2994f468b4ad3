"""Serving retrieval: the candidate searches, the reference rescores what it found when unsure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quantdrift.confidence import as_array
from quantdrift.errors import QuantDriftError, ScoreError, UnknownNameError
from quantdrift.routing.batches import as_scores, batch_length, batch_rows
from quantdrift.routing.gates import Gate, Traffic, routed_by, score_of
from quantdrift.routing.reordering import reorder

__all__ = ["RescoredBatch", "RescoredSearch"]

RescoreSimilarity = Literal["cosine", "dot", "euclidean"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RescoredBatch:
    """What was found for a batch of queries; unpacks as (positions, scores, rescored).

    Attributes:
        positions: int64 [n, width], rows of the document matrix, best first; -1 where there are
            fewer.
        scores: [n, width]. Of a rescored query the first k are the reference's and those behind
            them the candidate's: two scales, in the order to be shown.
        rescored: bool [n], which queries the reference looked at.
    """

    positions: NDArray[np.int64]
    scores: NDArray[Any]
    rescored: NDArray[np.bool_]

    def __iter__(self) -> Any:
        return iter((self.positions, self.scores, self.rescored))

    def __len__(self) -> int:
        return len(self.positions)


class RescoredSearch:
    """A search whose unsure results are put in the order of the reference.

    The reference encodes only the queries that the gate does not let pass, and only rows of its
    document matrix that were found are read, so that this can be a memory map.

    Threads may share it if both callables allow that: its counters are locked and it keeps nothing
    else.
    """

    def __init__(
        self,
        search: Callable[[Any], tuple[Any, Any]],
        encode_reference: Callable[[Any], Any],
        reference_documents: Any,
        gate: Gate,
        *,
        k: int = 10,
        similarity: RescoreSimilarity = "cosine",
    ) -> None:
        """Make it of the candidate's search and the reference's embeddings.

        Args:
            search: batch of queries to (positions [n, width], scores [n, width]), best first,
                larger is better (of distances: minus the distance); positions below 0 stand for
                nothing found.
            encode_reference: batch of queries to embeddings [n, dim], with the query prompt of the
                reference where it has one. It is called with the rows that
                `quantdrift.routing.batches.batch_rows` picks.
            reference_documents: [n_docs, dim], array or memory map: the reference's embeddings, in
                the order that positions count in.
            gate: a `GapRouter` with the score gap, or a check: anything with `accepts(scores)`.
                It is shown the first two scores of each query.
            k: how many of the first results are rescored, at least 1.
            similarity: how the reference compares: "cosine", "dot", or "euclidean" (minus the
                distance).

        Raises:
            QuantDriftError: a setting is not one of these, or the gate is of other scores.
        """
        if similarity not in get_args(RescoreSimilarity):
            raise UnknownNameError("similarity", similarity, get_args(RescoreSimilarity))
        if (score := score_of(gate)) != "gap":
            raise QuantDriftError(
                f"expected a gate on the gap; got one on {score}, which is of class "
                "probabilities: a softmax of similarities is none"
            )
        _check_scores(gate, similarity)
        if k < 1:
            raise QuantDriftError(f"expected k of at least 1; got {k}")
        if len(np.shape(reference_documents)) != 2:  # noqa: PLR2004 -- a matrix
            raise ScoreError(
                "expected reference_documents of shape [n_docs, dim]; got shape "
                f"{np.shape(reference_documents)}"
            )
        self.search = search
        self.encode_reference = encode_reference
        self.reference_documents = reference_documents
        self.gate = gate
        self.k = k
        self.similarity = similarity
        self._traffic = Traffic()

    def __call__(self, queries: Any) -> RescoredBatch:
        """Search for a batch of queries.

        Args:
            queries: a sequence, array, tensor, table, or a mapping of equally long columns.

        Raises:
            DataError: it is no batch.
            ScoreError: results or embeddings do not fit in shape, or are not finite, or scores
                increase along a row.
        """
        n = batch_length(queries)
        if n == 0:
            none = np.zeros((0, 0))
            return RescoredBatch(
                positions=none.astype(np.int64), scores=none, rescored=np.zeros(0, dtype=bool)
            )
        found = self.search(queries)
        positions, scores = as_scores(found[0]).astype(np.int64), as_scores(found[1]).copy()
        if positions.shape != scores.shape or len(positions) != n:
            raise ScoreError(
                f"expected positions and scores of {n} queries in one shape; got "
                f"{positions.shape} and {scores.shape}"
            )
        if positions.max(initial=-1) >= len(self.reference_documents):
            raise ScoreError(
                f"the search found position {positions.max()}; reference_documents has "
                f"{len(self.reference_documents)} rows. They must be of one corpus, in one order"
            )
        _check_order(positions, scores)
        rescored = self._unsure(positions, scores)
        if rescored.any():
            rows = np.flatnonzero(rescored)
            query = as_scores(self.encode_reference(batch_rows(queries, rows)))
            again = self._scores(query, positions[rows, : self.k])
            scores = scores.astype(np.result_type(scores, np.float32))
            head = scores[rows]
            head[:, : self.k] = np.where(positions[rows, : self.k] >= 0, again, head[:, : self.k])
            positions[rows], scores[rows] = reorder(positions[rows], head, self.k)
        self._traffic.add(rescored)
        return RescoredBatch(positions=positions, scores=scores, rescored=rescored)

    @property
    def n_seen(self) -> int:
        """How many queries were answered."""
        return self._traffic.counts()[0]

    @property
    def n_rescored(self) -> int:
        """How many of them were rescored."""
        return self._traffic.counts()[1]

    @property
    def rescored_share(self) -> float | None:
        """Share of the queries that were rescored; None before the first."""
        seen, rescored = self._traffic.counts()
        return rescored / seen if seen else None

    def _unsure(self, positions: NDArray[np.int64], scores: NDArray[Any]) -> NDArray[np.bool_]:
        """What the gate does not let pass; fewer than two results have no order to mend."""
        rescored = np.zeros(len(positions), dtype=bool)
        if positions.shape[1] >= 2:  # noqa: PLR2004 -- a gap needs two
            two = (positions[:, :2] >= 0).all(axis=1)
            if two.any():
                rescored[two] = routed_by(self.gate, scores[two, :2])
        return rescored

    def _scores(self, queries: NDArray[Any], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The reference's scores of some documents, float64 [n, k]."""
        wanted = (len(positions), np.shape(self.reference_documents)[1])
        if queries.shape != wanted:
            raise ScoreError(
                f"expected embeddings of shape {wanted} from encode_reference, as wide as "
                f"reference_documents; got {queries.shape}"
            )
        places = np.maximum(positions, 0)
        documents = as_array(self.reference_documents[places]).astype(np.float64)
        query = queries.astype(np.float64)
        if not (np.isfinite(query).all() and np.isfinite(documents).all()):
            raise ScoreError("the reference's embeddings hold NaN or infinity")
        if self.similarity == "euclidean":
            return np.asarray(-np.linalg.norm(documents - query[:, None], axis=2))
        scores: NDArray[np.float64] = np.einsum("nd,nkd->nk", query, documents)
        if self.similarity == "cosine":
            norms = np.linalg.norm(query, axis=1)[:, None] * np.linalg.norm(documents, axis=2)
            # an all-zero vector has cosine 0 with everything, as when runs are scored
            scores = np.divide(scores, norms, out=np.zeros_like(scores), where=norms > 0)
        return scores


def _check_scores(gate: Gate, similarity: str) -> None:
    """Refuse a gate that was set on other scores, as far as it says what they were."""
    origin = getattr(gate, "origin", None)
    reading, compared = (getattr(origin, name, None) for name in ("reading", "similarity"))
    if reading in {"logits", "linear probe"}:
        what = "a linear probe's class logits" if reading == "linear probe" else "class logits"
        raise QuantDriftError(
            f"the gate was set on {what}, and this is shown similarities; a threshold is in the "
            "unit of its own scores. Set one on a retrieval run of this pair"
        )
    if compared is not None and compared != similarity:
        raise QuantDriftError(
            f"the gate was set on similarities by {compared}, and this search is by {similarity}; "
            f"give similarity={compared!r}, or set a gate on a run by {similarity}"
        )


def _check_order(positions: NDArray[np.int64], scores: NDArray[Any]) -> None:
    """Refuse what is not given best first, larger being better: the gap would be of other items."""
    found = positions >= 0
    if np.isnan(scores[found]).any():
        raise ScoreError("the search gave scores that are NaN; expected one number per result")
    lowest = np.minimum.accumulate(np.where(found, scores, np.inf), axis=1)
    rises = found[:, 1:] & (scores[:, 1:] > lowest[:, :-1])
    if rises.any():
        row = int(rises.any(axis=1).argmax())
        raise ScoreError(
            "expected the search's scores best first, larger being better; those of query "
            f"{row} of the batch increase along the row. Of distances, give minus the distance"
        )
