"""`StabilityCheck`: calibrate once on unlabeled inputs, then tell which answers can be trusted."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AllowInfNan, BeforeValidator, Field, PlainSerializer, model_validator

from quantdrift import __version__
from quantdrift.conformal import (
    MAKE,
    ConfidenceName,
    ExchangeabilityWarning,
    Source,
    StabilityError,
    Statistic,
    accepts,
    as_array,
    bounds_gap,
    confidence_name,
    confidence_of,
    least_inputs,
    nothing_accepted,
    observe,
    threshold_of,
)
from quantdrift.display import clean
from quantdrift.errors import QuantDriftError, ScoreError
from quantdrift.evidence import Evidence
from quantdrift.identity import Identity, differ
from quantdrift.records import AS_LIST, Record, sealed
from quantdrift.statistics.estimates import Estimate, as_json, rate_estimate, undefined

# --- do served inputs look like the calibration inputs? -------------------------------------------

ALIKE_ABOVE = 0.01
"""Below this p-value the inputs are said to differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance:
    """Whether served confidences could be of the distribution of the calibration inputs'.

    Attributes:
        p_value: of the two-sample Kolmogorov-Smirnov test, two-sided; ties make it larger.
        distance: its statistic, the largest difference of the two distribution functions, 0 to 1.
        n: served inputs.
        n_compared: calibration inputs they were compared with.
        n_calibration: calibration inputs there were.
    """

    p_value: float
    distance: float
    n: int
    n_compared: int
    n_calibration: int

    @property
    def alike(self) -> bool:
        """Whether no difference is shown, which is not the same as none."""
        return self.p_value >= ALIKE_ABOVE

    @property
    def sentence(self) -> str:
        """The finding in plain words."""
        p = "< 0.001" if self.p_value < 0.001 else f"= {self.p_value:.3f}"  # noqa: PLR2004 -- three digits are shown
        finding = "show no difference from" if self.alike else "differ from"
        told = (
            f"the confidences of these {self.n:,} inputs {finding} those of the calibration inputs "
            f"(Kolmogorov-Smirnov, p {p})"
        )
        if self.alike:
            return told
        return f"{told}: the guarantee is for inputs like those it was calibrated on. Calibrate again on such as these"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        names = ("p_value", "distance", "n", "n_compared", "alike", "sentence")
        return {name: getattr(self, name) for name in names}


# --- the check ------------------------------------------------------------------------------------

SAMPLE = 1_000
"""How many calibration confidences are kept, to tell whether served inputs resemble them."""

Origin = Annotated[
    Identity,
    BeforeValidator(lambda held: held if isinstance(held, Identity) else Identity.from_json(held)),
    PlainSerializer(Identity.to_json),
]
"""An identity as a file of a threshold holds it."""
Count = Annotated[int, Field(ge=0)]


class StabilityCheck(Record):
    """Accepts an answer of the quantized model iff its confidence reaches a calibrated threshold.

    For an input exchangeable with the calibration inputs, P(accepted and top-1 changed) <= alpha, without labels and
    without the reference.

    Attributes:
        statistic: what was calibrated.
        alpha: level of that bound.
        threshold: of the candidate gap (S, 2 epsilon: accept at or above it) or of the confidence (accept above it);
            +inf accepts nothing, -inf everything.
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

    FORMAT: ClassVar[str] = "quantdrift-stability-check"
    VERSION: ClassVar[int] = 2
    WHAT: ClassVar[str] = "a stability check"
    MAKE: ClassVar[str] = MAKE
    ERROR: ClassVar[type[QuantDriftError]] = StabilityError

    statistic: Statistic
    alpha: Annotated[float, Field(gt=0, lt=1)]
    threshold: Annotated[float, AllowInfNan(True), PlainSerializer(lambda it: it if math.isfinite(it) else None)]
    n_calibration: Count
    n_flipped: Count
    expected_coverage: Annotated[float, Field(ge=0, le=1)]
    n_items_min: Count
    n_items_max: Count
    origin: Origin
    version: str
    sample: Annotated[tuple[float, ...], AS_LIST, Field(repr=False)]

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
            RunError: msp or entropy of evidence whose scores are not logits, or `on` is the record of another pair
                than `spec`.
            UnknownNameError: there is no such statistic.
        """
        observed = observe(source, statistic)
        ids = source.input_ids[observed.defined] if isinstance(source, Evidence) else None
        observed = observed.part(observed.defined)
        if not len(observed.confidence):
            raise StabilityError("there is nothing to calibrate on: expected inputs with at least two items")
        threshold, seen = threshold_of(observed, alpha), np.sort(observed.confidence)
        if len(seen) > SAMPLE:
            # drawn, not thinned evenly: then served inputs are exchangeable with the sample too
            seen = np.sort(np.random.default_rng(0).choice(seen, SAMPLE, replace=False))
        return cls(
            statistic=statistic,
            alpha=float(alpha),
            threshold=threshold,
            n_calibration=len(observed.confidence),
            n_flipped=int(observed.flipped.sum()),
            expected_coverage=float(accepts(observed.confidence, threshold, statistic).mean()),
            n_items_min=observed.n_items[0],
            n_items_max=observed.n_items[1],
            origin=Identity.of(on, spec=spec, input_ids=ids).brief(),
            version=__version__,
            sample=tuple(seen.tolist()),
        )

    @property
    def score(self) -> ConfidenceName:
        """Which confidence it looks at when it serves."""
        return confidence_name(self.statistic)

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
            scores: float [n_inputs, n_items], of the candidate, in the dtype calibrated with. Of msp and entropy, the
                scores of all items; else the first two would do.

        Returns:
            bool [n_inputs].

        Raises:
            ScoreError: it is no such matrix, or not finite.
        """
        return self.accepts_confidence(self.confidence(scores))

    def accepts_confidence(self, values: ArrayLike) -> NDArray[np.bool_]:
        """The same from confidences (the candidate gap, msp, or minus entropy), float [n_inputs]."""
        return accepts(np.asarray(values, dtype=np.float64), self.threshold, self.statistic)

    def confidence(self, scores: ArrayLike) -> NDArray[np.float64]:
        """What this check looks at: the candidate gap, or another confidence; float64 [n_inputs].

        Raises:
            ScoreError: scores are no finite matrix, or, for msp and entropy, of another number of items than those
                calibrated on.
        """
        name, matrix = self.score, as_array(scores)
        found = confidence_of(matrix, name)
        if name != "gap" and not self.n_items_min <= matrix.shape[1] <= self.n_items_max:
            raise ScoreError(
                f"{name} is of all items' scores, and was calibrated on {self.n_items_min:,} to "
                f"{self.n_items_max:,} items; got {matrix.shape[1]:,}"
            )
        return found

    def resembles(self, scores: ArrayLike) -> Resemblance:
        """Whether served inputs look like the calibration inputs, as the guarantee supposes.

        A two-sample test of their confidences, for a given set of inputs: asked again and again it rejects in the end
        whatever the inputs.

        Args:
            scores: float [n_inputs, n_items], of the candidate.

        Raises:
            ScoreError: they cannot be used, or there are none.

        Warns:
            ExchangeabilityWarning: p below 0.01.
        """
        return self.resembles_confidence(self.confidence(scores))

    def resembles_confidence(self, values: ArrayLike) -> Resemblance:
        """The same from confidences (the candidate gap, msp, or minus entropy), float [n_inputs], all finite."""
        from scipy.stats import ks_2samp  # noqa: PLC0415 -- scipy.stats takes long to import

        served = np.asarray(values, dtype=np.float64)
        if served.ndim != 1 or not len(served) or not np.isfinite(served).all():
            raise ScoreError(
                "expected the finite confidence of at least one served input, [n_inputs]; got shape "
                f"{served.shape} with {int((~np.isfinite(served)).sum())} that are NaN or infinite. Scores "
                "[n_inputs, n_items] are what resembles() takes"
            )
        with warnings.catch_warnings():
            # that an exact p-value is out of reach and the asymptotic one was taken is no news
            warnings.simplefilter("ignore", RuntimeWarning)
            test = ks_2samp(served, np.array(self.sample))
        found = Resemblance(
            p_value=float(test.pvalue),
            distance=float(test.statistic),
            n=len(served),
            n_compared=len(self.sample),
            n_calibration=self.n_calibration,
        )
        if not found.alike:
            warnings.warn(clean(found.sentence), ExchangeabilityWarning, stacklevel=2)
        return found

    def save(self, path: Path | str) -> None:
        """Write the check into a small JSON file, replacing an earlier check.

        Raises:
            RunError: the place holds something else, or it cannot be written.
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
    ) -> StabilityCheck:
        """Read a check, and refuse it for other weights or scores than it was calibrated on.

        Args:
            path: the file.
            spec: the pair that is served; not compared if not given.
            model_fingerprint: digest of its reference's weights; likewise.
            candidate_fingerprint: digest of its quantized weights; likewise.
            on: record of a run of what is served, which says all of these and what its scores are.

        Raises:
            StabilityError: the file is missing, damaged or of another version, or the check is of another pair, other
                quantized weights, or other scores.
            RunError: the record is of another pair than `spec`.
        """
        check = cls.read(Path(path))
        here = Identity.of(
            on, spec=spec, model_fingerprint=model_fingerprint, candidate_fingerprint=candidate_fingerprint
        )
        check.origin.refuse_other(here, what=f"the stability check {path}", make=MAKE, error=StabilityError)
        return check

    def content(self) -> dict[str, Any]:
        """The JSON object in the file; of a threshold that is infinite, and so null, which one and why."""
        if self.reason is None:
            return super().content()
        accepted = "nothing" if self.threshold > 0 else "everything"
        return sealed({**super().content(), "accepts": accepted, "reason": self.reason})

    def text(self) -> str:
        """The file; the sample is on one line."""
        sample = json.dumps(self.sample)
        return super().text().replace(json.dumps(self.sample, indent=2).replace("\n", "\n  "), sample)

    @model_validator(mode="before")
    @classmethod
    def _with_infinity(cls, content: dict[str, Any]) -> dict[str, Any]:
        if content.get("threshold") is not None:
            return content
        held = {name: value for name, value in content.items() if name not in {"accepts", "reason"}}
        if (accepted := content.get("accepts")) not in {"nothing", "everything"}:
            raise ValueError(f"it accepts {accepted!r:.40}")
        return {**held, "threshold": math.inf if accepted == "nothing" else -math.inf}

    @model_validator(mode="after")
    def _fits(self) -> StabilityCheck:
        few = self.n_calibration < least_inputs(self.alpha)
        for holds, otherwise in (
            (few == (self.threshold == math.inf), "threshold and number of calibration inputs do not fit"),
            (self.threshold != -math.inf or not bounds_gap(self.statistic), "S accepts everything"),
            (self.n_flipped <= self.n_calibration, "more flips than inputs"),
            (self.n_items_min <= self.n_items_max, "n_items_min is above n_items_max"),
            (all(low <= high for low, high in pairwise(self.sample)), "sample is not sorted"),
            (len(self.sample) == min(SAMPLE, self.n_calibration) > 0, f"sample holds {len(self.sample)} confidences"),
        ):
            if not holds:
                raise ValueError(otherwise)
        return self


# --- a stored check applied to a run --------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a check does on a run that also knows the reference's answers.

    Attributes:
        n_inputs: inputs with at least two items; the others take no part.
        flip_rate: share of them whose top-1 changed.
        coverage: share of them that are accepted.
        joint_violation: share of them that are accepted though their top-1 changed.
        violation: share of the accepted ones whose top-1 changed; undefined if none is accepted.
        resemblance: whether the inputs look like the calibration inputs.
        notes: what to know before reading this: one sentence each.
    """

    n_inputs: int
    flip_rate: float
    coverage: Estimate
    joint_violation: Estimate
    violation: Estimate
    resemblance: Resemblance
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return dict(as_json(self))


def apply_check(check: StabilityCheck, evidence: Evidence, record: Mapping[str, Any]) -> Applied:
    """Apply a check to the inputs of a run."""
    # refused before the evidence is looked at: msp of similarities would be another message
    here = Identity.of(record, input_ids=evidence.input_ids[evidence.n_items > 1])
    check.origin.refuse_other(
        here,
        what="the stability check",
        make=MAKE,
        error=StabilityError,
        candidate=False,  # what is measured is measured: a note says that the bound is for others
    )
    observed = observe(evidence, check.statistic)
    observed = observed.part(observed.defined)
    if not len(observed.confidence):
        raise StabilityError("there is nothing to check: no input has two items to compare")
    accepted = check.accepts_confidence(observed.confidence)
    wrong = (accepted & observed.flipped).astype(np.float64)
    none = check.reason or "the check accepts no answer of this run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExchangeabilityWarning)  # it is among the notes
        resemblance = check.resembles_confidence(observed.confidence)
    notes = _provenance(check.origin, here)
    if not resemblance.alike:
        notes.append(resemblance.sentence)
    least, most = observed.n_items
    if least < check.n_items_min or most > check.n_items_max:
        notes.append(
            f"inputs of this run have {_span(least, most)} items, those calibrated on had "
            f"{_span(check.n_items_min, check.n_items_max)}: with more items quantization can overturn larger gaps, "
            "beyond the bound, and with fewer it overturns less as a rule; msp and entropy are on another scale then"
        )
    return Applied(
        n_inputs=len(accepted),
        flip_rate=float(observed.flipped.mean()),
        coverage=rate_estimate(accepted.astype(np.float64)),
        joint_violation=rate_estimate(wrong),
        violation=rate_estimate(wrong[accepted]) if accepted.any() else undefined(none),
        resemblance=resemblance,
        notes=tuple(notes),
    )


def _provenance(was: Identity, here: Identity) -> list[str]:
    """Whether weights and inputs are those calibrated on."""
    notes = []
    if differ(was.candidate_fingerprint, here.candidate_fingerprint):
        notes.append(
            "these are other quantized weights than the check was calibrated on (made on other data?); its bound is "
            "not for these"
        )
    part, own = ((each.data, each.split, each.subset) for each in (was, here))
    digests = (was.data_fingerprint, here.data_fingerprint), (was.inputs, here.inputs)
    # ids alone would not do: mteb's tasks without ids have "test-0" and so on in every subset
    if part == own and any(mine is not None and mine == theirs for mine, theirs in digests):
        notes.append("the check was calibrated on these very inputs, so that these figures are not held out")
    elif None not in (part[0], own[0]):
        names = [" ".join(one for one in each if one) for each in (part, own)]
        other = "other content of " if part == own else ""
        notes.append(
            f"calibrated on {names[0]}; this is {other}{names[1]}: the bound is for inputs like those calibrated on"
        )
    return notes


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
