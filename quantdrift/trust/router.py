"""The rule: an input whose confidence lies below a threshold goes to full precision.

The confidence is read from the candidate's own scores, so the rule costs nothing that the
deployment does not compute already, and its threshold is set without labels.

Source: paper, section 5.3 (routing inputs by the gap).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.conformal import CONFIDENCES, ConfidenceName, as_array, confidence_in, confidence_of
from quantdrift.errors import DataError, QuantDriftError, RunError, ScoreError, UnknownNameError
from quantdrift.evidence import Evidence
from quantdrift.identity import Identity
from quantdrift.metrics import parse_metric
from quantdrift.perturbation import flips
from quantdrift.records import is_number, read_object, refuse_other, sealed, write_text
from quantdrift.runs import Run

# --- The small JSON file of a router: threshold, confidence, and what it was set on ---------------

FORMAT = "quantdrift-router"
FORMAT_VERSION = 2

MAKE = "quantdrift route RUN --save FILE"
"""The command that writes a router."""


def write_router(path: Path, *, threshold: float, score: ConfidenceName, origin: Identity) -> None:
    """Write a router's file, in place of an earlier one.

    Raises:
        RunError: another kind of file lies there, or it cannot be written.
    """
    refuse_other(path, FORMAT, "a router")
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "score": score,
        "threshold": threshold,  # Python's shortest decimal, which reads back to the same number
        "set_on": origin.to_json(),
    }
    text = json.dumps(sealed(content), indent=2, ensure_ascii=False) + "\n"
    write_text(path, text, what="the router")


def read_router(path: Path) -> tuple[float, ConfidenceName, Identity]:
    """Threshold, confidence and origin of a router's file.

    Raises:
        RunError: no such file, or it cannot be read.
    """
    content = read_object(path, FORMAT, FORMAT_VERSION, what="a router", make=MAKE, error=RunError)
    threshold: Any = content.get("threshold")
    score: Any = content.get("score")
    if not (is_number(threshold) and score in CONFIDENCES):
        raise RunError(
            f"{path} is damaged: expected a finite threshold and a score of "
            f"{', '.join(CONFIDENCES)}; got {threshold!r:.40}, {score!r:.40}"
        )
    try:
        return float(threshold), score, Identity.from_json(content.get("set_on"))
    except ValueError as error:
        raise RunError(f"{path} is damaged: set_on: {error}") from error


# --- Batches of any kind: how long they are, and some of their rows -------------------------------


def as_scores(values: Any) -> NDArray[Any]:
    """A matrix of scores, of an array, a nested list or a tensor on any device.

    Raises:
        ScoreError: it has not two axes, or numpy cannot read it.
    """
    scores = as_array(values)
    if scores.ndim != 2:  # noqa: PLR2004 -- a matrix
        raise ScoreError(
            f"expected scores of shape [n_inputs, n_items]; got shape {scores.shape}. One input "
            "is a batch of one: scores[None]"
        )
    return scores


def batch_length(batch: Any) -> int:
    """How many inputs a batch has.

    Args:
        batch: a sequence of inputs, an array or tensor with inputs along the first axis, a table
            with `iloc`, or a mapping of equally long arrays, tensors or sequences (input_ids,
            attention_mask and so on).

    Raises:
        DataError: a single text, something without a length (a generator, a single number), an
            empty mapping, or columns of different lengths.
    """
    if isinstance(batch, str | bytes):
        raise DataError("expected a batch of inputs; got a single text. Pass a list: [text]")
    if not isinstance(batch, Mapping):
        length = _length(batch)
        if length is None:
            raise DataError(
                "expected a batch of inputs that has a length and whose rows can be picked; got "
                f"{type(batch).__name__}. Make a list of it: list(batch), or [input] of one input"
            )
        return length
    lengths = {str(name): _length(column) for name, column in batch.items()}
    different = set(lengths.values())
    if len(different) != 1 or None in different:
        raise DataError(
            "expected a mapping of equally long columns, one row per input; got lengths "
            f"{lengths}. Settings that are not per input belong into the callable"
        )
    return int(next(iter(lengths.values())) or 0)


def _length(values: Any) -> int | None:
    if isinstance(values, str | bytes):
        return None
    try:
        return len(values)
    except TypeError:  # a generator, a number, an array without axes
        return None


def batch_rows(batch: Any, rows: NDArray[np.int64]) -> Any:
    """Some inputs of a batch, in the order given, as a batch of the same kind.

    An array or tensor is indexed along its first axis (a tensor stays on its device), a table by
    `iloc`, a Dataset of Hugging Face by `select`, a mapping column by column, as a dict. Any other
    sequence becomes a list.

    Args:
        batch: as of `batch_length`.
        rows: int64, positions of inputs.

    Raises:
        DataError: its rows cannot be picked.
    """
    if isinstance(batch, Mapping):
        return {name: batch_rows(column, rows) for name, column in batch.items()}
    if hasattr(batch, "iloc"):
        return batch.iloc[rows]
    if hasattr(batch, "select") and hasattr(batch, "features"):  # a Dataset; other tables' select
        return batch.select(rows.tolist())  # is of columns
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        return batch[rows]
    listed = hasattr(batch, "__getitem__") and not hasattr(batch, "shape")
    if isinstance(batch, Sequence) or listed:
        return [batch[row] for row in rows.tolist()]
    raise DataError(
        "expected a batch as a sequence, array, tensor, table or mapping of those; got "
        f"{type(batch).__name__}, whose rows cannot be picked"
    )


# --- The rule: an input whose confidence lies below a threshold goes to full precision ------------

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRouter:
    """Routes an input to full precision iff the candidate's confidence is below a threshold.

    >>> router = GapRouter(threshold=0.5)
    >>> router.routes([[2.0, 1.9], [2.0, 1.0]]).tolist()
    [True, False]

    Attributes:
        threshold: in the unit of the confidence, finite.
        score: which confidence: "gap", "msp" or "entropy" (minus the entropy, so larger is surer).
        origin: where the inputs came from that it was set on, as far as that is known.
    """

    threshold: float
    score: ConfidenceName = "gap"
    origin: Identity = field(default_factory=Identity)

    def __post_init__(self) -> None:
        if self.score not in CONFIDENCES:
            raise UnknownNameError("confidence", self.score, CONFIDENCES)
        if not math.isfinite(self.threshold):
            raise QuantDriftError(f"expected a finite threshold; got {self.threshold}")

    @property
    def rule(self) -> str:
        """What is routed, in words."""
        if self.score == "entropy":  # turned round, so that larger is surer
            return f"entropy above {-self.threshold:.4g} nats"
        return f"{self.score} below {self.threshold:.4g}"

    def routes(self, scores: Any) -> NDArray[np.bool_]:
        """Which inputs of a batch go to full precision.

        Args:
            scores: [n, n_items] array or tensor, the candidate's scores of all items (for the gap,
                at least of its first two), in any order.

        Returns:
            bool [n], true where the confidence is strictly below the threshold.

        Raises:
            ScoreError: no matrix, fewer than two items, or a score that is not finite.
        """
        return np.asarray(confidence_of(scores, self.score) < self.threshold)

    @classmethod
    def at_percentile(cls, slice_: Evidence | Any, percentile: float = 25, score: ConfidenceName = "gap") -> GapRouter:
        """Set the threshold at a percentile of the confidence on an unlabeled slice.

        Args:
            slice_: evidence of a run, or the candidate's scores [n, n_items] on the slice. Labels
                are not looked at.
            percentile: from 0 (routes none of the slice) to 100 (all of it).
            score: which confidence.

        Returns:
            As `percentile_threshold`.

        Raises:
            QuantDriftError: no such percentile, or no input with two items.
        """
        confidence = confidence_in(slice_, score) if isinstance(slice_, Evidence) else confidence_of(slice_, score)
        return cls(threshold=percentile_threshold(confidence, percentile), score=score)

    @classmethod
    def at_recovered_share(
        cls, slice_: Evidence | tuple[Any, Any], share: float = 0.9, score: ConfidenceName = "gap"
    ) -> GapRouter:
        """Set the smallest threshold that routes a share of the changed answers of a slice.

        Args:
            slice_: evidence of a run, or the scores of reference and candidate, each
                [n, n_items]. Labels are not looked at.
            share: of the inputs whose first answer changed, above 0 and at most 1.
            score: which confidence.

        Returns:
            As `recovery_threshold`.

        Raises:
            QuantDriftError: no such share, or no answer changed.
        """
        if isinstance(slice_, Evidence):
            confidence, changed = confidence_in(slice_, score), flips(slice_)
        else:
            before, after = (as_scores(scores) for scores in slice_)
            if before.shape != after.shape:
                raise ScoreError(
                    "expected the scores of reference and candidate on the same inputs and items; "
                    f"got shapes {before.shape} and {after.shape}"
                )
            confidence = confidence_of(after, score)
            changed = before.argmax(axis=1) != after.argmax(axis=1)
        return cls(threshold=recovery_threshold(confidence, changed, share), score=score)

    def set_on(self, run: Run) -> GapRouter:
        """The same router, which remembers the run that its threshold was set on."""
        return replace(self, origin=Identity.of(run.record).brief())

    def save(self, path: Path | str) -> None:
        """Write it as a small JSON file, in place of an earlier one.

        Raises:
            RunError: another kind of file lies there, or it cannot be written.
        """
        write_router(Path(path), threshold=self.threshold, score=self.score, origin=self.origin)

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        spec: str | None = None,
        model_fingerprint: str | None = None,
        candidate_fingerprint: str | None = None,
        on: Mapping[str, Any] | None = None,
    ) -> GapRouter:
        """Read a router that `save` wrote.

        Args:
            path: the file.
            spec: the candidate it is for; one that was set on another is refused.
            model_fingerprint: digest of the reference's weights, likewise.
            candidate_fingerprint: digest of the quantized weights, likewise.
            on: record of a run of what is served, which says all of these and what its scores are.

        Raises:
            RunError: no such file, a damaged one, or one that was set on another spec, model or
                candidate, or on other scores; or the record is of another pair than `spec`.
        """
        threshold, score, origin = read_router(Path(path))
        here = Identity.of(
            on, spec=spec, model_fingerprint=model_fingerprint, candidate_fingerprint=candidate_fingerprint
        )
        origin.refuse_other(here, what=f"the router {path}", make=MAKE, error=RunError)
        return cls(threshold=threshold, score=score, origin=origin)


def percentile_threshold(confidence: Floats, percentile: float) -> float:
    """The threshold below which about a percentile of the slice lies.

    It is one of the slice's own values: the one at place (n - 1) percentile / 100, counted from 0
    and rounded up (numpy's "higher"). Without ties that many inputs lie strictly below it, which is
    within one input of the percentile. Inputs that tie with the threshold are not routed, so with
    ties fewer are. 100 is taken at its word: the next number above the largest value.

    Args:
        confidence: float64 [n]; NaN (an input with one item) is left out.
        percentile: from 0 to 100.

    Raises:
        QuantDriftError: no such percentile, or nothing is left.
    """
    if not 0 <= percentile <= 100:  # noqa: PLR2004 -- percent
        raise QuantDriftError(f"expected a percentile from 0 to 100; got {percentile}")
    known = confidence[~np.isnan(confidence)]
    if not len(known):
        raise QuantDriftError("expected a slice with at least one input of two items; got none")
    if percentile == 100:  # noqa: PLR2004 -- as above
        return float(np.nextafter(known.max(), math.inf))
    return float(np.percentile(known, percentile, method="higher"))


def recovery_threshold(confidence: Floats, changed: NDArray[np.bool_], share: float) -> float:
    """The smallest threshold that routes at least a share of the changed answers.

    With c the confidences of the changed answers in increasing order and m their number, the next
    number above c[ceil(share m)]: inputs are routed strictly below the threshold.

    Args:
        confidence: float64 [n]; NaN (an input with one item) is left out, as it never changes.
        changed: bool [n].
        share: above 0, at most 1.

    Raises:
        QuantDriftError: no such share, or no answer changed.
    """
    if not 0 < share <= 1:
        raise QuantDriftError(f"expected a share above 0 and at most 1; got {share}")
    least = np.sort(confidence[changed & ~np.isnan(confidence)])
    if not len(least):
        raise QuantDriftError(
            f"none of the {len(confidence)} first answers changed on this slice, so no threshold "
            "can be said to give them back; take more inputs, or a percentile"
        )
    # 0.9 of 10 is 9, not the 10 that a product with its last bit too high would give
    wanted = max(1, math.ceil(round(share * len(least), 9)))
    return float(np.nextafter(least[wanted - 1], math.inf))


# --- What routing needs of a run: confidence, what changed, and which answers are right -----------

LEAST_LOSS = 0.005
"""Accuracy that quantization has to cost over a run before a share of the loss is told."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """The inputs of a run that could be routed (those with at least two items).

    Attributes:
        confidence: float64 [n], of the candidate, larger is surer.
        changed: bool [n], whether the first answer differs.
        gain: float64 [n], by how much the accuracy of the input rises if it is routed: 1, 0 or -1;
            NaN where it has no label.
    """

    confidence: NDArray[np.float64]
    changed: NDArray[np.bool_]
    gain: NDArray[np.float64]

    @property
    def n(self) -> int:
        """Number of inputs."""
        return len(self.confidence)


def answers_of(evidence: Evidence, score: ConfidenceName = "gap") -> Answers:
    """Confidence, changes and labels of a run.

    Args:
        evidence: of one run.
        score: which confidence.

    Raises:
        RunError: the run has no such confidence, or no input with two items.
    """
    confidence = confidence_in(evidence, score)
    known = ~np.isnan(confidence)
    if not known.any():
        raise RunError("expected a run with an input of at least two items; there is none")
    right = {
        arm: parse_metric(name).per_input(evidence)
        for arm, name in (("reference", "reference.accuracy"), ("candidate", "accuracy"))
    }
    return Answers(
        confidence=confidence[known],
        changed=flips(evidence)[known],
        gain=(right["reference"] - right["candidate"])[known],
    )


def accuracy_reason(answers: Answers) -> str | None:
    """Why there is no loss of accuracy to give back, or None if there is.

    The loss over the whole run has to be at least `LEAST_LOSS`, counted in inputs.

    Source: paper, section 5.3.
    """
    labelled = answers.gain[~np.isnan(answers.gain)]
    if not len(labelled):
        return "no input has a label"
    lost = float(labelled.sum())
    if lost <= 0:
        moved = f"rises by {-100 * lost / len(labelled):.2f} points" if lost else "is the same"
        return f"accuracy {moved}, so nothing was lost"
    if lost < LEAST_LOSS * len(labelled) * (1 - 1e-12):
        return (
            f"accuracy falls by {100 * lost / len(labelled):.2f} points, less than the "
            f"{100 * LEAST_LOSS:g} of which a share can be told"
        )
    return None


def scores_for(evidence: Evidence) -> tuple[ConfidenceName, ...]:
    """The confidences that a run has: all of them for logits, the gap for similarities."""
    return CONFIDENCES if evidence.confidence is not None else ("gap",)
