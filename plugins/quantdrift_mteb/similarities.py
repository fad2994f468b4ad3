"""Tasks of mteb's that score pairs by one similarity: STS, and deciding whether a pair is the same.

All pairs of such a task are one ranking, so what can change is their order. Where pairs are also
classified, the threshold is frozen at the reference's own best one, and a pair whose similarity
crosses it flips.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift.engine.classes import evidence_of_logits
from quantdrift.engine.pair import Arm
from quantdrift.errors import DataError
from quantdrift.metrics.order import order_agreement
from quantdrift_mteb.watching import Compared, Heard, Where

CLASSES = ("different", "same")
"""What a pair is: mteb's labels 0 and 1."""

_SIMILARITIES = {
    "similarity": "similarity_scores",
    "cosine": "cosine_scores",
    "manhattan": "manhattan_distances",
    "euclidean": "euclidean_distances",
    "dot": "dot_scores",
}
"""What mteb calls a similarity in its figures and among its scores, in its own order."""


class SimilarityListener:
    """Listens to what an STS task correlates with the human scores."""

    method = "_calculate_scores"
    holder: type | None = None

    def __init__(self, main_score: str) -> None:
        self.similarity = main_score.partition("_")[0]

    def hear(self, heard: Heard, so_far: list[Heard], arm: Arm) -> None:
        """Note the scores."""
        so_far.append(heard)

    def reference(self, so_far: list[Heard], where: Where) -> NDArray[np.float64]:
        """The similarities that decide the main score."""
        scores = _only(so_far).arguments["scores"]
        own = _SIMILARITIES.get(self.similarity, "similarity_scores")
        if scores[own] is None:  # mteb takes the cosine for a model without a similarity
            own = "cosine_scores"
        return np.asarray(scores[own], dtype=np.float64)

    def candidate(self, so_far: list[Heard], where: Where, kept: NDArray[np.float64]) -> dict[Where, Compared]:
        """The agreement of the two orders."""
        candidate = self.reference(so_far, where)
        keys = {"drift_n_inputs": len(kept), **order_keys(kept, candidate)}
        return {where: Compared(evidence=None, keys=keys)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    """What the reference leaves.

    Attributes:
        name: mteb's, of the similarity that decides the main score.
        scores: float64 [n_pairs], larger is more similar.
        threshold: a pair of a larger score is the same.
        labels: 0 or 1 per pair.
    """

    name: str
    scores: NDArray[np.float64]
    threshold: float
    labels: list[int]


class PairListener:
    """Listens to what a pair classification task finds thresholds for."""

    method = "_compute_metrics"
    holder: type | None = None

    def __init__(self, task: Any) -> None:
        self.task = task

    def hear(self, heard: Heard, so_far: list[Heard], arm: Arm) -> None:
        """Note the scores."""
        so_far.append(heard)

    def reference(self, so_far: list[Heard], where: Where) -> _Decided:
        """Freeze the similarity that decides the main score, and its best threshold."""
        heard = _only(so_far)
        name = _deciding(str(self.task.metadata.main_score), heard.result)
        labels = [int(label) for label in heard.arguments["labels"]]
        scores = _similar(heard, name)
        accuracy, threshold = self.task._find_best_acc_and_threshold(
            scores.tolist(), np.asarray(labels, dtype=np.int64), True
        )
        if not accuracy:
            raise DataError("no threshold tells its pairs apart")
        return _Decided(name=name, scores=scores, threshold=float(threshold), labels=labels)

    def candidate(self, so_far: list[Heard], where: Where, kept: _Decided) -> dict[Where, Compared]:
        """Decide with the reference's threshold.

        The two classes score (threshold - s) / 2 and (s - threshold) / 2, so that the gap is the
        distance to the threshold, and twice epsilon the change of the similarity.
        """
        heard = _only(so_far)
        if [int(label) for label in heard.arguments["labels"]] != kept.labels:
            raise DataError("the two arms were tested on different pairs")
        scores = _similar(heard, kept.name)
        reference, candidate = (
            np.stack([kept.threshold - part, part - kept.threshold], axis=1) / 2 for part in (kept.scores, scores)
        )
        evidence = evidence_of_logits(
            reference.astype(np.float32),
            candidate.astype(np.float32),
            input_ids=[f"{where[0]}-{number}" for number in range(len(scores))],
            classes=CLASSES,
            labels=[CLASSES[int(label == 1)] for label in kept.labels],
        )
        compared = Compared(
            evidence=replace(evidence, confidence=None),  # its softmax would mean nothing
            keys=order_keys(kept.scores, scores),
            reading={"reading": "threshold", "similarity": kept.name, "threshold": kept.threshold},
            n_items=len(CLASSES),
        )
        return {where: compared}


def order_keys(reference: ArrayLike, candidate: ArrayLike) -> dict[str, Any]:
    """The agreement of two orders, as keys.

    Args:
        reference: float [n_pairs], similarities.
        candidate: float [n_pairs], of the same pairs.
    """
    found = order_agreement(reference, candidate)
    return {
        "drift_order_flip": found.flip,
        "drift_order_kendall_tau": found.kendall_tau,
        "drift_order_spearman": found.spearman,
        "drift_order_epsilon": found.epsilon,
        "drift_order_delta_median": found.delta_median,
    }


def _only(calls: list[Heard]) -> Heard:
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
