"""The rule: an input whose confidence lies below a threshold goes to full precision.

The confidence is read from the candidate's own scores, so the rule costs nothing that the deployment does not compute
already, and its threshold is set without labels.

Source: paper, section 5.3 (routing inputs by the gap).
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import Real, Some
from quantdrift.runs.identity import Identity
from quantdrift.statistics import conformal, selective
from quantdrift.statistics.conformal import ConfidenceName, confidence_of, in_words
from quantdrift.trust.check import Threshold
from quantdrift.trust.rescoring import system_of

Floats = NDArray[np.float64]


class GapRouter(Threshold):
    """Routes an input to full precision iff the candidate's confidence is below a threshold.

    >>> router = GapRouter(threshold=0.5)
    >>> router.routes([[2.0, 1.9], [2.0, 1.0]]).tolist()
    [True, False]

    Attributes:
        threshold: in the unit of the confidence, finite.
        score: which confidence: "gap", "msp" or "entropy" (minus the entropy, so larger is surer).
        origin: where the inputs came from that it was set on, as far as that is known.
        guarantee: "system" if of all answers, deferred ones included, at most a share alpha differ from full
            precision's, with a confidence over the draw of the inputs that it was set on; else None.
        alpha: level of that guarantee.
        confidence_level: its confidence.
        k: for a search, how many of the candidate's first items have to be rescored; None for classes.
    """

    FORMAT, VERSION = "quantdrift-router", 4
    WHAT, MAKE = "a router", "quantdrift route RUN --save FILE"

    threshold: Real  # Python's shortest decimal, which reads back to the same number
    score: ConfidenceName = "gap"
    guarantee: Literal["system"] | None = None
    alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    confidence_level: Annotated[float, Field(gt=0, lt=1)] | None = None
    k: Some | None = None

    @model_validator(mode="after")
    def _promises_whole(self) -> Self:
        if len({part is None for part in (self.guarantee, self.alpha, self.confidence_level)}) > 1:
            raise ValueError("expected a guarantee with its alpha and confidence_level, or none of the three")
        return self

    @property
    def rule(self) -> str:
        """The rule of routing, in words."""
        return in_words(self.score, "below", self.threshold)

    def routes(self, scores: Any) -> NDArray[np.bool_]:
        """Tell which inputs of a batch go to full precision.

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
    def calibrate(
        cls,
        source: conformal.Source,
        *,
        alpha: float,
        confidence: float = selective.CONFIDENCE,
        score: ConfidenceName = "gap",
        spec: str | None = None,
        on: Mapping[str, Any] | str | None = None,
    ) -> Self:
        """Set the lowest threshold at which at most a share alpha of all answers of the system differ.

        With a confidence over the draw of these inputs, for inputs like them; an answer of the system is the
        candidate's, or full precision's where the router defers. A deferred query of a search has the candidate's first
        k items rescored.

        Args:
            source: evidence, or the scores of reference and candidate on classes, each [n_inputs, n_classes].
            alpha: level, above 0 and below 1.
            confidence: of the guarantee, likewise.
            score: which confidence.
            spec: the pair, so that the router can refuse another.
            on: the record of the run (`run.record`), or the name of the data.

        Raises:
            StabilityError: no threshold keeps the level: too few inputs, or too few changes that deferring restores.
            ScoreError: the arrays cannot be used.
        """
        system = system_of(source, score)
        threshold = system.threshold(alpha, confidence)
        if math.isinf(threshold):
            raise conformal.StabilityError(system.why_none(len(system.confidence), alpha, confidence))
        return cls(
            threshold=threshold,
            score=score,
            guarantee="system",
            alpha=float(alpha),
            confidence_level=confidence,
            k=system.k,
            origin=Identity.of(on, spec=spec).brief(),
        )


def percentile_threshold(confidence: Floats, percentile: float) -> float:
    """The threshold below which about a percentile of the slice lies.

    It is one of the slice's own values: the one at place (n - 1) percentile / 100, counted from 0 and rounded up
    (numpy's "higher"). Without ties that many inputs lie strictly below it, which is within one input of the
    percentile. Inputs that tie with the threshold are not routed, so with ties fewer are. 100 is taken at its word:
    the next number above the largest value.
    """
    if not 0 <= percentile <= 100:  # noqa: PLR2004 -- percent
        raise QuantDriftError(f"expected a percentile from 0 to 100; got {percentile}")
    defined = confidence[~np.isnan(confidence)]
    if not len(defined):
        raise QuantDriftError("expected a slice with at least one input of two items; got none")
    if percentile == 100:  # noqa: PLR2004 -- as above
        return float(np.nextafter(defined.max(), math.inf))
    return float(np.percentile(defined, percentile, method="higher"))


def recovery_threshold(confidence: Floats, changed: NDArray[np.bool_], share: float) -> float:
    """The smallest threshold that routes at least a share of the top-1 changes.

    With c the confidences of the top-1 changes in increasing order and m their number, the next number above
    c[ceil(share m)]: inputs are routed strictly below the threshold.
    """
    if not 0 < share <= 1:
        raise QuantDriftError(f"expected a share above 0 and at most 1; got {share}")
    least = np.sort(confidence[changed & ~np.isnan(confidence)])
    if not len(least):
        raise QuantDriftError(
            f"none of the {len(confidence)} top-1 answers changed on this slice, so no threshold "
            "can be said to give them back; take more inputs, or a percentile"
        )
    # 0.9 of 10 is 9, not the 10 that a product with its last bit too high would give
    wanted = max(1, math.ceil(round(share * len(least), 9)))
    return float(np.nextafter(least[wanted - 1], math.inf))
