"""What is compared in tasks of mteb's that are no search, without changing what they do.

What a task compares (embeddings, similarities) passes through a method of its own. While a pair is evaluated that is
shadowed: the original runs as ever, and what it was given is kept. From what both arms gave it one function a family
makes the comparison. A finished evaluation is worth more than its drift, so whatever goes wrong in that costs the
drift of that split and subset, and one line says so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
from mteb._evaluators import BitextMiningEvaluator
from mteb.abstasks import (
    AbsTaskBitextMining,
    AbsTaskClassification,
    AbsTaskMultilabelClassification,
    AbsTaskPairClassification,
    AbsTaskRegression,
    AbsTaskSTS,
)
from numpy.typing import ArrayLike, NDArray

from quantdrift.engine.measure import assemble
from quantdrift.engine.pair import Arm
from quantdrift.engine.readings import evidence_of_logits
from quantdrift.engine.scoring.streamed import score_embeddings
from quantdrift.engine.store import digest_of
from quantdrift.errors import DataError, UnsupportedError
from quantdrift.evidence import Evidence
from quantdrift.harness import DEPTH, as_vectors, carefully, similarity_of
from quantdrift.metrics.order import order_agreement
from quantdrift.patching import is_pair
from quantdrift.probe import LinearProbe
from quantdrift_mteb.pairs import Where

MOST_SEARCHES = 100
"""Pairs of languages in one split whose embeddings and evidence are held side by side."""
CLASSES = ("different", "same")
"""What a pair of sentences is: mteb's labels 0 and 1."""

_SIMILARITIES = {
    "similarity": "similarity_scores",
    "cosine": "cosine_scores",
    "manhattan": "manhattan_distances",
    "euclidean": "euclidean_distances",
    "dot": "dot_scores",
}
"""What mteb calls a similarity in its figures and among its scores, in its own order."""
_SUBSETS = ("_evaluate_subset", "_evaluate_subset_cross_validation")
"""What mteb evaluates one subset of a split with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One call of the method that is listened to: its arguments by name, and what it returned."""

    arguments: Mapping[str, Any]
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Both arms on one split and subset.

    Attributes:
        evidence: the per-input record; None where the task is one ranking.
        keys: figures for mteb's result beside those of the evidence.
        reading: how the evidence's scores were had, for the record.
        n_items: how many items each input ranks.
        searched: whether mteb's own figures are of the same ranking.
    """

    evidence: Evidence | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    n_items: int = 0
    searched: bool = False


Calls = Sequence[Heard]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is made of a family of tasks.

    Attributes:
        method: that is listened to.
        compare: from the task, split and subset, and the calls in either arm, to comparisons by split and subset.
        holder: the class that has the method; None if that is the task.
    """

    method: str
    compare: Callable[[Any, Where, Calls, Calls], Mapping[Where, Compared]]
    holder: type | None = None


def family_of(task: Any) -> Family | None:
    """The family of a task of mteb's; None where there is nothing to compare."""
    # mteb derives these from classification, but an input has several classes there, or none
    if isinstance(task, AbsTaskMultilabelClassification | AbsTaskRegression):
        return None
    known = {
        AbsTaskClassification: Family(method="_run_experiment", compare=_classes),
        AbsTaskPairClassification: Family(method="_compute_metrics", compare=_decisions),
        AbsTaskSTS: Family(method="_calculate_scores", compare=_order),
        AbsTaskBitextMining: Family(method="_similarity_search", compare=_searches, holder=BitextMiningEvaluator),
    }
    return next((family for kind, family in known.items() if isinstance(task, kind)), None)


# --- listening ------------------------------------------------------------------------------------


class Watch:
    """What has been heard of one task: `compared` of both arms, and where there is no comparison."""

    def __init__(self, task: Any) -> None:
        self.task, self.family = task, family_of(task)
        self.compared: dict[Where, Compared] = {}
        self._reference: dict[Where, list[Heard]] = {}
        self._failed: set[Where] = set()

    def carefully(self, where: Where) -> Any:
        """Inside, what goes wrong costs the comparison of this subset, and one line says why."""
        return carefully(f"{self.task.metadata.name} {'/'.join(where)}", failed=lambda: self._failed.add(where))

    @contextmanager
    def listening(self, arm: Arm) -> Iterator[None]:
        """Inside, what the task does in one arm is heard."""
        family = self.family
        if family is None:
            yield
            return
        current: tuple[Where, list[Heard]] | None = None

        def hearing(original: Callable[..., Any]) -> Callable[..., Any]:
            signature = inspect.signature(original)

            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                given = signature.bind(*args, **kwargs).arguments
                ours = family.holder is None or is_pair(given["model"])  # a class is shared with stock runs
                if current is not None and current[0] not in self._failed and ours:
                    with self.carefully(current[0]):
                        if family.holder is not None and len(current[1]) >= MOST_SEARCHES:
                            current[1].clear()  # it would stay in memory to the end
                            raise UnsupportedError(
                                f"more than {MOST_SEARCHES} pairs of languages are searched at once, whose drift "
                                "memory would not hold; choose languages with --languages"
                            )
                        current[1].append(Heard(arguments=given, result=result))
                return result

            return call

        def subset(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal current
                where = (str(kwargs.get("hf_split")), str(kwargs.get("hf_subset")))
                current = (where, [])
                try:
                    result = original(*args, **kwargs)
                    if where not in self._failed:
                        with self.carefully(where):
                            self._finish(family, arm, *current)
                finally:
                    current = None
                return result

            return call

        with ExitStack() as stack:
            stack.enter_context(_shadowed(family.holder or self.task, family.method, hearing))
            for name in _SUBSETS:
                stack.enter_context(_shadowed(self.task, name, subset))
            yield

    def _finish(self, family: Family, arm: Arm, where: Where, calls: list[Heard]) -> None:
        if not calls:
            raise UnsupportedError(f"mteb did not call {family.method}")
        if arm == "reference":
            self._reference[where] = calls
        elif where in self._reference:
            self.compared |= family.compare(self.task, where, self._reference.pop(where), calls)


@contextmanager
def _shadowed(holder: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, a method of one object, or of a class, is another."""
    original = getattr(holder, name, None)
    of_class = isinstance(holder, type)
    if original is None or (name in vars(holder) and not of_class):
        yield  # not there, or somebody else's doing: it stays
        return
    setattr(holder, name, wrap(original))
    try:
        yield
    finally:
        if of_class:
            setattr(holder, name, original)
        else:
            delattr(holder, name)


# --- classification: a probe fitted on the reference reads both arms ------------------------------


def _classes(task: Any, where: Where, reference: Calls, candidate: Calls) -> dict[Where, Compared]:
    """The frozen classifier's logits, in place of the new classifiers that mteb fits to each arm several times.

    A linear probe is fitted on the reference's embeddings of all training inputs that mteb's own experiments drew;
    with cross-validation one a fold. The experiments on one fold get the very same test embeddings.
    """
    full, low = (
        [list(fold) for _, fold in groupby(arm, key=lambda heard: id(heard.arguments["test_embeddings"]))]
        for arm in (reference, candidate)
    )

    def labels(heard: Heard, part: str) -> list[str]:
        return [str(label) for label in heard.arguments[part][task.label_column_name]]

    tested = [labels(fold[0], "eval_split") for fold in full]
    if tested != [labels(fold[0], "eval_split") for fold in low]:
        raise DataError("the two arms were tested on different inputs")
    probes: list[LinearProbe] = []
    every: set[tuple[bytes, str]] = set()
    for fold in full:
        rows: dict[tuple[bytes, str], NDArray[np.float32]] = {}
        for heard in fold:
            embeddings = as_vectors(heard.arguments["train_embeddings"])
            for row, label in zip(embeddings, labels(heard, "train_split"), strict=True):
                rows.setdefault((row.tobytes(), label), row)
        probes.append(LinearProbe.fit(np.stack(list(rows.values())), [label for _, label in rows]))
        every |= rows.keys()
    classes = probes[0].classes
    if any(probe.classes != classes for probe in probes):
        raise DataError("the folds of its cross-validation do not all hold the same classes")
    logits = [
        [
            probe.logits(as_vectors(fold[0].arguments["test_embeddings"]))
            for probe, fold in zip(probes, arm, strict=True)
        ]
        for arm in (full, low)
    ]
    stems = [where[0]] if len(tested) == 1 else [f"{where[0]}-{number}" for number in range(len(tested))]
    evidence = evidence_of_logits(
        np.concatenate(logits[0]),
        np.concatenate(logits[1]),
        input_ids=[f"{stem}-{n}" for stem, part in zip(stems, tested, strict=True) for n in range(len(part))],
        classes=classes,
        labels=[label for part in tested for label in part],
    )
    probe = {
        "folds": len(full),
        "n_train": len(every),
        "converged": all(probe.converged for probe in probes),
        "digest": digest_of(probe.digest for probe in probes),
    }
    reading = {"reading": "linear probe", "probe": probe}
    keys = {"drift_probe_n_train": len(every)}
    return {where: Compared(evidence=evidence, keys=keys, reading=reading, n_items=len(classes))}


# --- similarities of pairs: all pairs are one ranking, and a frozen threshold decides -------------


def _order(task: Any, where: Where, reference: Calls, candidate: Calls) -> dict[Where, Compared]:
    """The agreement of the two orders by the similarity that decides an STS task's main score."""
    name = str(task.metadata.main_score).partition("_")[0]
    arms = []
    for heard in map(_only, (reference, candidate)):
        scores = heard.arguments["scores"]
        own = _SIMILARITIES.get(name, "similarity_scores")
        # mteb takes the cosine for a model without a similarity
        arms.append(np.asarray(scores["cosine_scores" if scores[own] is None else own], dtype=np.float64))
    return {where: Compared(keys={"drift_n_inputs": len(arms[0]), **_order_keys(*arms)})}


def _decisions(task: Any, where: Where, reference: Calls, candidate: Calls) -> dict[Where, Compared]:
    """Which pairs are the same, by the similarity and the threshold that are the reference's own best ones.

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
        input_ids=[f"{where[0]}-{number}" for number in range(len(labels))],
        classes=CLASSES,
        labels=[CLASSES[int(label == 1)] for label in labels],
    )
    compared = Compared(
        evidence=replace(evidence, confidence=None),  # its softmax would mean nothing
        keys=_order_keys(*scores),
        reading={"reading": "threshold", "similarity": name, "threshold": threshold},
        n_items=len(CLASSES),
    )
    return {where: compared}


def _order_keys(reference: ArrayLike, candidate: ArrayLike) -> dict[str, Any]:
    found = order_agreement(reference, candidate)
    names = ("flip", "kendall_tau", "spearman", "epsilon", "delta_median")
    return {f"drift_order_{name}": getattr(found, name) for name in names}


def _only(calls: Calls) -> Heard:
    if len(calls) != 1:
        raise DataError(f"expected its pairs to be scored once; got {len(calls)} times")
    return calls[0]


def _deciding(main_score: str, figures: Any) -> str:
    """The similarity that a main score is of; of a maximum, the first that reaches it."""
    name, _, figure = main_score.partition("_")
    if name in _SIMILARITIES:
        return name
    if name != "max":
        raise DataError(f"its main score is {main_score}, which is not of one similarity")
    return max(_SIMILARITIES, key=lambda each: figures[f"{each}_{figure}"])


def _similar(heard: Heard, name: str) -> NDArray[np.float64]:
    """The similarities of the pairs; a distance is turned around."""
    key = _SIMILARITIES[name]
    scores = np.asarray(heard.arguments["similarity_scores"][key], dtype=np.float64)
    return -scores if key.endswith("distances") else scores


# --- bitext mining: every sentence searches its translation in another language -------------------


def _searches(task: Any, where: Where, reference: Calls, candidate: Calls) -> dict[Where, Compared]:
    """The scores of both arms, streamed search by search."""
    names = [where[1]]
    if task.parallel_subsets:  # one split of many languages, searched pair by pair
        names = ["-".join(pair) for pair in task._get_pairs(True)]
    searches = zip(names, reference, candidate, strict=True)
    return {(where[0], name): _searched(full.arguments, low.arguments, where[0]) for name, full, low in searches}


def _searched(full: Mapping[str, Any], low: Mapping[str, Any], split: str) -> Compared:
    model, sentences = full["model"], full["self"].sentences
    queries, documents = (
        [as_vectors(arm[f"{side}_embeddings"]) for arm in (full, low)] for side in ("query", "corpus")
    )
    similarity = similarity_of(model.base.similarity, queries[0].shape[1])
    if similarity is None:
        raise UnsupportedError("the model's similarity is none that quantdrift computes")
    device = model.pair.device if model.pair.device.type == "cuda" else "cpu"
    state = score_embeddings(*queries, *documents, similarity=similarity, k=DEPTH, device=device)
    input_ids = [f"{split}-{number}" for number in range(len(queries[0]))]
    item_ids = [str(number) for number in range(len(documents[0]))]
    # as mteb has it: the sentence of the same position, unless the data are a dict that says
    gold = list(range(len(input_ids)))
    if isinstance(sentences, dict) and "gold" in sentences:
        gold = [int(position) for _, position in sentences["gold"]][: len(input_ids)]
    qrels = {name: {str(position): 1} for name, position in zip(input_ids, gold, strict=True)}
    evidence = assemble(state, input_ids=input_ids, item_ids=item_ids, qrels=qrels, depth=DEPTH)
    reading = {"similarity": str(similarity)}
    return Compared(evidence=evidence, reading=reading, n_items=len(item_ids), searched=True)
