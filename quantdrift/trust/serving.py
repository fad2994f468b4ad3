"""Serving with two models: the candidate answers, the reference where the candidate is unsure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from quantdrift.conformal import ConfidenceName, as_array, confidence_of
from quantdrift.errors import QuantDriftError, ScoreError, UnknownNameError
from quantdrift.trust.rescoring import reorder
from quantdrift.trust.router import as_scores, batch_length, batch_rows
from quantdrift.trust.sweep import Accepts, Gate, Routes, Traffic, routed_by, score_of

# --- serving --------------------------------------------------------------------------------------


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
        rule: the decision in words.
    """

    index: NDArray[np.int64]
    routed: NDArray[np.bool_]
    confidence: NDArray[np.float64]
    logits: NDArray[Any]
    classes: Sequence[Any] | None
    rule: _Rule

    @property
    def labels(self) -> list[Any]:
        """The classes answered, by name where there are names."""
        return [self[row].label for row in range(len(self))]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, row: int) -> Routed:
        index, confidence = int(self.index[row]), float(self.confidence[row])
        return Routed(
            label=index if self.classes is None else self.classes[index],
            index=index,
            routed=bool(self.routed[row]),
            why=self.rule.why(routed=bool(self.routed[row]), confidence=confidence),
            confidence=confidence,
        )

    def __iter__(self) -> Iterator[Routed]:
        return (self[row] for row in range(len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """What to say of a decision."""

    score: ConfidenceName
    threshold: float | None

    def why(self, *, routed: bool, confidence: float) -> str:
        """The decision on one input in words."""
        who = "reference" if routed else "candidate"
        sign, below, above, unit = 1, "below", "at least", ""
        if self.score == "entropy":  # turned round, so that larger is surer
            sign, below, above, unit = -1, "above", "at most", " nats"
        shown = f"{self.score} {sign * confidence + 0.0:.4g}{unit}"  # + 0.0: no minus before a 0
        if self.threshold is None:
            return f"{who}: the check {'does not accept' if routed else 'accepts'} {shown}"
        than = f"{sign * self.threshold + 0.0:.4g}{unit}"
        return f"{who}: {shown} is {below if routed else above} {than}"


class RoutedModel:
    """A candidate that asks the reference where it is unsure.

    The candidate runs on every batch. The reference runs once per batch on the routed rows only,
    and not at all where there are none.

    Threads may share it if both callables allow that: it keeps nothing between batches but its
    counters, which are locked. Two threads may be inside a callable at once.

    >>> from quantdrift import GapRouter
    >>> router = GapRouter(threshold=1.0)
    >>> model = RoutedModel(lambda x: x, lambda x: -x, router, classes=["a", "b"])
    >>> batch = model(np.array([[3.0, 1.0], [0.2, 0.1]]))
    >>> batch.labels, batch[1].why, model.routed_share
    (['a', 'b'], 'reference: gap 0.1 is below 1', 0.5)
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
            candidate: batch to logits [n, n_classes], as array or tensor (of any device), or as a
                result that has `logits`.
            reference: likewise, of the same classes in the same order. It is called with the rows
                that `quantdrift.trust.router.batch_rows` picks.
            router: a `GapRouter`, or a check: anything with `accepts(scores)`, whose unaccepted
                inputs are routed.
            classes: names of the classes.

        Raises:
            QuantDriftError: a model cannot be called, or the router is neither router nor check.
        """
        for arm, model in (("candidate", candidate), ("reference", reference)):
            if not callable(model):
                raise QuantDriftError(f"expected a {arm} that can be called with a batch; got {_kind(model)}")
        if not isinstance(router, Routes | Accepts):
            raise QuantDriftError(
                "expected a router (with routes(scores)) or a check (with accepts(scores)), e.g. "
                f"GapRouter.load(FILE) or StabilityCheck.load(FILE); got {_kind(router)}"
            )
        self.candidate = candidate
        self.reference = reference
        self.router = router
        self.classes = classes
        self._traffic = Traffic()
        self._rule = _Rule(
            score=score_of(router),
            # the threshold of a check may be one of anything
            threshold=getattr(router, "threshold", None) if isinstance(router, Routes) else None,
        )

    def __call__(self, batch: Any) -> RoutedBatch:
        """Answer a batch.

        Args:
            batch: a sequence, array, tensor, table, or a mapping of equally long columns.

        Raises:
            DataError: it is no batch, or its rows cannot be picked.
            ScoreError: logits that are not finite, or not one row per input. -infinity (a class
                that is masked) is let pass behind the candidate's first two and the reference's
                first.
        """
        n = batch_length(batch)
        if n == 0:
            return self._answers(np.zeros((0, 2)), np.zeros(0, dtype=bool), np.zeros(0))
        logits = self._rows(as_scores(self.candidate(batch)), n, "candidate")
        confidence = confidence_of(logits, self._rule.score)
        routed = routed_by(self.router, logits)
        if routed.any():
            rows = np.flatnonzero(routed)
            again = as_scores(self.reference(batch_rows(batch, rows)))
            again = self._rows(again, len(rows), "reference", n_classes=logits.shape[1])
            # the wider type of the two, so that neither arm's logits are rounded
            logits = logits.astype(np.result_type(logits, again))
            logits[rows] = again
        self._traffic.add(routed)
        return self._answers(logits, routed, confidence)

    @property
    def n_seen(self) -> int:
        """How many inputs were answered."""
        return self._traffic.counts()[0]

    @property
    def n_routed(self) -> int:
        """How many of them the reference answered."""
        return self._traffic.counts()[1]

    @property
    def routed_share(self) -> float | None:
        """Share of the inputs that the reference answered; None before the first."""
        seen, routed = self._traffic.counts()
        return routed / seen if seen else None

    def _answers(self, logits: NDArray[Any], routed: NDArray[np.bool_], confidence: NDArray[np.float64]) -> RoutedBatch:
        return RoutedBatch(
            index=logits.argmax(axis=1).astype(np.int64),
            routed=routed,
            confidence=confidence,
            logits=logits,
            classes=self.classes,
            rule=self._rule,
        )

    def _rows(self, logits: NDArray[Any], n: int, arm: str, *, n_classes: int | None = None) -> NDArray[Any]:
        """The logits, if they are what the batch asks for."""
        wanted = (n, logits.shape[1] if n_classes is None else n_classes)
        if logits.shape != wanted:
            raise ScoreError(
                f"expected logits of shape {wanted} from the {arm}, one row per input and the same "
                f"classes in both arms; got {logits.shape}"
            )
        # the largest is NaN or +infinity if any is; -infinity is a class that is masked, and of
        # the candidate's second one the confidence takes care
        if not np.isfinite(logits.max(axis=1, initial=-np.inf)).all():
            raise ScoreError(f"the {arm} gave logits that are NaN or infinite")
        if self.classes is not None and len(self.classes) != logits.shape[1]:
            raise QuantDriftError(f"{len(self.classes)} names of classes were given; the {arm} has {logits.shape[1]}")
        return logits


def _kind(value: object) -> str:
    return repr(value) if isinstance(value, str) else type(value).__name__


# --- rescored search ------------------------------------------------------------------------------

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
                `quantdrift.trust.router.batch_rows` picks.
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
                f"expected reference_documents of shape [n_docs, dim]; got shape {np.shape(reference_documents)}"
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
            return RescoredBatch(positions=none.astype(np.int64), scores=none, rescored=np.zeros(0, dtype=bool))
        found = self.search(queries)
        positions, scores = as_scores(found[0]).astype(np.int64), as_scores(found[1]).copy()
        if positions.shape != scores.shape or len(positions) != n:
            raise ScoreError(
                f"expected positions and scores of {n} queries in one shape; got {positions.shape} and {scores.shape}"
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
