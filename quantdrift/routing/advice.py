"""Which of the two fixes a run asks for: route its unsure inputs, or spend more bits.

Routing the inputs at risk pays while they are fewer than the break-even share, and few enough
that the candidate still answers most inputs. Where most are at risk (retrieval, usually), nothing
is left to leave alone, and the bits themselves have to go where they matter.

Source: paper, sections 5.2 and 5.3, which give each kind of data its fix; the two limits are ours.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from quantdrift import perturbation
from quantdrift.errors import SpecError
from quantdrift.evidence import Evidence
from quantdrift.routing.cost import SPEED_UP, break_even_share
from quantdrift.spec import parse
from quantdrift.statistics import Estimate, mcnemar_exact, rate_estimate, undefined
from quantdrift.widths import MAX_BITS

__all__ = ["MAJORITY", "Advice", "Fix", "advise", "allocate_command"]

Fix = Literal["route", "allocate", "nothing"]

MAJORITY = 0.5
"""From this share of inputs at risk on, routing is no longer the exception."""

ALPHA = 0.05
EXTRA_BITS = 0.5
"""What the paper's allocations add to a whole width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about a run.

    Attributes:
        fix: "route", "allocate" or "nothing".
        flip_rate: share of the inputs whose first answer changed.
        noise_floor: the same of the reference against itself, if measured.
        at_risk: share of the inputs whose separation ratio is below 1.
        limit: share at risk from which on routing is not advised: break_even or the majority,
            whichever is less.
        break_even: routed share at which routing costs what full precision does.
        straddles: whether the interval of at_risk holds the limit, so that more inputs could change
            the advice.
        above_noise: whether the exact McNemar test tells the flips from the noise floor (p < 0.05);
            None if that was not measured.
    """

    fix: Fix
    flip_rate: Estimate
    noise_floor: Estimate
    at_risk: Estimate
    limit: float
    break_even: float
    straddles: bool
    above_noise: bool | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        estimates = ("flip_rate", "noise_floor", "at_risk")
        return {**asdict(self), **{name: getattr(self, name).to_json() for name in estimates}}

    def sentences(self, allocate: str | None = None) -> list[str]:
        """The advice in words.

        Args:
            allocate: the command that allocates, where there is one.
        """
        changed, told = self.flip_rate, []
        assert changed.value is not None  # a run has an input
        if changed.value == 0:
            return [
                f"Recommended: nothing. None of {changed.n:,} first answers changed (at most "
                f"{_percent(changed.high)} do, with 95 % confidence)."
            ]
        if self.fix == "nothing":
            return [
                f"Recommended: nothing. {_percent(changed.value)} of {changed.n:,} first answers "
                f"changed, and noise alone changes {_percent(self.noise_floor.value)}."
            ]
        if self.at_risk.value is None:
            return ["No recommendation: no input has two items, so none can change."]
        risk = (
            f"{_percent(self.at_risk.value)} of {self.at_risk.n:,} inputs are at risk (95 % "
            f"interval {_percent(self.at_risk.low)} to {_percent(self.at_risk.high)})"
        )
        if self.fix == "route":
            told.append(
                f"Recommended: route. {risk}, which is less than {self._what_limit()}: most inputs "
                "can be left to the candidate."
            )
        else:
            why = (
                "most inputs would be asked twice"
                if self.at_risk.value >= MAJORITY
                else "full precision for all of them costs less"
            )
            how = f": {allocate}" if allocate else ""
            told.append(
                f"Recommended: allocate. {risk}, not less than {self._what_limit()}: {why}. Spend "
                f"more bits, and spend them on the layers that move the gap{how}."
            )
        if self.straddles:
            told.append(
                f"The interval holds the limit of {_percent(self.limit)}, so these inputs are too "
                "few to be sure of that; the other fix may do as well."
            )
        if self.above_noise is False:
            told.append(
                f"The changes ({_percent(changed.value)}) are not shown to be more than noise "
                f"alone makes ({_percent(self.noise_floor.value)}); maybe nothing need be done."
            )
        return told

    def _what_limit(self) -> str:
        if self.limit < self.break_even:
            return "half of them"
        return f"the {_percent(self.limit)} at which routing costs what full precision does"


def advise(evidence: Evidence, *, speed_up: float = SPEED_UP) -> Advice:
    """Decide between routing, more bits and nothing.

    Nothing, if no answer changed or no more than between two runs of the reference; routing, if
    fewer are at risk than both the break-even share and a half; allocation otherwise.

    Args:
        evidence: of one run, with at least one input.
        speed_up: of the candidate, at least 1.

    Raises:
        QuantDriftError: speed_up is below 1 or not finite.
    """
    break_even = break_even_share(speed_up)
    limit = min(break_even, MAJORITY)
    changed = perturbation.flips(evidence).astype(np.float64)
    flip_rate, noise_floor, above = rate_estimate(changed), undefined("not measured"), None
    if evidence.noise is not None:
        noise = evidence.noise.flips.astype(np.float64)
        noise_floor = rate_estimate(noise)
        above = bool(changed.sum() > noise.sum() and mcnemar_exact(noise, changed).p_value < ALPHA)
    risks = perturbation.at_risk(evidence)
    risks = risks[~np.isnan(risks)]
    at_risk = rate_estimate(risks) if len(risks) else undefined("no input has two items")
    assert flip_rate.value is not None
    fix: Fix = "allocate"
    if flip_rate.value <= (noise_floor.value or 0.0):
        fix = "nothing"
    elif at_risk.value is not None and at_risk.value < limit:
        fix = "route"
    low, high = at_risk.low, at_risk.high
    return Advice(
        fix=fix,
        flip_rate=flip_rate,
        noise_floor=noise_floor,
        at_risk=at_risk,
        limit=limit,
        break_even=break_even,
        straddles=fix != "nothing" and low is not None and high is not None and low < limit <= high,
        above_noise=above,
    )


def allocate_command(spec: str, *, classes: bool) -> str | None:
    """What spends half a bit more than a spec does, by the gap; None where that makes no spec.

    Args:
        spec: of a run.
        classes: whether it is on classification data, where the run itself measures the layers.

    >>> allocate_command("minilm@W3-gptq", classes=False)
    'quantdrift allocate minilm@W3.5-g128-gptq+gap --data FOLDER'
    """
    try:
        whole = parse(spec)
        scheme = whole.scheme
        if scheme.criterion is not None or scheme.weight_bits + EXTRA_BITS > MAX_BITS:
            return None
        bits = f"W{scheme.weight_bits + EXTRA_BITS:g}"
        rest = str(scheme).removeprefix(f"W{scheme.weight_bits:g}")
        head, plus, options = rest.partition("+")
        more = parse(f"{whole.model}@{bits}{head}+gap{plus}{options}")
    except SpecError:  # two models, say, or an option that a criterion does not go with
        return None
    return f"quantdrift {'run' if classes else 'allocate'} {more} --data FOLDER"


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.1f} %"
