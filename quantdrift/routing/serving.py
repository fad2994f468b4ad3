"""Serving with two models: the candidate answers, the reference where the candidate is unsure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.confidence import ConfidenceName, confidence_of
from quantdrift.errors import QuantDriftError, ScoreError
from quantdrift.routing.batches import as_scores, batch_length, batch_rows
from quantdrift.routing.gates import Accepts, Gate, Routes, Traffic, routed_by, score_of

__all__ = ["Routed", "RoutedBatch", "RoutedModel"]


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
                that `quantdrift.routing.batches.batch_rows` picks.
            router: a `GapRouter`, or a check: anything with `accepts(scores)`, whose unaccepted
                inputs are routed.
            classes: names of the classes.

        Raises:
            QuantDriftError: a model cannot be called, or the router is neither router nor check.
        """
        for arm, model in (("candidate", candidate), ("reference", reference)):
            if not callable(model):
                raise QuantDriftError(
                    f"expected a {arm} that can be called with a batch; got {_kind(model)}"
                )
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

    def _answers(
        self, logits: NDArray[Any], routed: NDArray[np.bool_], confidence: NDArray[np.float64]
    ) -> RoutedBatch:
        return RoutedBatch(
            index=logits.argmax(axis=1).astype(np.int64),
            routed=routed,
            confidence=confidence,
            logits=logits,
            classes=self.classes,
            rule=self._rule,
        )

    def _rows(
        self, logits: NDArray[Any], n: int, arm: str, *, n_classes: int | None = None
    ) -> NDArray[Any]:
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
            raise QuantDriftError(
                f"{len(self.classes)} names of classes were given; the {arm} has {logits.shape[1]}"
            )
        return logits


def _kind(value: object) -> str:
    return repr(value) if isinstance(value, str) else type(value).__name__
