"""The rule: an input whose confidence lies below a threshold goes to full precision.

The confidence is read from the candidate's own scores, so the rule costs nothing that the deployment does not compute
already, and its threshold is set without labels.

Source: paper, section 5.3 (routing inputs by the gap).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quantdrift.conformal import CONFIDENCES, ConfidenceName, confidence_in, confidence_of, observe
from quantdrift.errors import QuantDriftError, RunError, UnknownNameError
from quantdrift.evidence import Evidence
from quantdrift.identity import Identity
from quantdrift.perturbation import flips
from quantdrift.records import Record
from quantdrift.runs import Run
from quantdrift.trust.check import Origin

Floats = NDArray[np.float64]


class RouterFile(Record):
    """The small JSON file of a router."""

    FORMAT: ClassVar[str] = "quantdrift-router"
    VERSION: ClassVar[int] = 2
    WHAT: ClassVar[str] = "a router"
    MAKE: ClassVar[str] = "quantdrift route RUN --save FILE"

    score: ConfidenceName
    threshold: float  # Python's shortest decimal, which reads back to the same number
    set_on: Origin


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
            scores: [n, n_items] array or tensor, the candidate's scores of all items (for the gap, at least of its
                first two), in any order.

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
            slice_: evidence of a run, or the candidate's scores [n, n_items] on the slice. Labels are not looked at.
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
            slice_: evidence of a run, or the scores of reference and candidate, each [n, n_items]. Labels are not
                looked at.
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
            seen = observe(slice_, score)
            confidence, changed = seen.confidence, seen.flipped
        return cls(threshold=recovery_threshold(confidence, changed, share), score=score)

    def set_on(self, run: Run) -> GapRouter:
        """The same router, which remembers the run that its threshold was set on."""
        return replace(self, origin=Identity.of(run.record).brief())

    def save(self, path: Path | str) -> None:
        """Write it as a small JSON file, in place of an earlier one.

        Raises:
            RunError: another kind of file lies there, or it cannot be written.
        """
        RouterFile(score=self.score, threshold=float(self.threshold), set_on=self.origin).write(Path(path))

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
            RunError: no such file, a damaged one, or one that was set on another spec, model or candidate, or on other
                scores; or the record is of another pair than `spec`.
        """
        held = RouterFile.read(Path(path))
        here = Identity.of(
            on, spec=spec, model_fingerprint=model_fingerprint, candidate_fingerprint=candidate_fingerprint
        )
        held.set_on.refuse_other(here, what=f"the router {path}", make=RouterFile.MAKE, error=RunError)
        return cls(threshold=held.threshold, score=held.score, origin=held.set_on)


def percentile_threshold(confidence: Floats, percentile: float) -> float:
    """The threshold below which about a percentile of the slice lies.

    It is one of the slice's own values: the one at place (n - 1) percentile / 100, counted from 0 and rounded up
    (numpy's "higher"). Without ties that many inputs lie strictly below it, which is within one input of the
    percentile. Inputs that tie with the threshold are not routed, so with ties fewer are. 100 is taken at its word:
    the next number above the largest value.
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

    With c the confidences of the changed answers in increasing order and m their number, the next number above
    c[ceil(share m)]: inputs are routed strictly below the threshold.
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
