"""The cost of routing on a finished run, its cheapest operating point, and advice.

Source: paper, section 5.3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import beta

from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.base.text import percent
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.runs.folder import Run
from quantdrift.statistics.conformal import CONFIDENCES, ConfidenceName, confidence_in
from quantdrift.statistics.estimates import Estimate, as_json, rate_estimate, undefined
from quantdrift.statistics.selective import CONFIDENCE
from quantdrift.trust.certify import ALPHAS, Certified, certify
from quantdrift.trust.rescoring import given_back
from quantdrift.trust.router import recovery_threshold
from quantdrift.trust.sweep import PERCENTILES, SweepPoint, sweep

SPEED_UP = 4.5
"""Speed of a 4-bit model over full precision, as GPTQ's authors report it and the paper uses it."""

# --- cost and operating point ---------------------------------------------------------------------


def relative_cost(routed_share: float, speed_up: float = SPEED_UP) -> float:
    """Cost per input of the candidate and the routed reference, 1 / speed_up + routed_share; full precision alone is 1.

    >>> round(relative_cost(0.25), 3)
    0.472
    """
    if not (np.isfinite(speed_up) and speed_up >= 1):
        raise QuantDriftError(f"expected a speed-up of 1 or more (the candidate over full precision); got {speed_up}")
    return 1 / speed_up + routed_share


def break_even_share(speed_up: float = SPEED_UP) -> float:
    """The routed share at which routing costs as much as full precision alone; raises as `relative_cost`."""
    return 1 - relative_cost(0, speed_up)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """The smallest threshold that is expected to correct a share of the top-1 changes of new inputs.

    Attributes:
        score: the confidence.
        threshold: inputs with a confidence below it are deferred to full precision.
        routed: share of the inputs that are deferred, 0 to 1.
        cost: cost relative to full precision alone; for a search, of encoding queries.
        changes: expected share of the top-1 changes of new inputs that are corrected.
        low: lower end of the 95 % interval of that share.
        high: its upper end.
        k: for a search, how many of the candidate's first items are rescored.
    """

    score: ConfidenceName
    threshold: float
    routed: float
    cost: float
    changes: float
    low: float
    high: float
    k: int | None


def operating_point(
    evidence: Evidence, score: ConfidenceName = "gap", share: float = 0.9, *, speed_up: float = SPEED_UP
) -> OperatingPoint | None:
    """The operating point of a run; None if so many cannot be corrected, or too few changed to show it.

    The share of new top-1 changes below the m-th smallest confidence of n top-1 changes is Beta(m, n + 1 - m)
    distributed, with the mean m / (n + 1). It is not the m / n of the run on which the threshold was set.
    """
    confidence, (back, k) = confidence_in(evidence, score), given_back(evidence)
    n_changed, n_back = int(perturbation.flips(evidence).sum()), int(back.sum())
    if not n_back:
        return None
    # rounded, as 0.9 of 10 is 9 and not the next number above
    rank = math.ceil(round(share * n_changed / n_back * (n_back + 1), 9))
    if rank > n_back:
        return None
    threshold = recovery_threshold(confidence, back, rank / n_back)
    rows = confidence < threshold
    routed = float(rows.mean())
    return OperatingPoint(
        score=score,
        threshold=threshold,
        routed=routed,
        cost=relative_cost(routed, speed_up),
        changes=n_back / n_changed * rank / (n_back + 1),
        low=n_back / n_changed * float(beta.ppf(0.025, rank, n_back + 1 - rank)),
        high=n_back / n_changed * float(beta.ppf(0.975, rank, n_back + 1 - rank)),
        k=k,
    )


# --- advice ---------------------------------------------------------------------------------------

Fix = Literal["route", "quantize less", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A way to deal with top-1 changes.

    Attributes:
        what: its description.
        fix: the kind of fix; None for the run as it is, and for full precision alone.
        changes: share of the top-1 changes that it corrects, 0 to 1.
        cost: cost per input relative to full precision alone; for a search, of encoding queries.
        between: the 95 % interval of `changes` on new inputs, if known.
    """

    what: str
    fix: Fix | None
    changes: float
    cost: float
    between: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on a run.

    Attributes:
        fix: "route", "quantize less" or "nothing".
        wanted: share of the top-1 changes to correct.
        choices: the choices compared, from the cheapest to full precision.
        flip_rate: share of the inputs whose top-1 changed.
        noise_floor: the flip rate of the reference against itself, if measured.
    """

    fix: Fix
    wanted: float
    choices: tuple[Choice, ...]
    flip_rate: Estimate
    noise_floor: Estimate

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, with the sentences."""
        return {**as_json(self), "sentences": self.sentences}

    @property
    def sentences(self) -> list[str]:
        """The advice as sentences."""
        changed, noise = self.flip_rate, self.noise_floor
        if self.fix == "nothing":
            but = "" if noise.value is None else f", and noise alone changes {percent(noise.value)}"
            return [f"Recommended: nothing. {percent(changed.value)} of {changed.n:,} top-1 answers changed{but}."]
        best, wanted = _cheapest(self.choices, self.wanted), f"{100 * self.wanted:g} % of the top-1 changes"
        if best.fix is None:
            first = f"Nothing cheaper than full precision is shown to correct {wanted}; quantize less"
        else:
            first = f"Recommended: {self.fix}, the cheapest choice that corrects {wanted}"
        return [f"{first}.", "Only top-1 changes and cost are compared."]


def _cheapest(choices: Sequence[Choice], wanted: float) -> Choice:
    """The cheapest choice that corrects enough; full precision, the last, always does, and wins ties."""
    enough = [choice for choice in reversed(choices) if round(choice.changes, 9) >= wanted]
    return min(enough, key=lambda choice: choice.cost)


def advise(
    evidence: Evidence, point: OperatingPoint | None = None, *, wanted: float = 0.9, speed_up: float = SPEED_UP
) -> Advice:
    """Decide between routing, quantizing less and nothing.

    The advice is "nothing" if no more answers changed than between two runs of the reference. Otherwise it is the
    cheapest choice that corrects the wanted share of the top-1 changes, or to quantize less if only full precision
    does.

    Args:
        evidence: the evidence of the run.
        point: the operating point that corrects the wanted share, if there is one.
        wanted: share of the top-1 changes, above 0 and at most 1.
        speed_up: speed of the candidate over full precision.
    """
    changed = perturbation.flips(evidence)
    flip_rate, noise_floor = rate_estimate(changed.astype(np.float64)), undefined("not measured")
    if evidence.noise is not None:
        noise_floor = rate_estimate(evidence.noise.flips.astype(np.float64))
    as_it_is = relative_cost(0, speed_up)
    choices = [Choice(what="leave it as it is", fix=None, changes=0.0, cost=as_it_is)]
    if point is not None:
        how = "route" if point.k is None else f"rescore the first {point.k} of"
        what = f"{how} the {percent(point.routed)} of inputs with the least {point.score}"
        between = (point.low, point.high)
        choices.append(Choice(what=what, fix="route", changes=point.changes, cost=point.cost, between=between))
    choices = sorted(choices, key=lambda choice: choice.cost)
    choices.append(Choice(what="full precision alone", fix=None, changes=1.0, cost=1.0))
    fix = _cheapest(choices, wanted).fix or "quantize less"
    if (flip_rate.value or 0.0) <= (noise_floor.value or 0.0):
        fix, choices = "nothing", []
    return Advice(fix=fix, wanted=wanted, choices=tuple(choices), flip_rate=flip_rate, noise_floor=noise_floor)


# --- a run ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutedRun:
    """The results of routing on one run.

    Attributes:
        path: folder of the run.
        spec: its spec.
        data: name of the data.
        n_inputs: number of inputs.
        scores_are: the kind of its scores.
        system: how many inputs to defer for a level of all answers of the system, by the first confidence.
        k: for a search, how many first items of a deferred query are rescored.
        advice: the advice.
        operating_point: the operating point of the first confidence, if there is one.
        sweep: results by confidence and percentile; empty for similarities.
    """

    path: str
    spec: str
    data: str
    n_inputs: int
    scores_are: Literal["logits", "similarities"]
    system: Certified
    k: int | None
    advice: Advice
    operating_point: OperatingPoint | None
    sweep: Sequence[SweepPoint]


def study_run(
    run: Run,
    scores: Sequence[ConfidenceName] = CONFIDENCES,
    *,
    percentiles: Sequence[float] = PERCENTILES,
    speed_up: float = SPEED_UP,
    recover: float = 0.9,
    alphas: Sequence[float] = ALPHAS,
    confidence: float = CONFIDENCE,
    **splits: Any,
) -> RoutedRun:
    """Compute system, operating point, advice and sweep of one run; `splits` are share, n_splits and seed of a trial.

    Similarities have the gap as their only confidence, and no sweep.
    """
    evidence = run.exact_evidence("the advice of what to do")
    if not (evidence.n_items > 1).any():
        raise RunError(f"{run.path}: expected an input of at least two items; there is none")
    logits = evidence.confidence is not None
    scores = [score for score in scores if logits or score == "gap"]
    if not scores:
        raise RunError(f"{run.path} ranks by similarities, whose softmax is no probability; expected --score gap")
    point = operating_point(evidence, scores[0], recover, speed_up=speed_up)
    record = run.record
    return RoutedRun(
        path=str(run.path),
        spec=record["spec"],
        data=record["data"]["name"],
        n_inputs=evidence.n_inputs,
        scores_are="logits" if logits else "similarities",
        system=certify(evidence, alphas, [("system", scores[0])], confidence=confidence, **splits),
        k=given_back(evidence)[1],
        advice=advise(evidence, point, wanted=recover, speed_up=speed_up),
        operating_point=point,
        sweep=sweep(evidence, scores=scores, percentiles=percentiles, **splits) if logits else (),
    )
