"""`StabilityCheck`: calibrate once on unlabeled inputs, then tell which answers can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift import __version__
from quantdrift.confidence import as_array, confidence_of
from quantdrift.errors import ScoreError
from quantdrift.evidence import Evidence
from quantdrift.origin import Origin
from quantdrift.stability.errors import MAKE, StabilityError
from quantdrift.stability.nonconformity import Source, Statistic, confidence_name, observe
from quantdrift.stability.resemblance import Resemblance, compare_with_calibration
from quantdrift.stability.threshold import accepts, nothing_accepted, threshold_of

__all__ = ["SAMPLE", "StabilityCheck"]

SAMPLE = 1_000
"""How many calibration confidences are kept, to tell whether served inputs resemble them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilityCheck:
    """Accepts an answer of the quantized model iff its confidence reaches a calibrated threshold.

    For an input exchangeable with the calibration inputs,
    P(accepted and top-1 changed) <= alpha, without labels and without the reference.

    Attributes:
        statistic: what was calibrated.
        alpha: level of that bound.
        threshold: of the candidate gap (S, 2 epsilon: accept at or above it) or of the confidence
            (accept above it); +inf accepts nothing, -inf everything.
        n_calibration: inputs calibrated on.
        n_flipped: of these, how many changed their top-1.
        expected_coverage: of these, the share that is accepted.
        n_items_min: least number of items of such an input.
        n_items_max: greatest one.
        origin: where they came from.
        version: of the quantdrift that calibrated.
        sample: confidences of at most 1,000 of these inputs, drawn at random, sorted.

    Source: paper, section 3, "From condition to stability check".
    """

    statistic: Statistic
    alpha: float
    threshold: float
    n_calibration: int
    n_flipped: int
    expected_coverage: float
    n_items_min: int
    n_items_max: int
    origin: Origin
    version: str
    sample: tuple[float, ...] = field(repr=False)

    @classmethod
    def calibrate(
        cls,
        source: Source,
        *,
        alpha: float = 0.1,
        statistic: Statistic = "S",
        spec: str | None = None,
        on: Mapping[str, Any] | str | None = None,
    ) -> StabilityCheck:
        """Calibrate on inputs that both models have scored; no labels are needed.

        Args:
            source: evidence, or (reference scores, candidate scores), each [n_inputs, n_items].
            alpha: level, above 0 and below 1. Nothing is accepted below ceil(1 / alpha) - 1 inputs.
            statistic: S (the paper's), 2epsilon, or a confidence: gap, msp, entropy.
            spec: the pair, so that the check can refuse another.
            on: the record of the run (`run.record`), or the name of the data.

        Raises:
            StabilityError: there is no input, or alpha is out of its range.
            ScoreError: the arrays cannot be used.
            RunError: msp or entropy of evidence whose scores are not logits, or `on` is the record
                of another pair than `spec`.
            UnknownNameError: there is no such statistic.
        """
        observed = observe(source, statistic)
        ids = source.input_ids[observed.defined] if isinstance(source, Evidence) else None
        observed = observed.part(observed.defined)
        if not len(observed.confidence):
            raise StabilityError(
                "there is nothing to calibrate on: expected inputs with at least two items"
            )
        threshold = threshold_of(observed, alpha)
        seen = np.sort(observed.confidence)
        if len(seen) > SAMPLE:
            # drawn, not thinned evenly: then served inputs are exchangeable with the sample too
            rng = np.random.default_rng(0)
            seen = np.sort(rng.choice(seen, SAMPLE, replace=False))
        accepted = accepts(observed.confidence, threshold, statistic)
        return cls(
            statistic=statistic,
            alpha=float(alpha),
            threshold=threshold,
            n_calibration=len(observed.confidence),
            n_flipped=int(observed.flipped.sum()),
            expected_coverage=float(accepted.mean()),
            n_items_min=observed.n_items[0],
            n_items_max=observed.n_items[1],
            origin=Origin.of(on, spec=spec, input_ids=ids),
            version=__version__,
            sample=tuple(seen.tolist()),
        )

    @property
    def reason(self) -> str | None:
        """Why the threshold is infinite; None if it is finite."""
        if self.threshold == math.inf:
            return nothing_accepted(self.n_calibration, self.alpha)
        if self.threshold == -math.inf:
            return "no calibration input changed its top-1, so that everything is accepted"
        return None

    def accepts(self, scores: ArrayLike) -> NDArray[np.bool_]:
        """Which answers can be trusted as the reference's, from the candidate's own scores.

        Args:
            scores: float [n_inputs, n_items], of the candidate, in the dtype calibrated with. Of
                msp and entropy, the scores of all items; else the first two would do.

        Returns:
            bool [n_inputs].

        Raises:
            ScoreError: it is no such matrix, or not finite.
        """
        return accepts(self.confidence(scores), self.threshold, self.statistic)

    def accepts_confidence(self, values: ArrayLike) -> NDArray[np.bool_]:
        """The same from confidences (the candidate gap, msp, or minus entropy).

        Args:
            values: float [n_inputs], larger is surer; what is NaN or infinite is never accepted.
        """
        return accepts(np.asarray(values, dtype=np.float64), self.threshold, self.statistic)

    def confidence(self, scores: ArrayLike) -> NDArray[np.float64]:
        """What this check looks at: the candidate gap, or another confidence; float64 [n_inputs].

        Raises:
            ScoreError: scores are no finite matrix, or, for msp and entropy, of another number of
                items than those calibrated on.
        """
        name, matrix = confidence_name(self.statistic), as_array(scores)
        found = confidence_of(matrix, name)
        n_items = matrix.shape[1]
        if name != "gap" and not self.n_items_min <= n_items <= self.n_items_max:
            raise ScoreError(
                f"{name} is of all items' scores, and was calibrated on {self.n_items_min:,} to "
                f"{self.n_items_max:,} items; got {n_items:,}"
            )
        return found

    def resembles(self, scores: ArrayLike) -> Resemblance:
        """Whether served inputs look like the calibration inputs, as the guarantee supposes.

        A two-sample test of their confidences, for a given set of inputs: asked again
        and again it rejects in the end whatever the inputs.

        Args:
            scores: float [n_inputs, n_items], of the candidate.

        Raises:
            ScoreError: they cannot be used, or there are none.

        Warns:
            ExchangeabilityWarning: p below 0.01.
        """
        return self.resembles_confidence(self.confidence(scores))

    def resembles_confidence(self, values: ArrayLike) -> Resemblance:
        """The same from confidences (the candidate gap, msp, or minus entropy), float [n_inputs].

        Raises:
            ScoreError: they are not finite, of another shape, or there are none.

        Warns:
            ExchangeabilityWarning: p below 0.01.
        """
        found = np.asarray(values, dtype=np.float64)
        return compare_with_calibration(found, np.array(self.sample), self.n_calibration)

    def save(self, path: Path | str) -> None:
        """Write the check into a small JSON file, replacing an earlier check.

        Raises:
            RunError: the place holds something else, or it cannot be written.
        """
        from quantdrift.stability.file import write_check  # noqa: PLC0415 -- it needs this class

        write_check(self, Path(path))

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        spec: str | None = None,
        model_fingerprint: str | None = None,
        candidate_fingerprint: str | None = None,
        on: Mapping[str, Any] | None = None,
    ) -> StabilityCheck:
        """Read a check, and refuse it for other weights or scores than it was calibrated on.

        Args:
            path: the file.
            spec: the pair that is served; not compared if not given.
            model_fingerprint: digest of its reference's weights; likewise.
            candidate_fingerprint: digest of its quantized weights; likewise.
            on: record of a run of what is served, which says all of these and what its scores are.

        Raises:
            StabilityError: the file is missing, damaged or of another version, or the check is of
                another pair, other quantized weights, or other scores.
            RunError: the record is of another pair than `spec`.
        """
        from quantdrift.stability.file import read_check  # noqa: PLC0415 -- it needs this class

        check = read_check(Path(path))
        here = Origin.of(
            on,
            spec=spec,
            model_fingerprint=model_fingerprint,
            candidate_fingerprint=candidate_fingerprint,
        )
        what = f"the stability check {path}"
        check.origin.refuse_other(here, what=what, make=MAKE, error=StabilityError)
        return check
