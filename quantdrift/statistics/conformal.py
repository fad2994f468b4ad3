"""The confidence of a model from its own scores, and the least confidence that can be trusted.

A larger confidence means a surer model, so that one threshold serves the stability check and routing. Nothing here
needs torch.

Source: paper, section 3; appendix, "Comparison with confidence scores".
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift.base.errors import QuantDriftError, RunError, ScoreError, UnknownNameError
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Confidence, Evidence
from quantdrift.statistics import selective

Floats = NDArray[np.float64]

ConfidenceName = Literal["gap", "msp", "entropy"]
"""The candidate gap, the maximum softmax probability, or minus the predictive entropy in nats."""

CONFIDENCES: tuple[ConfidenceName, ...] = get_args(ConfidenceName)

Statistic = Literal["S", "2epsilon", "gap", "msp", "entropy"]
"""S or 2 epsilon against the candidate gap; or a confidence, generically calibrated."""

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)

Guarantee = Literal["conditional", "joint"]
"""Of the accepted answers at most alpha changed, with confidence; or P(accepted and changed) <= alpha, on average."""

GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)

Source: TypeAlias = Evidence | tuple[ArrayLike, ArrayLike]
"""Evidence of a run, or scores of the reference and of the candidate, each [n_inputs, n_items]."""

MAKE = "quantdrift certify RUN --alpha A --save FILE"
"""The command that writes a check, for messages."""


class StabilityError(QuantDriftError):
    """A stability check cannot be calibrated, read, or used for this."""


class ExchangeabilityWarning(UserWarning):
    """Served inputs do not look like the calibration inputs, so the guarantee may not hold."""


_TURNED = {"below": "above", "above": "below", "at least": "at most"}


def in_words(name: ConfidenceName, relation: str, value: float) -> str:
    """A rule about a confidence in words: "gap below 0.5", "entropy above 1.2 nats"."""
    if name != "entropy":
        return f"{name} {relation} {value:.4g}"
    return f"entropy {_TURNED.get(relation, relation)} {0.0 - value:.4g} nats"  # it is stored as minus the entropy


# --- confidences ----------------------------------------------------------------------------------


def as_array(values: Any) -> NDArray[Any]:
    """Convert a model's output to an array: nested lists, a tensor on any device, a result with `logits`."""
    values = getattr(values, "logits", values)
    try:
        if hasattr(values, "detach"):  # a tensor is recognized without importing its framework
            values = values.detach().cpu()
            values = values.float() if "bfloat16" in str(values.dtype) else values  # which numpy does not have
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ScoreError(f"expected an array, a list or a tensor of numbers; {error}") from error


def confidence_of(scores: ArrayLike, name: ConfidenceName = "gap") -> Floats:
    """Confidence of scores; larger is surer.

    gap = first - second score; msp = max softmax(scores); entropy = sum_j p_j log p_j, which is minus the predictive
    entropy.

    >>> confidence_of([[1.0, 4.0, 3.5], [2.0, 2.0, 0.0]])
    array([0.5, 0. ])
    """
    if name == "gap":
        return _gap_of(scores)
    _check_name(name)
    confidence = softmax_confidence(scores)
    return confidence.msp if name == "msp" else -confidence.entropy


def confidence_in(evidence: Evidence, name: ConfidenceName = "gap") -> Floats:
    """Confidence of the candidate on every input of a run; NaN if there is only one item."""
    if name == "gap":
        return perturbation.candidate_gap(evidence)
    _check_name(name)
    if evidence.confidence is None:
        raise RunError(
            f"{name} needs class probabilities, and a softmax of this run's similarities gives none; expected a run on "
            "classification data. Use gap"
        )
    values = evidence.confidence.msp if name == "msp" else -evidence.confidence.entropy
    return np.where(evidence.n_items > 1, values, np.nan)


def softmax_confidence(logits: ArrayLike) -> Confidence:
    """Maximum softmax probability and predictive entropy of logits [n_inputs, n_classes]; raises as `confidence_of`."""
    matrix = _matrix(logits).astype(np.float64, copy=False)
    finite, masked = np.isfinite(matrix), np.isneginf(matrix)
    _refuse_infinite((finite | masked).all() and (finite.sum(axis=1) > 1).all())
    shifted = matrix - matrix.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=1)
    shifted = np.where(masked, 0.0, shifted)  # 0 log 0 is 0
    # -sum p log p with log p = shifted - log total, so that no p of 0 takes a logarithm
    entropy = np.log(total) - (weights * shifted).sum(axis=1) / total
    return Confidence(msp=1 / total, entropy=np.maximum(entropy, 0.0))


def _gap_of(scores: ArrayLike) -> Floats:
    """First minus second score, in two passes in the scores' own dtype, as a server computes it for every answer.

    Only the two scores are widened, so that their difference is exact.
    """
    matrix = _matrix(scores).copy()  # the first score is overwritten to find the second
    rows, best = np.arange(len(matrix)), matrix.argmax(axis=1)
    first = matrix[rows, best].astype(np.float64)
    matrix[rows, best] = -np.inf
    second = matrix.max(axis=1).astype(np.float64)
    _refuse_infinite(np.isfinite(first).all() and np.isfinite(second).all())
    return np.asarray(first - second)


def _matrix(scores: ArrayLike) -> NDArray[np.floating[Any]]:
    """Read scores as floating-point numbers of at least two items, finite or not."""
    matrix = as_array(scores)
    try:
        matrix = matrix if matrix.dtype.kind == "f" else matrix.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ScoreError(f"expected scores that are numbers; {error}") from error
    if matrix.ndim != 2 or matrix.shape[1] < 2:  # noqa: PLR2004 -- a matrix of at least two items
        raise ScoreError(
            "expected scores of shape [n_inputs, n_items] with at least two items, to tell first "
            f"from second; got shape {matrix.shape}. One input is a batch of one: scores[None]"
        )
    return matrix


def _refuse_infinite(finite: bool | np.bool_) -> None:
    if not finite:
        raise ScoreError("expected finite scores; at least one is NaN or infinite")


def _check_name(name: str) -> None:
    if name not in CONFIDENCES:
        raise UnknownNameError("confidence", name, CONFIDENCES)


# --- nonconformity --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """Confidence, flips and nonconformity of calibration inputs.

    Attributes:
        confidence: float64 [n_inputs], as a server will see it, larger is surer; NaN for inputs with only one item,
            which cannot change and are left out.
        flipped: bool [n_inputs], whether the top-1 changed.
        values: float64 [n_inputs], the nonconformity, above the candidate gap wherever the top-1 changed; None for a
            confidence, which has none.
        n_items: least and greatest number of items of the inputs that are used; 0 if there are none.
    """

    confidence: Floats
    flipped: NDArray[np.bool_]
    values: Floats | None
    n_items: tuple[int, int]

    @property
    def defined(self) -> NDArray[np.bool_]:
        """The inputs that are used, bool [n_inputs]."""
        return ~np.isnan(self.confidence)

    def part(self, rows: NDArray[Any]) -> "Observed":
        """Some of the inputs, by position or by mask."""
        values = None if self.values is None else self.values[rows]
        return Observed(
            confidence=self.confidence[rows], flipped=self.flipped[rows], values=values, n_items=self.n_items
        )


def bounds_gap(statistic: Statistic) -> bool:
    """Whether a statistic bounds the gap that quantization can overturn (S, 2 epsilon)."""
    return statistic in {"S", "2epsilon"}


def confidence_name(statistic: Statistic) -> ConfidenceName:
    """The confidence that a check by this statistic uses when it serves."""
    if statistic not in STATISTICS:
        raise UnknownNameError("statistic", statistic, STATISTICS, hint=f"(expected {', '.join(STATISTICS)})")
    return "gap" if bounds_gap(statistic) else cast(ConfidenceName, statistic)


def promised(guarantee: Guarantee, statistic: Statistic | None, confidence: float) -> tuple[float | None, Statistic]:
    """The confidence of a conditional guarantee, None of a joint one; and the statistic, where none is named.

    Raises:
        UnknownNameError: there is no such guarantee.
        StabilityError: the statistic does not go with it, or the confidence is out of range.
    """
    if guarantee not in GUARANTEES:
        raise UnknownNameError("guarantee", guarantee, GUARANTEES)
    if guarantee == "joint":
        return None, statistic or "S"
    if statistic is not None and bounds_gap(statistic):
        raise StabilityError(
            f"a conditional guarantee is calibrated by a confidence, {', '.join(CONFIDENCES)}; {statistic} is of the "
            "joint one"
        )
    if not 0 < confidence < 1:
        raise StabilityError(f"expected a confidence above 0 and below 1, say 0.9; got {confidence:g}")
    return confidence, statistic or "gap"


def observe(source: Source, statistic: Statistic = "S") -> Observed:
    """Confidence, flips and nonconformity of every input.

    S = max_j (delta[c] - delta[j]) with c the candidate's top-1, or 2 max_j |delta[j]|. If the top-1 changed and the
    candidate gap is not below that (a tie broken by position, or a rounded delta), the value is the next floating-point
    number above the gap instead, because the guarantee needs "a flip implies gap < value" to the last bit.
    """
    name, values = confidence_name(statistic), None
    if isinstance(source, Evidence):
        if source.depth < 2 and source.cut_short:  # noqa: PLR2004 -- a gap needs two ranks
            raise StabilityError(
                "the stability check needs the first two ranks; this run stored one. Measure again and keep more (k)"
            )
        if not source.exact and bounds_gap(statistic):
            raise StabilityError(
                f"{statistic} is a maximum over all items, and this run knows only some scores (it was made from "
                "truncated lists, or from answers without scores)"
            )
        gap, confidence = perturbation.candidate_gap(source), confidence_in(source, name)
        flipped, n_items = perturbation.flips(source), source.n_items[source.n_items > 1]
        if bounds_gap(statistic):
            values = perturbation.perturbation_s(source) if statistic == "S" else 2 * perturbation.epsilon(source)
    else:
        before, after = (_matrix(scores) for scores in source)
        if before.shape != after.shape:
            raise ScoreError(
                "expected scores of the reference and of the candidate, both [n_inputs, n_items]; "
                f"got shapes {before.shape} and {after.shape}"
            )
        delta = after.astype(np.float64) - before
        _refuse_infinite(np.isfinite(delta).all())
        gap, confidence = confidence_of(after), confidence_of(after, name)
        top = after.argmax(axis=1)
        flipped, n_items = before.argmax(axis=1) != top, np.full(len(after), after.shape[1])
        if bounds_gap(statistic):
            values = delta[np.arange(len(delta)), top] - delta.min(axis=1)
            values = values if statistic == "S" else 2 * np.abs(delta).max(axis=1)
    if values is not None:
        values = np.where(flipped & ~(gap < values), np.nextafter(gap, np.inf), values)
    span = (int(n_items.min()), int(n_items.max())) if len(n_items) else (0, 0)
    return Observed(confidence=confidence, flipped=flipped, values=values, n_items=span)


# --- the least confidence that is accepted, from calibration inputs -------------------------------


def conformal_rank(n: int, alpha: float) -> int:
    """ceil((n + 1) (1 - alpha)), from 1 to n + 1, in exact arithmetic: 100 * 0.99 must not become 100."""
    return math.ceil((n + 1) * (1 - _exact(alpha)))


def least_inputs(alpha: float) -> int:
    """Least number of calibration inputs with which a level accepts any answer: ceil(1 / alpha) - 1.

    >>> [least_inputs(alpha) for alpha in (0.1, 0.05, 0.01)]
    [9, 19, 99]
    """
    return math.ceil(1 / _exact(alpha)) - 1


def nothing_accepted(n: int, alpha: float, confidence: float | None = None) -> str | None:
    """Why a level accepts nothing with n calibration inputs; None if there are enough.

    Args:
        n: calibration inputs.
        alpha: level.
        confidence: of the conditional guarantee; None for the joint one.
    """
    least = least_inputs(alpha) if confidence is None else selective.least_inputs(float(_exact(alpha)), confidence)
    if n >= least:
        return None
    return (
        f"nothing can be accepted at level {alpha:g} from so few inputs: it needs {least:,} "
        f"calibration inputs, and there {'is' if n == 1 else 'are'} {n:,}"
    )


def split_conformal_threshold(values: Floats, alpha: float) -> float:
    """The ceil((n + 1)(1 - alpha))-th smallest value; an answer is accepted if its candidate gap reaches it.

    A flip implies gap < value, so an accepted flip has a value above the threshold, and among n + 1 exchangeable
    inputs at most a share alpha can have that.

    Source: paper, section 3 (which says "largest"; only the smallest can be meant).

    >>> split_conformal_threshold(np.array([4.0, 1.0, 3.0, 2.0]), 0.5)
    3.0
    """
    rank = conformal_rank(len(values), alpha)
    return math.inf if rank > len(values) else float(np.partition(values, rank - 1)[rank - 1])


def generic_threshold(confidence: Floats, flipped: NDArray[np.bool_], alpha: float) -> float:
    """The confidence quantile of flipped calibration inputs; an answer is accepted if it is surer.

    The r-th smallest confidence among the flipped ones, r = min(ceil((n_flipped + 1)(1 - alpha)), n_flipped); -inf
    (accept everything) if none flipped; +inf if there are too few inputs.

    It is valid for any confidence: let m of the n + 1 exchangeable inputs flip, including the new one, so that
    n_flipped = m - 1. The new one is accepted only if it ranks above r of the m, which at most m - r of them do. So
    P(accepted and flipped) <= (m - r) / (n + 1), which is at most alpha m / (n + 1) for the first r and 1 / (n + 1) for
    the second; both are at most alpha if n + 1 >= 1 / alpha.

    >>> generic_threshold(np.arange(9.0), np.arange(9) % 2 == 0, 0.5)  # flipped: 0, 2, 4, 6, 8
    4.0
    """
    if len(confidence) < least_inputs(alpha):
        return math.inf
    wrong = confidence[flipped]
    if not len(wrong):
        return -math.inf
    rank = min(conformal_rank(len(wrong), alpha), len(wrong))
    return float(np.partition(wrong, rank - 1)[rank - 1])


def threshold_of(observed: Observed, alpha: float, confidence: float | None = None) -> float:
    """The threshold from calibration inputs, all of which have a confidence.

    Args:
        observed: the calibration inputs.
        alpha: level.
        confidence: of the conditional guarantee; None for the joint one.
    """
    if confidence is not None:
        return selective.selective_threshold(observed.confidence, observed.flipped, float(_exact(alpha)), confidence)
    if observed.values is not None:
        return split_conformal_threshold(observed.values, alpha)
    return generic_threshold(observed.confidence, observed.flipped, alpha)


def accepts(confidence: Floats, threshold: float, statistic: Statistic) -> NDArray[np.bool_]:
    """Whether each answer is accepted: at or above the threshold for a bound of the gap, else only above it.

    A confidence that is NaN or infinite, from scores that are not finite, is never accepted, not even by a threshold of
    +inf, which accepts nothing.
    """
    reached = confidence >= threshold if bounds_gap(statistic) else confidence > threshold
    return np.asarray(reached & np.isfinite(confidence))


def accepted_where(statistic: Statistic, threshold: float) -> str:
    """The rule of a threshold in words: "gap at least 0.5"; "nothing" or "everything" where it is infinite."""
    if math.isinf(threshold):
        return "nothing" if threshold > 0 else "everything"
    return in_words(confidence_name(statistic), "at least" if bounds_gap(statistic) else "above", threshold)


def _exact(alpha: float) -> Fraction:
    if not 0 < alpha < 1:
        raise StabilityError(
            f"expected a level above 0 and below 1, say 0.1: the share of inputs that may be "
            f"accepted though their top-1 changed; got {alpha:g}"
        )
    return Fraction(repr(float(alpha)))


# --- held out -------------------------------------------------------------------------------------

MOST = 1_000
"""Most inputs that are used for calibration; the others are used for measuring."""


def calibrates(input_ids: NDArray[np.object_]) -> NDArray[np.bool_]:
    """The calibration inputs, bool [n_inputs]: half of all (rounded down), at most 1,000, with the least hashes of ids.

    The choice depends neither on scores nor on the order, and is the same for all runs on the same inputs.
    """
    digests = [int.from_bytes(blake2b(str(name).encode(), digest_size=8).digest(), "big") for name in input_ids]
    chosen = np.zeros(len(digests), dtype=bool)
    chosen[np.argsort(np.array(digests, dtype=np.uint64), kind="stable")[: min(len(digests) // 2, MOST)]] = True
    return chosen
