"""Compares both arms in tasks of mteb's other than searches, without changing what the tasks do.

A task passes the values that it compares (embeddings, similarities) through a method of its own. While a pair is
evaluated, that method is wrapped to record its arguments, and one function for each family of tasks compares those of
both arms. A finished evaluation is worth more than its drift, so an error costs only the drift of that split and
subset, and one line says so.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from mteb import abstasks
from numpy.typing import ArrayLike, NDArray

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.candidate.pair import Arm
from quantdrift.evidence.probe import LinearProbe
from quantdrift.evidence.record import Evidence
from quantdrift.harness import as_vectors
from quantdrift.measuring.readings import evidence_of_logits
from quantdrift.metrics.order import order_agreement
from quantdrift.models.store import digest_of
from quantdrift_mteb.pairs import Where

CLASSES = ("different", "same")
"""Classes of a pair of sentences: mteb's labels 0 and 1."""

_SIMILARITIES = {
    "similarity": "similarity_scores",
    "cosine": "cosine_scores",
    "manhattan": "manhattan_distances",
    "euclidean": "euclidean_distances",
    "dot": "dot_scores",
}
"""mteb's name of a similarity in its figures to that among its scores, in mteb's order."""
_SUBSET = "_evaluate_subset"
"""mteb's method that evaluates one subset of a split."""


class RecordedCall(NamedTuple):
    """A call of the recorded method: its arguments by name, and its result."""

    arguments: Mapping[str, Any]
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The comparison of both arms on one split and subset.

    Attributes:
        evidence: the per-input record; None where the task is one ranking.
        keys: more figures for mteb's result than those of the evidence.
        reading: origin of the evidence's scores, for the record.
    """

    evidence: Evidence | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)


Calls = Sequence[RecordedCall]
Compare = Callable[[Any, Where, Calls, Calls], Compared]
"""Compares both arms, given the task, split and subset, and the calls in either arm."""


def family_of(task: Any) -> tuple[str, Compare] | None:
    """Return the method of a task to record, and the comparison; None where there is nothing to compare."""
    # mteb derives these from classification, but their inputs have several classes or none
    if isinstance(task, abstasks.AbsTaskMultilabelClassification | abstasks.AbsTaskRegression):
        return None
    families: dict[type, tuple[str, Compare]] = {
        abstasks.AbsTaskClassification: ("_run_experiment", _classes),
        abstasks.AbsTaskPairClassification: ("_compute_metrics", _decisions),
        abstasks.AbsTaskSTS: ("_calculate_scores", _order),
    }
    return next((family for kind, family in families.items() if isinstance(task, kind)), None)


class Recorder:
    """The recorded calls of one task, by arm, split and subset."""

    def __init__(self, task: Any) -> None:
        self.task, self.family = task, family_of(task)
        self._heard: dict[tuple[Arm, Where], list[RecordedCall]] = {}

    @contextmanager
    def listening(self, arm: Arm) -> Iterator[None]:
        """Record the calls of the task in one arm."""
        name = "" if self.family is None else self.family[0]
        method, subset = getattr(self.task, name, None), getattr(self.task, _SUBSET, None)
        if method is None or subset is None or {name, _SUBSET} & vars(self.task).keys():
            yield  # nothing to record, or somebody else has wrapped it already
            return
        signature, heard = inspect.signature(method), list[RecordedCall]()

        @functools.wraps(method)
        def hearing(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            heard.append(RecordedCall(arguments=signature.bind(*args, **kwargs).arguments, result=result))
            return result

        @functools.wraps(subset)
        def of_subset(*args: Any, **kwargs: Any) -> Any:
            heard.clear()
            result = subset(*args, **kwargs)
            self._heard[arm, (str(kwargs.get("hf_split")), str(kwargs.get("hf_subset")))] = list(heard)
            return result

        setattr(self.task, name, hearing)
        setattr(self.task, _SUBSET, of_subset)
        try:
            yield
        finally:
            delattr(self.task, name)
            delattr(self.task, _SUBSET)

    def compared(self, where: Where) -> Compared:
        """Compare both arms on one split and subset; empty for tasks with nothing to compare."""
        if self.family is None:
            return Compared()
        method, compare = self.family
        arms: tuple[Arm, Arm] = ("reference", "candidate")
        full, low = (self._heard.pop((arm, where), []) for arm in arms)
        if not (full and low):
            raise UnsupportedError(f"it evaluates in its own way: mteb did not call {method} as expected")
        return compare(self.task, where, full, low)


# --- classification: a probe fitted to the reference reads both arms ------------------------------


def _classes(task: Any, where: Where, reference: Calls, candidate: Calls) -> Compared:
    """Compare the logits of one probe, where mteb fits several new classifiers to each arm.

    The linear probe is fitted to the reference's embeddings of all training inputs that mteb's experiments drew. All
    experiments have the same test embeddings.
    """

    def labels(heard: RecordedCall, part: str) -> list[str]:
        return [str(label) for label in heard.arguments[part][task.label_column_name]]

    tested = labels(reference[0], "eval_split")
    if any(labels(heard, "eval_split") != tested for heard in (*reference, *candidate)):
        raise DataError("its experiments, or the two arms, were tested on different inputs")
    rows: dict[tuple[bytes, str], NDArray[np.float32]] = {}
    for heard in reference:
        embeddings = as_vectors(heard.arguments["train_embeddings"])
        for row, label in zip(embeddings, labels(heard, "train_split"), strict=True):
            rows.setdefault((row.tobytes(), label), row)
    probe = LinearProbe.fit(np.stack(list(rows.values())), [label for _, label in rows])
    evidence = evidence_of_logits(
        *(probe.logits(as_vectors(arm[0].arguments["test_embeddings"])) for arm in (reference, candidate)),
        input_ids=_numbered(where, tested),
        classes=probe.classes,
        labels=tested,
    )
    said = {"folds": 1, "n_train": len(rows), "converged": probe.converged, "digest": digest_of([probe.digest])}
    reading = {"reading": "linear probe", "probe": said}
    return Compared(evidence=evidence, keys={"drift_probe_n_train": len(rows)}, reading=reading)


# --- similarities of pairs: all pairs are one ranking, and a frozen threshold decides -------------


def _order(task: Any, _: Where, reference: Calls, candidate: Calls) -> Compared:
    """Compare the two orders by the similarity of an STS task's main score."""
    name = str(task.metadata.main_score).partition("_")[0]
    arms = []
    for heard in map(_only, (reference, candidate)):
        scores = heard.arguments["scores"]
        key = _SIMILARITIES.get(name, "similarity_scores")
        # mteb takes the cosine for a model without a similarity
        arms.append(np.asarray(scores["cosine_scores" if scores[key] is None else key], dtype=np.float64))
    return Compared(keys={"drift_n_inputs": len(arms[0]), **_order_keys(*arms)})


def _decisions(task: Any, where: Where, reference: Calls, candidate: Calls) -> Compared:
    """Decide which pairs are the same, by the similarity and threshold that are best for the reference.

    The two classes score (threshold - s) / 2 and (s - threshold) / 2, so that the gap is the distance to the
    threshold, and twice epsilon the change of the similarity.
    """
    full, low = _only(reference), _only(candidate)
    labels, others = ([int(label) for label in heard.arguments["labels"]] for heard in (full, low))
    if labels != others:
        raise DataError("the two arms were tested on different pairs")
    name = _deciding(str(task.metadata.main_score), full.result)
    scores = [_similar(heard, name) for heard in (full, low)]
    accuracy, threshold = task._find_best_acc_and_threshold(
        scores[0].tolist(), np.asarray(labels, dtype=np.int64), True
    )
    if not accuracy:
        raise DataError("no threshold tells its pairs apart")
    threshold = float(threshold)
    logits = [(np.stack([threshold - s, s - threshold], axis=1) / 2).astype(np.float32) for s in scores]
    evidence = evidence_of_logits(
        *logits,
        input_ids=_numbered(where, labels),
        classes=CLASSES,
        labels=[CLASSES[int(label == 1)] for label in labels],
    )
    return Compared(
        evidence=replace(evidence, confidence=None),  # a softmax of these has no meaning
        keys=_order_keys(*scores),
        reading={"reading": "threshold", "similarity": name, "threshold": threshold},
    )


def _order_keys(reference: ArrayLike, candidate: ArrayLike) -> dict[str, Any]:
    agreement = order_agreement(reference, candidate)
    names = ("flip", "kendall_tau", "spearman", "epsilon", "delta_median")
    return {f"drift_order_{name}": getattr(agreement, name) for name in names}


def _only(calls: Calls) -> RecordedCall:
    if len(calls) != 1:
        raise DataError(f"expected its pairs to be scored once; got {len(calls)} times")
    return calls[0]


def _deciding(main_score: str, figures: Any) -> str:
    """Return the similarity of a main score; of a maximum, the first that reaches it."""
    name, _, figure = main_score.partition("_")
    if name in _SIMILARITIES:
        return name
    if name != "max":
        raise DataError(f"its main score is {main_score}, which belongs to no single similarity")
    return max(_SIMILARITIES, key=lambda similarity: figures[f"{similarity}_{figure}"])


def _similar(heard: RecordedCall, name: str) -> NDArray[np.float64]:
    """Return the similarities of the pairs, distances negated."""
    key = _SIMILARITIES[name]
    scores = np.asarray(heard.arguments["similarity_scores"][key], dtype=np.float64)
    return -scores if key.endswith("distances") else scores


def _numbered(where: Where, inputs: Sequence[Any]) -> list[str]:
    return [f"{where[0]}-{number}" for number in range(len(inputs))]
