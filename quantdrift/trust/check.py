"""`StabilityCheck`: calibrate once on unlabeled inputs, then tell which answers can be trusted."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AllowInfNan, BeforeValidator, Field, PlainSerializer

from quantdrift import __version__
from quantdrift.base.display import clean
from quantdrift.base.errors import ScoreError
from quantdrift.base.records import AS_LIST, Real, Record, Share, Some, Whole
from quantdrift.evidence.record import Evidence
from quantdrift.runs.identity import Identity
from quantdrift.statistics import conformal
from quantdrift.statistics.selective import CONFIDENCE
from quantdrift.trust.shift import Resemblance, ShiftMonitor, finite_confidences

# --- a file of a threshold ------------------------------------------------------------------------

Origin = Annotated[
    Identity,
    BeforeValidator(lambda held: held if isinstance(held, Identity) else Identity.from_json(held)),
    PlainSerializer(Identity.to_json),
]


class Threshold(Record):
    """A small JSON file of a threshold for one pair: it knows where the inputs came from that it was set on."""

    origin: Origin = Field(default_factory=Identity)

    def save(self, path: Path | str) -> None:
        """Write it as a small JSON file, in place of an earlier one.

        Raises:
            RunError: another kind of file lies there, or it cannot be written.
        """
        self.write(Path(path))

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        spec: str | None = None,
        model_fingerprint: str | None = None,
        candidate_fingerprint: str | None = None,
        on: Mapping[str, Any] | None = None,
    ) -> Self:
        """Read what `save` wrote, and refuse it for other weights or scores than it was set on.

        Args:
            path: the file.
            spec: the pair that is served; not compared if not given.
            model_fingerprint: digest of its reference's weights; likewise.
            candidate_fingerprint: digest of its quantized weights; likewise.
            on: record of a run of what is served, which says all of these and what its scores are.

        Raises:
            StabilityError: of a check: the file is missing, damaged or of another version, or of another pair, other
                quantized weights, or other scores.
            RunError: likewise of a router; or the record is of another pair than `spec`.
        """
        held = cls.read(Path(path))
        here = Identity.of(
            on, spec=spec, model_fingerprint=model_fingerprint, candidate_fingerprint=candidate_fingerprint
        )
        held.origin.refuse_other(here, what=f"{cls.WHAT} in {path}", make=cls.MAKE, error=cls.ERROR)
        return held


# --- the check ------------------------------------------------------------------------------------

_ENDS = {"nothing": math.inf, "everything": -math.inf}
"""How a file says that nothing is accepted, or everything."""


def _as_stored(threshold: float) -> float | str:
    return next((word for word, end in _ENDS.items() if end == threshold), threshold)


SAMPLE = 1_000
"""How many calibration confidences are kept, to tell whether served inputs resemble them."""


class StabilityCheck(Threshold):
    """Accepts an answer of the quantized model iff its confidence reaches a calibrated threshold.

    For inputs of the calibration inputs' distribution, without labels and without the reference: of the answers that
    are accepted at most a share alpha changed, with a confidence over the draw of the calibration inputs
    ("conditional"); or P(accepted and top-1 changed) <= alpha, on average over it ("joint", the paper's check).

    Attributes:
        origin: where the calibration inputs came from.
        guarantee: "conditional" or "joint".
        statistic: what was calibrated.
        alpha: level of that bound.
        confidence_level: of a conditional guarantee; None of a joint one.
        n_calibration: inputs calibrated on.
        threshold: of the candidate gap (S, 2 epsilon: accept at or above it) or of the confidence (accept above it);
            +inf accepts nothing, -inf everything.
        n_flipped: of the inputs, how many changed their top-1.
        expected_coverage: of the inputs, the share that is accepted.
        n_items_min: least number of items of such an input.
        n_items_max: greatest one.
        version: of the quantdrift that calibrated.
        sample: confidences of at most 1,000 of these inputs, drawn at random, sorted.

    Source: paper, section 3, "From condition to stability check".
    """

    FORMAT, VERSION = "quantdrift-stability-check", 4
    WHAT, MAKE = "a stability check", conformal.MAKE
    ERROR = conformal.StabilityError

    origin: Origin
    guarantee: conformal.Guarantee
    statistic: conformal.Statistic
    alpha: Annotated[float, Field(gt=0, lt=1)]
    confidence_level: Annotated[float, Field(gt=0, lt=1)] | None
    n_calibration: Some
    threshold: Annotated[
        float, AllowInfNan(True), BeforeValidator(lambda held: _ENDS.get(held, held)), PlainSerializer(_as_stored)
    ]
    n_flipped: Whole
    expected_coverage: Share
    n_items_min: Whole
    n_items_max: Whole
    version: str
    sample: Annotated[tuple[Real, ...], AS_LIST, Field(repr=False, min_length=1, max_length=SAMPLE)]

    @classmethod
    def calibrate(
        cls,
        source: conformal.Source,
        *,
        alpha: float = 0.1,
        guarantee: conformal.Guarantee = "conditional",
        statistic: conformal.Statistic | None = None,
        confidence: float = CONFIDENCE,
        spec: str | None = None,
        on: Mapping[str, Any] | str | None = None,
    ) -> Self:
        """Calibrate on inputs that both models have scored; no labels are needed.

        Args:
            source: evidence, or (reference scores, candidate scores), each [n_inputs, n_items].
            alpha: level, above 0 and below 1. Below ceil(1 / alpha) - 1 inputs a joint guarantee accepts nothing,
                and below log(1 - confidence) / log(1 - alpha) a conditional one.
            guarantee: "conditional", of the accepted answers at most alpha changed; or "joint".
            statistic: a confidence, gap, msp or entropy; of a joint guarantee also S (the paper's) or 2epsilon. By
                default gap, and of a joint guarantee S.
            confidence: of a conditional guarantee, above 0 and below 1.
            spec: the pair, so that the check can refuse another.
            on: the record of the run (`run.record`), or the name of the data.

        Raises:
            StabilityError: there is no input, alpha or confidence is out of its range, or the statistic does not go
                with the guarantee.
            ScoreError: the arrays cannot be used.
            RunError: msp or entropy of evidence whose scores are not logits, or `on` is the record of another pair
                than `spec`.
            UnknownNameError: there is no such statistic.
        """
        sure, statistic = conformal.promised(guarantee, statistic, confidence)
        observed = conformal.observe(source, statistic)
        ids = source.input_ids[observed.defined] if isinstance(source, Evidence) else None
        observed = observed.part(observed.defined)
        if not len(observed.confidence):
            raise conformal.StabilityError("there is nothing to calibrate on: expected inputs with at least two items")
        threshold, seen = conformal.threshold_of(observed, alpha, sure), np.sort(observed.confidence)
        if len(seen) > SAMPLE:
            # drawn, not thinned evenly: then served inputs are exchangeable with the sample too
            seen = np.sort(np.random.default_rng(0).choice(seen, SAMPLE, replace=False))
        return cls(
            guarantee=guarantee,
            statistic=statistic,
            alpha=float(alpha),
            confidence_level=sure,
            threshold=threshold,
            n_calibration=len(observed.confidence),
            n_flipped=int(observed.flipped.sum()),
            expected_coverage=float(conformal.accepts(observed.confidence, threshold, statistic).mean()),
            n_items_min=observed.n_items[0],
            n_items_max=observed.n_items[1],
            origin=Identity.of(on, spec=spec, input_ids=ids).brief(),
            version=__version__,
            sample=tuple(seen.tolist()),
        )

    @property
    def score(self) -> conformal.ConfidenceName:
        """The confidence that it looks at when it serves."""
        return conformal.confidence_name(self.statistic)

    @property
    def rule(self) -> str:
        """The rule of acceptance, in words."""
        if math.isinf(self.threshold):
            few = conformal.nothing_accepted(self.n_calibration, self.alpha, self.confidence_level)
            none = "no threshold could be shown to keep the level, so that nothing is accepted"
            return few or (none if self.threshold > 0 else "everything is accepted")
        return conformal.accepted_where(self.statistic, self.threshold)

    def accepts(self, scores: ArrayLike) -> NDArray[np.bool_]:
        """Tell which answers can be trusted as the reference's, from the candidate's own scores.

        Args:
            scores: float [n_inputs, n_items], of the candidate, in the dtype calibrated with. Of msp and entropy, the
                scores of all items; else the first two would do.

        Returns:
            bool [n_inputs].

        Raises:
            ScoreError: it is no such matrix, or not finite.
        """
        return self.accepts_confidence(self.confidence(scores))

    def accepts_confidence(self, values: ArrayLike) -> NDArray[np.bool_]:
        """Accept as `accepts` does, by confidences (the candidate gap, msp, or minus entropy), float [n_inputs]."""
        return conformal.accepts(np.asarray(values, dtype=np.float64), self.threshold, self.statistic)

    def confidence(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Confidence that this check looks at: the candidate gap, or another confidence; float64 [n_inputs].

        Raises:
            ScoreError: scores are no finite matrix, or, for msp and entropy, of another number of items than those
                calibrated on.
        """
        matrix = conformal.as_array(scores)
        confidence = conformal.confidence_of(matrix, self.score)
        if self.score != "gap" and not self.n_items_min <= matrix.shape[1] <= self.n_items_max:
            raise ScoreError(
                f"{self.score} is of all items' scores, and was calibrated on {self.n_items_min:,} to "
                f"{self.n_items_max:,} items; got {matrix.shape[1]:,}"
            )
        return confidence

    def watch(self, *, seed: int = 0) -> ShiftMonitor:
        """Watch served inputs as they come: `monitor.add(check.confidence(scores))`; the seed breaks ties."""
        return ShiftMonitor(self.sample, seed=seed)

    def resembles(self, scores: ArrayLike) -> Resemblance:
        """Whether a set of served inputs looks like the calibration inputs, as the guarantee supposes.

        What `watch` tells of the set in a random order, so that its own order does not matter.

        Args:
            scores: float [n_inputs, n_items], of the candidate.

        Raises:
            ScoreError: they cannot be used, or there are none.

        Warns:
            ExchangeabilityWarning: they differ, with p at most 0.05.
        """
        return self.resembles_confidence(self.confidence(scores))

    def resembles_confidence(self, values: ArrayLike, *, warn: bool = True) -> Resemblance:
        """Test as `resembles` does, by confidences (the gap, msp, or minus entropy), float [n_inputs], all finite."""
        served = finite_confidences(values)
        resemblance = self.watch().add(np.random.default_rng(0).permutation(served))
        if warn and not resemblance.alike:
            warnings.warn(clean(resemblance.sentence), conformal.ExchangeabilityWarning, stacklevel=2)
        return resemblance
