"""What routing costs on a finished run, the least that gives back what is wanted, and what to do about the run.

Source: paper, section 5.3.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import beta

from quantdrift.base.errors import QuantDriftError, RunError, SpecError
from quantdrift.base.text import percent
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.runs.folder import Run
from quantdrift.scheme import FULL_BITS
from quantdrift.spec.grammar import Spec, parse_pair, stages_of
from quantdrift.statistics.conformal import CONFIDENCES, ConfidenceName, confidence_in
from quantdrift.statistics.estimates import Estimate, as_json, rate_estimate, undefined
from quantdrift.trust.rescoring import given_back
from quantdrift.trust.router import recovery_threshold
from quantdrift.trust.sweep import PERCENTILES, SweepPoint, sweep

SPEED_UP = 4.5
"""Of a 4-bit model over full precision, as GPTQ's authors report it and the paper uses it."""

# --- the cost, and the least that has to be paid --------------------------------------------------


def relative_cost(routed_share: float, speed_up: float = SPEED_UP) -> float:
    """Cost per input of candidate plus routed reference: 1 / speed_up + routed_share; full precision alone is 1.

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
    """The smallest threshold that is expected to give back a share of the top-1 changes of new inputs.

    Attributes:
        score: which confidence.
        threshold: of it; inputs below it are deferred to full precision.
        routed: share of the inputs that are deferred, 0 to 1.
        cost: relative to full precision alone; of a search, of encoding queries.
        changes: share of the top-1 changes of new inputs that are the reference's again, as is expected.
        low: lower end of the 95 % interval of that share.
        high: its upper end.
        k: of a search, how many of the candidate's first items are rescored.
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
    """The operating point of a run; None where so many cannot be given back, or too few changed to show it.

    Below the m-th smallest confidence of n top-1 changes lies, of the top-1 changes of new inputs like these, a
    share that is Beta(m, n + 1 - m) distributed, m / (n + 1) on average: never the m / n of the run itself, on which
    the threshold was set.
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


# --- the advice: route unsure inputs, or spend more bits ------------------------------------------

Fix = Literal["route", "allocate", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One thing that can be done about top-1 changes.

    Attributes:
        what: in words.
        fix: which fix it is; None for leaving the run as it is, and for full precision alone.
        changes: share of the top-1 changes that it gives back, 0 to 1.
        cost: per input, relative to full precision alone; of a search, of encoding queries.
        predicted: whether `changes` is predicted from the run; else it is counted in it.
    """

    what: str
    fix: Fix | None
    changes: float
    cost: float
    predicted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about a run.

    Attributes:
        fix: "route", "allocate" or "nothing".
        wanted: share of the top-1 changes that is to come back.
        choices: what was compared, from the cheapest to full precision.
        flip_rate: share of the inputs whose top-1 changed.
        noise_floor: the same of the reference against itself, if measured.
    """

    fix: Fix
    wanted: float
    choices: tuple[Choice, ...]
    flip_rate: Estimate
    noise_floor: Estimate

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, with the advice in words."""
        return {**as_json(self), "sentences": self.sentences}

    @property
    def sentences(self) -> list[str]:
        """The advice in words."""
        changed, noise = self.flip_rate, self.noise_floor
        if self.fix == "nothing":
            but = "" if noise.value is None else f", and noise alone changes {percent(noise.value)}"
            return [f"Recommended: nothing. {percent(changed.value)} of {changed.n:,} top-1 answers changed{but}."]
        weights = any(choice.predicted for choice in self.choices)  # what one more bit would do; others have none
        best, wanted = _cheapest(self.choices, self.wanted), f"{100 * self.wanted:g} % of the top-1 changes"
        if best.fix is None:
            nothing = f"Nothing cheaper than full precision is shown to give back {wanted}"
            first = f"Recommended: allocate. {nothing}; more bits" if weights else f"{nothing}; quantize less"
        else:
            first = (
                f"Recommended: {self.fix}. The cheapest of these that gives back {wanted}: {best.what}, at "
                f"{percent(best.cost)} of the cost of full precision"
            )
        more = ", on the layers that move the gap (quantdrift allocate)" if weights and self.fix == "allocate" else ""
        return [f"{first}{more}.", "Counted are top-1 changes and cost."]


def _cheapest(choices: Sequence[Choice], wanted: float) -> Choice:
    """The cheapest that gives back as much as is wanted; full precision, the last, does, and is taken of equal ones."""
    enough = [choice for choice in reversed(choices) if round(choice.changes, 9) >= wanted]
    return min(enough, key=lambda choice: choice.cost)


def advise(
    evidence: Evidence,
    point: OperatingPoint | None = None,
    *,
    wanted: float = 0.9,
    bits: float | None = None,
    speed_up: float = SPEED_UP,
) -> Advice:
    """Decide between routing, more bits and nothing.

    Nothing, if no answer changed or no more than between two runs of the reference. Else the cheapest choice that gives
    back the wanted share of the top-1 changes; more bits where none does for less than full precision costs.

    Args:
        evidence: of the run.
        point: the routing that gives back the wanted share; None where there is none.
        wanted: share of the top-1 changes, above 0 and at most 1.
        bits: per weight, of a run in which nothing but weights was quantized; what one more would give back is then
            predicted, by shifts of the scores that shrink as the grid's steps do. None compares no such choice.
        speed_up: of the candidate over full precision; one more bit slows it down by the bits it reads.
    """
    changed = perturbation.flips(evidence)
    flip_rate, noise_floor = rate_estimate(changed.astype(np.float64)), undefined("not measured")
    if evidence.noise is not None:
        noise_floor = rate_estimate(evidence.noise.flips.astype(np.float64))
    as_it_is = relative_cost(0, speed_up)
    choices = [Choice(what="leave it as it is", fix=None, changes=0.0, cost=as_it_is)]
    if bits is not None and changed.any():
        still = perturbation.flips_with_shifts_times(evidence, (2 ** (bits - 1) - 1) / (2**bits - 1))
        back, cost = 1 - float(still[changed].mean()), as_it_is * (bits + 1) / bits
        more = Choice(what="one more bit throughout", fix="allocate", changes=back, cost=cost, predicted=True)
        choices.append(more)
    if point is not None:
        how = "route" if point.k is None else f"rescore the first {point.k} of"
        what = f"{how} the {percent(point.routed)} with the least {point.score}"
        what += f" (new inputs: {percent(point.low)} to {percent(point.high)})"
        choices.append(Choice(what=what, fix="route", changes=point.changes, cost=point.cost))
    choices = sorted(choices, key=lambda choice: choice.cost)
    choices.append(Choice(what="full precision alone", fix=None, changes=1.0, cost=1.0))
    fix = _cheapest(choices, wanted).fix or "allocate"
    if (flip_rate.value or 0.0) <= (noise_floor.value or 0.0):
        fix, choices = "nothing", []
    return Advice(fix=fix, wanted=wanted, choices=tuple(choices), flip_rate=flip_rate, noise_floor=noise_floor)


# --- a run ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutedRun:
    """What routing says of one run.

    Attributes:
        path: of its folder.
        spec: what was measured.
        data: name of the data.
        n_inputs: of its evidence.
        scores_are: what it ranks by.
        advice: which fix it asks for.
        operating_point: that of the first confidence asked for; None where there is none.
        sweep: by confidence and percentile; empty for similarities.
    """

    path: str
    spec: str
    data: str
    n_inputs: int
    scores_are: Literal["logits", "similarities"]
    advice: Advice
    operating_point: OperatingPoint | None
    sweep: Sequence[SweepPoint]


def _bits(record: Mapping[str, Any]) -> float | None:
    """Bits per weight of a run that quantizes weights and nothing else; None for others, and for two models."""
    try:
        pair = parse_pair(record["spec"])
    except SpecError:  # of another version, or an allocation that is gone
        return None
    if not isinstance(pair, Spec) or stages_of(pair.scheme) != ("weights",) or pair.scheme.weight_bits == FULL_BITS:
        return None
    return pair.scheme.weight_bits


def study_run(
    run: Run,
    scores: Sequence[ConfidenceName] = CONFIDENCES,
    *,
    percentiles: Sequence[float] = PERCENTILES,
    speed_up: float = SPEED_UP,
    recover: float = 0.9,
    **splits: Any,
) -> RoutedRun:
    """Look at one run; `splits` are the share, n_splits and seed of `sweep`.

    For logits: the sweep of every confidence. For similarities only the gap is one, and there is no sweep.
    """
    evidence = run.exact_evidence("the advice of what to do")
    if not (evidence.n_items > 1).any():
        raise RunError(f"{run.path}: expected an input of at least two items; there is none")
    logits = evidence.confidence is not None
    scores = [score for score in scores if logits or score == "gap"]
    if not scores:
        raise RunError(
            f"{run.path} ranks by similarities, whose softmax is no probability; expected --score gap in place of "
            "msp or entropy"
        )
    point = operating_point(evidence, scores[0], recover, speed_up=speed_up)
    record = run.record
    return RoutedRun(
        path=str(run.path),
        spec=record["spec"],
        data=record["data"]["name"],
        n_inputs=evidence.n_inputs,
        scores_are="logits" if logits else "similarities",
        advice=advise(evidence, point, wanted=recover, bits=_bits(record), speed_up=speed_up),
        operating_point=point,
        sweep=sweep(evidence, scores=scores, percentiles=percentiles, **splits) if logits else (),
    )
