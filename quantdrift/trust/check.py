"""`StabilityCheck`: calibrate once on unlabeled inputs, then tell which answers can be trusted."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift import __version__
from quantdrift.conformal import (
    MAKE,
    STATISTICS,
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
from quantdrift.errors import ScoreError
from quantdrift.evidence import Evidence
from quantdrift.identity import Identity, differ
from quantdrift.records import is_number, read_object, refuse_other, sealed, write_text
from quantdrift.statistics import Estimate, rate_estimate, undefined

# --- Do served inputs look like the calibration inputs? A two-sample test of their confidences ----

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
        inputs = f"{self.n:,} input" + ("" if self.n == 1 else "s")
        if self.alike:
            return (
                f"the confidences of these {inputs} show no difference from those of the "
                f"calibration inputs (Kolmogorov-Smirnov, p {p})"
            )
        return (
            f"the confidences of these {inputs} differ from those of the calibration inputs "
            f"(Kolmogorov-Smirnov, p {p}): the guarantee is for inputs like those it was "
            "calibrated on. Calibrate again on inputs such as these"
        )

    def to_json(self) -> dict[str, object]:
        """As a JSON object."""
        return {
            "p_value": self.p_value,
            "distance": self.distance,
            "n": self.n,
            "n_compared": self.n_compared,
            "alike": self.alike,
            "sentence": self.sentence,
        }


def compare_with_calibration(
    served: NDArray[np.float64], sample: NDArray[np.float64], n_calibration: int
) -> Resemblance:
    """Test served confidences against those of the calibration inputs.

    Args:
        served: float64 [n], at least one, finite.
        sample: float64, of calibration inputs, at least one.
        n_calibration: how many of these there were.

    Raises:
        ScoreError: they are no vector, there is none, or one is NaN or infinite.

    Warns:
        ExchangeabilityWarning: p below 0.01.
    """
    from scipy.stats import ks_2samp  # noqa: PLC0415 -- scipy.stats takes long to import

    if served.ndim != 1:
        raise ScoreError(
            f"expected confidences of shape [n_inputs]; got shape {served.shape}. Scores "
            "[n_inputs, n_items] are what resembles() takes"
        )
    if not len(served) or not np.isfinite(served).all():
        raise ScoreError(
            "expected the confidence of at least one served input, all of them finite; got "
            f"{len(served)} of which {int((~np.isfinite(served)).sum())} are NaN or infinite"
        )
    with warnings.catch_warnings():
        # that an exact p-value is out of reach and the asymptotic one was taken is no news
        warnings.simplefilter("ignore", RuntimeWarning)
        test = ks_2samp(served, sample)
    found = Resemblance(
        p_value=float(test.pvalue),
        distance=float(test.statistic),
        n=len(served),
        n_compared=len(sample),
        n_calibration=n_calibration,
    )
    if not found.alike:
        warnings.warn(clean(found.sentence), ExchangeabilityWarning, stacklevel=3)
    return found


# --- check ----------------------------------------------------------------------------------------

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
    origin: Identity
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
            raise StabilityError("there is nothing to calibrate on: expected inputs with at least two items")
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
            origin=Identity.of(on, spec=spec, input_ids=ids).brief(),
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

        check = read_check(Path(path))
        here = Identity.of(
            on, spec=spec, model_fingerprint=model_fingerprint, candidate_fingerprint=candidate_fingerprint
        )
        what = f"the stability check {path}"
        check.origin.refuse_other(here, what=what, make=MAKE, error=StabilityError)
        return check


# --- A stability check as a small JSON file, read strictly: a server trusts what it says ----------

FORMAT = "quantdrift-stability-check"
FORMAT_VERSION = 2

_COUNTS = ("n_calibration", "n_flipped", "n_items_min", "n_items_max")


def write_check(check: StabilityCheck, path: Path) -> None:
    """Write a check whole, replacing an earlier one. JSON has no infinity: it is null, and why.

    Args:
        check: to write.
        path: the file.

    Raises:
        RunError: the place holds something else, or it cannot be written.
    """
    refuse_other(path, FORMAT, "a stability check")
    fields = {name: getattr(check, name) for name in check.__slots__}
    head = {"format": FORMAT, "format_version": FORMAT_VERSION}
    content = {**head, **fields, "origin": check.origin.to_json()}
    if math.isinf(check.threshold):
        content["threshold"] = None
        content["accepts"] = "nothing" if check.threshold > 0 else "everything"
        content["reason"] = check.reason
    content = sealed(content)
    text = json.dumps(content, indent=2, ensure_ascii=False)
    # one number a line would make a thousand lines of the sample
    listed = json.dumps(content["sample"], indent=2).replace("\n", "\n  ")
    write_text(path, text.replace(listed, json.dumps(content["sample"])) + "\n", what="the stability check")


def read_check(path: Path) -> StabilityCheck:
    """Read a check.

    Args:
        path: the file.

    Raises:
        StabilityError: it is missing, damaged, something else, or of another version.
    """
    content = read_object(path, FORMAT, FORMAT_VERSION, what="a stability check", make=MAKE, error=StabilityError)
    try:
        return _check(content)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise StabilityError(f"{path} is damaged: {what}. Calibrate and save the check again") from error


def _check(content: dict[str, Any]) -> StabilityCheck:
    _need(content["statistic"] in STATISTICS, f"there is no statistic {content['statistic']!r}")
    alpha, threshold = _number(content, "alpha"), content["threshold"]
    _need(0 < alpha < 1, f"alpha is {alpha}")
    counts = {name: content[name] for name in _COUNTS}
    for name, count in counts.items():
        whole = isinstance(count, int) and not isinstance(count, bool)
        _need(whole and count >= 0, f"{name} is {count!r}")
    if threshold is None:
        accepted = content["accepts"]
        _need(accepted in {"nothing", "everything"}, f"it accepts {accepted!r}")
        _need(accepted == "nothing" or not bounds_gap(content["statistic"]), "S accepts everything")
        threshold = math.inf if accepted == "nothing" else -math.inf
    else:
        threshold = _number(content, "threshold")
    few = counts["n_calibration"] < least_inputs(alpha)
    _need(few == (threshold == math.inf), "threshold and number of calibration inputs do not fit")
    _need(counts["n_flipped"] <= counts["n_calibration"], "more flips than inputs")
    _need(counts["n_items_min"] <= counts["n_items_max"], "n_items_min is above n_items_max")
    coverage = _number(content, "expected_coverage")
    _need(0 <= coverage <= 1, f"expected_coverage is {coverage}")
    sample = content["sample"]
    _need(isinstance(sample, list), "sample is no list")
    numbers = all(is_number(x) for x in sample)
    _need(numbers and all(low <= high for low, high in pairwise(sample)), "sample is not sorted")
    wanted = min(SAMPLE, counts["n_calibration"])
    _need(len(sample) == wanted > 0, f"sample holds {len(sample)} of {wanted} confidences")
    _need(isinstance(content["version"], str), "version is no text")
    return StabilityCheck(
        statistic=content["statistic"],
        alpha=alpha,
        threshold=threshold,
        **counts,
        expected_coverage=coverage,
        origin=Identity.from_json(content["origin"]),
        version=content["version"],
        sample=tuple(float(x) for x in sample),
    )


def _number(content: dict[str, Any], name: str) -> float:
    value = content[name]
    _need(is_number(value), f"{name} is {value!r:.40}")
    return float(value)


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


# --- A stored check applied to a run: what it accepts there, and what it lets through -------------


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
        return {
            "n_inputs": self.n_inputs,
            "flip_rate": self.flip_rate,
            "coverage": self.coverage.to_json(),
            "joint_violation": self.joint_violation.to_json(),
            "violation": self.violation.to_json(),
            "resemblance": self.resemblance.to_json(),
            "notes": list(self.notes),
        }


def apply_check(check: StabilityCheck, evidence: Evidence, record: Mapping[str, Any]) -> Applied:
    """Apply a check to the inputs of a run.

    Args:
        check: to apply.
        evidence: of the run.
        record: its run.json; says of which pair and data it is.

    Raises:
        StabilityError: the run is of another pair or of other scores, or no input has two items.
        RunError: the check is by msp or entropy, and the run's scores are not logits.
    """
    # refused before the evidence is looked at: msp of similarities would be another message
    check.origin.refuse_other(
        Identity.of(record),
        what="the stability check",
        make=MAKE,
        error=StabilityError,
        candidate=False,  # what is measured is measured: a note says that the bound is for others
    )
    observed = observe(evidence, check.statistic)
    here = Identity.of(record, input_ids=evidence.input_ids[observed.defined])
    observed = observed.part(observed.defined)
    if not len(observed.confidence):
        raise StabilityError("there is nothing to check: no input has two items to compare")
    accepted = check.accepts_confidence(observed.confidence)
    wrong = (accepted & observed.flipped).astype(np.float64)
    none = check.reason or "the check accepts no answer of this run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExchangeabilityWarning)  # it is among the notes
        resemblance = check.resembles_confidence(observed.confidence)
    return Applied(
        n_inputs=len(accepted),
        flip_rate=float(observed.flipped.mean()),
        coverage=rate_estimate(accepted.astype(np.float64)),
        joint_violation=rate_estimate(wrong),
        violation=rate_estimate(wrong[accepted]) if accepted.any() else undefined(none),
        resemblance=resemblance,
        notes=_notes(check, here, observed.n_items, resemblance),
    )


def _notes(
    check: StabilityCheck, here: Identity, n_items: tuple[int, int], resemblance: Resemblance
) -> tuple[str, ...]:
    was, notes = check.origin, []
    if differ(was.candidate_fingerprint, here.candidate_fingerprint):
        notes.append(
            "these are other quantized weights than the check was calibrated on (made on other "
            "data?); its bound is not for these"
        )
    notes += _data_notes(was, here)
    if not resemblance.alike:
        notes.append(resemblance.sentence)
    return (*notes, *_size_notes(check, n_items))


def _data_notes(was: Identity, here: Identity) -> list[str]:
    """Whether the inputs are those calibrated on, or of other data."""
    if was.data_fingerprint is not None and _part(was) == _part(here):
        return ["the check was calibrated on this very data, so that these figures are not held out"]
    notes = []
    other_part = differ(was.split, here.split) or differ(was.subset, here.subset)
    known = was.inputs is not None and was.data is not None
    # ids alone would not do: mteb's tasks without ids have "test-0" and so on in every subset
    if known and not other_part and (was.inputs, was.data) == (here.inputs, here.data):
        notes.append(
            "the check was calibrated on these very inputs, by their ids, so that these figures are not held out"
        )
    if differ(was.data, here.data) or other_part:
        names = [_named(each, parts=was.data == here.data) for each in (was, here)]
        notes.append(f"calibrated on {names[0]}; this is {names[1]}: the bound is for inputs like those of {names[0]}")
    elif differ(was.data_fingerprint, here.data_fingerprint):
        notes.append(
            f"calibrated on {was.data or 'data'} of other content (its digest differs): the bound "
            "is for inputs like those calibrated on"
        )
    return notes


def _part(origin: Identity) -> tuple[str | None, ...]:
    return origin.data_fingerprint, origin.split, origin.subset


def _named(origin: Identity, *, parts: bool) -> str:
    name = origin.data or "unnamed data"
    listed = [part for part in (origin.split, origin.subset) if part is not None]
    return f"{name} {'/'.join(listed)}" if parts and listed else name


def _size_notes(check: StabilityCheck, n_items: tuple[int, int]) -> list[str]:
    """What another number of items means for the bound."""
    fewer, more = n_items[0] < check.n_items_min, n_items[1] > check.n_items_max
    if not (fewer or more):
        return []
    what = (
        f"inputs of this run have {_span(*n_items)} items, those calibrated on had "
        f"{_span(check.n_items_min, check.n_items_max)}; "
    )
    if confidence_name(check.statistic) != "gap":
        return [f"{what}{check.statistic} is of all items' scores and on another scale with others"]
    means = []
    if more:
        means.append("with more items quantization can overturn larger gaps, beyond the bound")
    if fewer:
        means.append("with fewer items it overturns less as a rule, and the check is too strict")
    return [what + "; ".join(means)]


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
