"""What the stability check calibrates: per input, how large a lead quantization could overturn.

S and 2 epsilon bound by how much quantization moved the candidate's top-1 against any other item;
they are compared with the candidate gap. The rivals are confidences alone. Source: paper,
section 3 (Corollary 1) and appendix on the check's calibration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift import perturbation
from quantdrift.confidence import ConfidenceName, as_array, confidence_in, confidence_of
from quantdrift.errors import ScoreError, UnknownNameError
from quantdrift.evidence import Evidence
from quantdrift.stability.errors import StabilityError

__all__ = [
    "STATISTICS",
    "Observed",
    "Source",
    "Statistic",
    "bounds_gap",
    "confidence_name",
    "observe",
]

Statistic = Literal["S", "2epsilon", "gap", "msp", "entropy"]
"""S or 2 epsilon against the candidate gap; or a confidence, generically calibrated."""

STATISTICS: tuple[Statistic, ...] = get_args(Statistic)

Source: TypeAlias = Evidence | tuple[ArrayLike, ArrayLike]
"""Evidence of a run, or scores of the reference and of the candidate, each [n_inputs, n_items]."""

_BLOCK = 4_000_000  # scores at a time; bounds the memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """What calibration inputs show.

    Attributes:
        confidence: float64 [n_inputs], what a server will see, larger is surer; NaN where there is
            only one item, which cannot change and takes no part.
        flipped: bool [n_inputs], whether the top-1 changed.
        values: float64 [n_inputs], the nonconformity, above the candidate gap wherever the top-1
            changed; None for a confidence, which has none.
        n_items: least and greatest number of items of an input that takes part; 0 if none does.
    """

    confidence: NDArray[np.float64]
    flipped: NDArray[np.bool_]
    values: NDArray[np.float64] | None
    n_items: tuple[int, int]

    @property
    def defined(self) -> NDArray[np.bool_]:
        """Which inputs take part, bool [n_inputs]."""
        return ~np.isnan(self.confidence)

    def part(self, rows: NDArray[Any]) -> Observed:
        """Some of the inputs, by position or by mask."""
        return Observed(
            confidence=self.confidence[rows],
            flipped=self.flipped[rows],
            values=None if self.values is None else self.values[rows],
            n_items=self.n_items,
        )


def bounds_gap(statistic: Statistic) -> bool:
    """Whether it bounds what quantization can overturn (S, 2 epsilon), in units of the gap."""
    return statistic in {"S", "2epsilon"}


def confidence_name(statistic: Statistic) -> ConfidenceName:
    """Which confidence a check by this statistic looks at when it serves.

    Raises:
        UnknownNameError: there is no such statistic.
    """
    if statistic not in STATISTICS:
        raise UnknownNameError("statistic", statistic, STATISTICS, hint=f"({_listed()})")
    return "gap" if bounds_gap(statistic) else cast(ConfidenceName, statistic)


def observe(source: Source, statistic: Statistic = "S") -> Observed:
    """Confidence, flips and nonconformity of every input.

    S = max_j (delta[c] - delta[j]) with c the candidate's top-1, or 2 max_j |delta[j]|. Where the
    top-1 changed and the candidate gap is not below that (a tie broken by position, or a delta that
    was rounded), the value is the next floating-point number above the gap instead: the guarantee
    rests on "a flip implies gap < value", and so it holds to the last bit.

    Args:
        source: evidence, or a pair of arrays (reference, candidate) [n_inputs, n_items]. The
            candidate's scores are to have the dtype they are served in.
        statistic: which.

    Raises:
        ScoreError: the arrays are no finite matrices of one shape with at least two items.
        StabilityError: the evidence holds only one rank.
        RunError: msp or entropy is asked of evidence whose scores are not logits.
        UnknownNameError: there is no such statistic.
    """
    name = confidence_name(statistic)
    if isinstance(source, Evidence):
        return _of_evidence(source, statistic, name)
    return _of_arrays(*source, statistic, name)


def _of_evidence(evidence: Evidence, statistic: Statistic, name: ConfidenceName) -> Observed:
    if evidence.depth < 2 and evidence.cut_short:  # noqa: PLR2004 -- a gap needs two ranks
        raise StabilityError(
            "the stability check needs the first two ranks; this run stored one. Run again with "
            "--k 2 or more"
        )
    if not evidence.exact and bounds_gap(statistic):
        raise StabilityError(
            f"{statistic} is the greatest over all items, and this run knows the scores of some "
            "only (it was made of lists that were cut short, or of answers without scores)"
        )
    flipped, values = perturbation.flips(evidence), None
    if statistic == "S":
        values = perturbation.perturbation_s(evidence)
    elif statistic == "2epsilon":
        values = 2 * perturbation.epsilon(evidence)
    if values is not None:
        values = _above_gap(values, perturbation.candidate_gap(evidence), flipped)
    several = evidence.n_items[evidence.n_items > 1]
    return Observed(
        confidence=confidence_in(evidence, name),
        flipped=flipped,
        values=values,
        n_items=(int(several.min()), int(several.max())) if len(several) else (0, 0),
    )


def _of_arrays(
    reference: ArrayLike, candidate: ArrayLike, statistic: Statistic, name: ConfidenceName
) -> Observed:
    before, after = as_array(reference), as_array(candidate)
    if before.shape != after.shape or before.ndim != 2 or before.shape[1] < 2:  # noqa: PLR2004 -- a matrix of two items
        raise ScoreError(
            "expected scores of the reference and of the candidate, both [n_inputs, n_items] with "
            f"at least two items; got shapes {before.shape} and {after.shape}"
        )
    n_inputs, n_items = before.shape
    values, rows = np.empty(n_inputs), max(1, _BLOCK // n_items)
    for start in range(0, n_inputs, rows):
        part = slice(start, start + rows)
        delta = after[part].astype(np.float64) - before[part].astype(np.float64)
        if not np.isfinite(delta).all():
            raise ScoreError("expected finite scores; at least one is NaN or infinite")
        if statistic == "2epsilon":
            values[part] = 2 * np.abs(delta).max(axis=1)
        else:
            own = after[part].argmax(axis=1)[:, None]
            values[part] = np.take_along_axis(delta, own, axis=1)[:, 0] - delta.min(axis=1)
    flipped = before.argmax(axis=1) != after.argmax(axis=1)
    gap = confidence_of(after)
    return Observed(
        confidence=gap if name == "gap" else confidence_of(after, name),
        flipped=flipped,
        values=_above_gap(values, gap, flipped) if bounds_gap(statistic) else None,
        n_items=(n_items, n_items) if n_inputs else (0, 0),
    )


def _above_gap(
    values: NDArray[np.float64], gap: NDArray[np.float64], flipped: NDArray[np.bool_]
) -> NDArray[np.float64]:
    return np.where(flipped & ~(gap < values), np.nextafter(gap, np.inf), values)


def _listed() -> str:
    return f"expected {', '.join(STATISTICS[:-1])} or {STATISTICS[-1]}"
