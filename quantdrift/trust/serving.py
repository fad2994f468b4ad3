"""Serving with two models: the candidate answers, the reference where the candidate is unsure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import DataError, QuantDriftError, ScoreError, UnknownNameError
from quantdrift.statistics.conformal import ConfidenceName, as_array, confidence_of, in_words
from quantdrift.trust.check import StabilityCheck
from quantdrift.trust.rescoring import reorder
from quantdrift.trust.router import GapRouter

Gate = GapRouter | StabilityCheck
"""What says which inputs go to full precision; anything else with `accepts(scores)` is taken for a check."""

# --- batches --------------------------------------------------------------------------------------


def batch_length(batch: Any) -> int:
    """How many inputs a batch has."""
    columns = list(batch.values()) if isinstance(batch, Mapping) else [batch]
    if all(hasattr(column, "__len__") and not isinstance(column, str | bytes) for column in columns):
        lengths = {len(column) for column in columns}
        if len(lengths) == 1:
            return lengths.pop()
    raise DataError(
        f"expected a batch of inputs with a length, or a mapping of equally long columns; got {type(batch).__name__}. "
        "Make a list of it: list(batch), or [input] of one input; settings that are not per input belong into the "
        "callable"
    )


def batch_rows(batch: Any, rows: NDArray[np.int64]) -> Any:
    """Some inputs of a batch, in the order given, as a batch of the same kind; a sequence becomes a list."""
    if isinstance(batch, Mapping):
        return {name: batch_rows(column, rows) for name, column in batch.items()}
    if hasattr(batch, "iloc"):
        return batch.iloc[rows]
    if hasattr(batch, "select") and hasattr(batch, "features"):  # a Dataset; other tables' select is of columns
        return batch.select(rows.tolist())
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        return batch[rows]
    if hasattr(batch, "__getitem__") and not hasattr(batch, "shape"):
        return [batch[row] for row in rows.tolist()]
    raise DataError(
        "expected a batch as a sequence, array, tensor, table or mapping of those; got "
        f"{type(batch).__name__}, whose rows cannot be picked"
    )


def _matrix(values: Any, what: str, shape: tuple[int | None, int | None]) -> NDArray[Any]:
    """An array of two axes; a length of None may be anything."""
    found = as_array(values)
    if found.ndim != 2 or any(want not in {None, have} for want, have in zip(shape, found.shape, strict=True)):  # noqa: PLR2004 -- a matrix
        told = ", ".join("any" if want is None else f"{want}" for want in shape)
        raise ScoreError(f"expected {what} of shape ({told}), one row per input; got shape {found.shape}")
    return found


class _TwoModels:
    """What decides between two models, and how many inputs went to the second; threads may share it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.score: ConfidenceName = getattr(gate, "score", "gap")
        self.rule = f"{'routed' if isinstance(gate, GapRouter) else 'accepted'}: {getattr(gate, 'rule', '?')}"
        self._lock, self._seen, self._sent = Lock(), 0, 0

    @property
    def n_seen(self) -> int:
        """How many inputs were answered."""
        return self._seen

    def _unsure(self, scores: NDArray[Any]) -> NDArray[np.bool_]:
        """Which inputs a router routes, or a check does not accept, bool [n]."""
        if isinstance(self._gate, GapRouter):
            return self._gate.routes(scores)
        return ~np.asarray(self._gate.accepts(scores), dtype=bool)

    def _count(self, sent: NDArray[np.bool_]) -> None:
        with self._lock:
            self._seen += len(sent)
            self._sent += int(sent.sum())

    def _share(self) -> float | None:
        with self._lock:
            return self._sent / self._seen if self._seen else None


# --- classes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The answer to one input.

    Attributes:
        label: name of the class, or its index where the model was given no names.
        index: of the class.
        routed: whether the reference answered.
        why: in words, for a log.
        confidence: of the candidate, larger is surer.
    """

    label: Any
    index: int
    routed: bool
    why: str
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutedBatch:
    """The answers to a batch, by column; iterating or indexing gives `Routed` rows.

    Attributes:
        index: int64 [n], the class answered.
        routed: bool [n], where the reference answered.
        confidence: float64 [n], of the candidate.
        logits: [n, n_classes], of the model that answered.
        classes: names of the classes, or None.
        score: which confidence it is.
        rule: what is routed, or accepted, in words.
    """

    index: NDArray[np.int64]
    routed: NDArray[np.bool_]
    confidence: NDArray[np.float64]
    logits: NDArray[Any]
    classes: Sequence[Any] | None
    score: ConfidenceName
    rule: str

    @property
    def labels(self) -> list[Any]:
        """The classes answered, by name where there are names."""
        return [self[row].label for row in range(len(self))]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, row: int) -> Routed:
        index, routed, confidence = int(self.index[row]), bool(self.routed[row]), float(self.confidence[row])
        label = index if self.classes is None else self.classes[index]
        who = "reference" if routed else "candidate"
        why = f"{who}: {in_words(self.score, 'of', confidence)} ({self.rule})"
        return Routed(label=label, index=index, routed=routed, why=why, confidence=confidence)

    def __iter__(self) -> Iterator[Routed]:
        return (self[row] for row in range(len(self)))


class RoutedModel(_TwoModels):
    """A candidate that asks the reference where it is unsure.

    The candidate runs on every batch. The reference runs once per batch on the routed rows only, and not at all where
    there are none. Threads may share it if both callables allow that.

    >>> from quantdrift import GapRouter
    >>> router = GapRouter(threshold=1.0)
    >>> model = RoutedModel(lambda x: x, lambda x: -x, router, classes=["a", "b"])
    >>> batch = model(np.array([[3.0, 1.0], [0.2, 0.1]]))
    >>> batch.labels, batch[1].why, model.routed_share
    (['a', 'b'], 'reference: gap of 0.1 (routed: gap below 1)', 0.5)
    """

    def __init__(
        self,
        candidate: Callable[[Any], Any],
        reference: Callable[[Any], Any],
        router: Gate,
        *,
        classes: Sequence[Any] | None = None,
    ) -> None:
        """Make it of two callables.

        Args:
            candidate: batch to logits [n, n_classes], as array or tensor (of any device), or as a result that has
                `logits`.
            reference: likewise, of the same classes in the same order. It is called with the rows that `batch_rows`
                picks.
            router: a `GapRouter`, or a check: anything with `accepts(scores)`, whose unaccepted inputs are routed.
            classes: names of the classes.

        """
        super().__init__(router)
        self.candidate, self.reference, self.router, self.classes = candidate, reference, router, classes

    def __call__(self, batch: Any) -> RoutedBatch:
        """Answer a batch.

        Args:
            batch: a sequence, array, tensor, table, or a mapping of equally long columns.

        Raises:
            DataError: it is no batch, or its rows cannot be picked.
            ScoreError: logits that are not finite, or not one row per input. -infinity (a class that is masked) is let
                pass behind the candidate's first two and the reference's first.
        """
        logits: NDArray[Any] = np.zeros((0, 2))
        confidence: NDArray[np.float64] = np.zeros(0)
        routed: NDArray[np.bool_] = np.zeros(0, dtype=bool)
        if n := batch_length(batch):
            logits = self._logits("candidate", batch, (n, None))
            confidence, routed = confidence_of(logits, self.score), self._unsure(logits)
            if routed.any():
                rows = np.flatnonzero(routed)
                again = self._logits("reference", batch_rows(batch, rows), (len(rows), logits.shape[1]))
                # the wider type of the two, so that neither arm's logits are rounded
                logits = logits.astype(np.result_type(logits, again))
                logits[rows] = again
            self._count(routed)
        return RoutedBatch(
            index=logits.argmax(axis=1).astype(np.int64),
            routed=routed,
            confidence=confidence,
            logits=logits,
            classes=self.classes,
            score=self.score,
            rule=self.rule,
        )

    @property
    def n_routed(self) -> int:
        """How many inputs the reference answered."""
        return self._sent

    @property
    def routed_share(self) -> float | None:
        """Share of the inputs that the reference answered; None before the first."""
        return self._share()

    def _logits(
        self, arm: Literal["candidate", "reference"], batch: Any, shape: tuple[int, int | None]
    ) -> NDArray[Any]:
        """What an arm gives, if it is what the batch asks for."""
        logits = _matrix(getattr(self, arm)(batch), f"logits from the {arm}", shape)
        # the largest is NaN or +infinity if any is; -infinity is a class that is masked, and of
        # the candidate's second one the confidence takes care
        if not np.isfinite(logits.max(axis=1, initial=-np.inf)).all():
            raise ScoreError(f"the {arm} gave logits that are NaN or infinite")
        if self.classes is not None and len(self.classes) != logits.shape[1]:
            raise QuantDriftError(f"{len(self.classes)} names of classes were given; the {arm} has {logits.shape[1]}")
        return logits


# --- searches -------------------------------------------------------------------------------------

RescoreSimilarity = Literal["cosine", "dot", "euclidean"]


class RescoredBatch(NamedTuple):
    """What was found for a batch of queries.

    Attributes:
        positions: int64 [n, width], rows of the document matrix, best first; -1 where there are fewer.
        scores: [n, width]. Of a rescored query the first k are the reference's and those behind them the candidate's:
            two scales, in the order to be shown.
        rescored: bool [n], which queries the reference looked at.
    """

    positions: NDArray[np.int64]
    scores: NDArray[Any]
    rescored: NDArray[np.bool_]


class RescoredSearch(_TwoModels):
    """A search whose unsure results are put in the order of the reference.

    The reference encodes only the queries that the gate does not let pass, and only rows of its document matrix that
    were found are read, so that this can be a memory map. Threads may share it if both callables allow that.
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
            search: batch of queries to (positions [n, width], scores [n, width]), best first, larger is better (of
                distances: minus the distance); positions below 0 stand for nothing found.
            encode_reference: batch of queries to embeddings [n, dim], with the query prompt of the reference where it
                has one. It is called with the rows that `batch_rows` picks.
            reference_documents: [n_docs, dim], array or memory map: the reference's embeddings, in the order that
                positions count in.
            gate: a `GapRouter` with the score gap, or a check: anything with `accepts(scores)`. It is shown the first
                two scores of each query.
            k: how many of the first results are rescored, at least 1.
            similarity: how the reference compares: "cosine", "dot", or "euclidean" (minus the distance).

        Raises:
            QuantDriftError: a setting is not one of these, or the gate is of other scores.
        """
        super().__init__(gate)
        if similarity not in get_args(RescoreSimilarity):
            raise UnknownNameError("similarity", similarity, get_args(RescoreSimilarity))
        if self.score != "gap":
            raise QuantDriftError(
                f"expected a gate on the gap; got one on {self.score}, which is of class "
                "probabilities: a softmax of similarities is none"
            )
        if k < 1 or len(np.shape(reference_documents)) != 2:  # noqa: PLR2004 -- a matrix
            raise QuantDriftError(
                "expected k of at least 1 and reference_documents of shape [n_docs, dim]; got k = "
                f"{k} and shape {np.shape(reference_documents)}"
            )
        self.search, self.encode_reference, self.reference_documents = search, encode_reference, reference_documents
        self.gate, self.k, self.similarity = gate, k, similarity

    def __call__(self, queries: Any) -> RescoredBatch:
        """Search for a batch of queries.

        Args:
            queries: a sequence, array, tensor, table, or a mapping of equally long columns.

        Raises:
            DataError: it is no batch.
            ScoreError: results or embeddings do not fit in shape, or are not finite, or scores increase along a row.
        """
        n = batch_length(queries)
        if n == 0:
            none = np.zeros((0, 0))
            return RescoredBatch(positions=none.astype(np.int64), scores=none, rescored=np.zeros(0, dtype=bool))
        found = self.search(queries)
        positions = _matrix(found[0], "positions of the search", (n, None)).astype(np.int64)
        scores = _matrix(found[1], "scores of the search", (n, positions.shape[1])).copy()
        _check_order(positions, scores)
        # fewer than two results have no order to mend
        rescored = (positions[:, :2] >= 0).sum(axis=1) > 1
        if rescored.any():
            rescored[rescored] = self._unsure(scores[rescored, :2])
        if rescored.any():
            rows = np.flatnonzero(rescored)
            first = positions[rows, : self.k]
            again = self._again(self.encode_reference(batch_rows(queries, rows)), first)
            scores = scores.astype(np.result_type(scores, np.float32))
            head = scores[rows]
            head[:, : self.k] = np.where(first >= 0, again, head[:, : self.k])
            positions[rows], scores[rows] = reorder(positions[rows], head, self.k)
        self._count(rescored)
        return RescoredBatch(positions=positions, scores=scores, rescored=rescored)

    @property
    def n_rescored(self) -> int:
        """How many queries were rescored."""
        return self._sent

    @property
    def rescored_share(self) -> float | None:
        """Share of the queries that were rescored; None before the first."""
        return self._share()

    def _again(self, queries: Any, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The reference's scores of some documents, float64 [n, k]."""
        wanted = len(positions), np.shape(self.reference_documents)[1]
        query = _matrix(queries, "embeddings from encode_reference, as wide as reference_documents,", wanted)
        query = query.astype(np.float64)
        documents = as_array(self.reference_documents[np.maximum(positions, 0)]).astype(np.float64)
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


def _check_order(positions: NDArray[np.int64], scores: NDArray[Any]) -> None:
    """Refuse what is not given best first, larger being better: the gap would be of other items."""
    falls = (scores[:, 1:] <= scores[:, :-1]) | (positions[:, 1:] < 0)  # NaN is neither above nor below
    if not falls.all():
        raise ScoreError(
            "expected the search's scores as numbers, best first, larger being better; those of query "
            f"{int((~falls).any(axis=1).argmax())} of the batch increase along the row. Of distances, give minus the "
            "distance"
        )
