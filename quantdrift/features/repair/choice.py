"""What can be done about the answers that a quantized model changes: configurations of it, and which of them pay.

A configuration is a scheme that spends the same bits otherwise. A deployment is a configuration as it was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import UnsupportedError
from quantdrift.builtin.weights import not_plain
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES, Kind
from quantdrift.scheme import Scheme
from quantdrift.statistics.estimates import Estimate, as_json, rate_estimate
from quantdrift.statistics.paired import paired_rate_difference

TRIED = tuple(
    sorted(
        (name for name, entry in QUANTIZERS.items() if entry.in_repair), key=lambda name: QUANTIZERS[name].calibrated
    )
)
"""Quantizers that are tried where nothing else is said, those that need no data first."""
POSSIBLE = tuple(name for name, entry in QUANTIZERS.items() if not entry.widths)
"""Quantizers that can be tried: a number format has one width."""
GROUPS = (64, 32)
"""Finer groups, where the bits of their scales are within the budget."""
MORE = 0.125
"""Bits a linear weight beyond those of the plain scheme, where no budget is given."""
WIDTHS = (2, 3, 4, 5, 6, 8)
"""To choose from by gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """What a deployment may cost, and what is tried.

    Attributes:
        bits: a linear weight may take, scales counted; an eighth more than the plain scheme takes if None.
        quantizers: that are tried.
        thorough: whether what takes long is tried, too.
    """

    bits: float | None = None
    quantizers: Sequence[str] = TRIED
    thorough: bool = False


def check_plain(scheme: Scheme) -> None:
    """Refuse a scheme that is no starting point."""
    for problem in not_plain(scheme):
        raise UnsupportedError(
            f"{scheme}: {problem}; expected the plain scheme that is to be repaired, such as W4 or W3-g64"
        )


def uniform_configurations(scheme: Scheme, quantizers: Sequence[str]) -> list[Scheme]:
    """The plain scheme first, then other quantizers at the same width."""
    options = tuple(option for option in scheme.options if option[0] not in {"backend", "grid"})
    others = [name for name in quantizers if name != scheme.quantizer]
    return [scheme, *(replace(scheme, quantizer=name, options=options) for name in others)]


def finer_configurations(scheme: Scheme) -> list[Scheme]:
    """The same in smaller groups, whose scales take more bits."""
    size = scheme.group_size or 2 * max(GROUPS)
    return [replace(scheme, group_size=group) for group in GROUPS if group < size]


def allocated_configuration(scheme: Scheme, budget: float) -> Scheme | None:
    """The scheme with its layers' widths chosen by gap, on average `budget` bits a weight, scales not counted.

    None where no width is below or above the budget.
    """
    if not WIDTHS[0] <= budget < WIDTHS[-1]:
        return None
    options = (*scheme.options, ("widths", ",".join(map(str, WIDTHS))))
    return replace(scheme, weight_bits=round(budget, 4), criterion="gap", options=options)


def staged_configurations(scheme: Scheme, kind: Kind, *, thorough: bool) -> list[Scheme]:
    """The scheme with what each stage of a kind has tried, in place of what it has of that stage already."""
    return [
        replace(scheme, options=tuple({**dict(scheme.options), **options}.items()))
        for stage in STAGES.values()
        if stage.kind == kind
        for options in stage.repair_options + (stage.slow_repair_options if thorough else ())
    ]


def named_by(file: str, scheme: Scheme) -> str:
    """What a spec says behind the @ where a file holds the widths."""
    of_widths = {"allocation", "widths", "queries", "solver", "units"}
    options = [f"+{key}={value}" for key, value in scheme.options if key not in of_widths]
    inputs = f" (A{scheme.activation_bits})" if scheme.activation_bits else ""
    return f"{file}{inputs}-{scheme.quantizer}{'+query' if scheme.query_only else ''}{''.join(options)}"


# --- what was measured ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A configuration in a trial on a part of the queries.

    Attributes:
        scheme: how the candidate was made.
        bits: a linear weight, scales counted.
        shift: root mean square of what it moves the gap to the runner-up by, in units of the score.
        likely: share of these inputs whose gap closes.
        n: inputs of the trial.
        reason: why there is no shift.
    """

    scheme: Scheme
    bits: float | None = None
    shift: float | None = None
    likely: float | None = None
    n: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A configuration on the held-out inputs.

    Attributes:
        scheme: how the candidate is made.
        run: folder of the run that it was measured by.
        bits: a linear weight, scales counted.
        all_bits: a parameter of the whole model, likewise.
        vector_bits: a dimension of the stored embeddings; 0 where none are stored.
        changed: bool [n_inputs], which have another top-1.
        difference: share of them less that of the plain scheme, paired; None for the plain scheme itself.
    """

    scheme: Scheme
    run: str
    bits: float
    all_bits: float
    vector_bits: int = 0
    changed: NDArray[np.bool_] = field(repr=False, compare=False)
    difference: Estimate | None = None

    @property
    def flips(self) -> Estimate:
        """Share of the inputs with another top-1."""
        return rate_estimate(self.changed.astype(np.float64))

    @property
    def rate(self) -> float:
        """The share that changed, as a number."""
        return self.flips.value or 0.0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        fields = {name: getattr(self, name) for name in ("run", "bits", "all_bits", "vector_bits")}
        difference = self.difference and self.difference.to_json()
        return {"scheme": str(self.scheme), **fields, "flip@1": self.flips.to_json(), "difference": difference}


def deployment_of(scheme: Scheme, evidence: Evidence, bits: Mapping[str, float], run: str) -> Deployment:
    """What a run was of."""
    sizes = [size for stage in STAGES.values() if (size := stage.vector_bits(scheme)) is not None]
    return Deployment(
        scheme=scheme,
        run=run,
        bits=bits["linear_with_scales"],
        all_bits=bits["all_parameters"],
        vector_bits=0 if evidence.confidence is not None else min([32, *sizes]),
        changed=np.asarray(perturbation.flips(evidence), dtype=np.bool_),
    )


def against_plain(candidates: Sequence[Deployment]) -> list[Deployment]:
    """With the paired difference to the first of them, which is the plain scheme."""
    plain, *others = candidates
    differences = [paired_rate_difference(plain.changed, other.changed) for other in others]
    return [plain, *(replace(other, difference=step) for other, step in zip(others, differences, strict=True))]


def chosen_apart(
    candidates: Sequence[Deployment], bits: float, *, tried: Sequence[Tried] = (), seed: int = 0
) -> "Repair":
    """Choose on one half of the held-out inputs, and measure what was chosen on the other.

    The least of many rates is too low on the inputs that it was chosen by; on others it is what it is.

    Args:
        candidates: deployments on the same inputs, the plain scheme first.
        bits: the budget, a linear weight with scales.
        tried: what came of trials.
        seed: of the halves.
    """
    n = len(candidates[0].changed)
    apart = np.zeros(n, dtype=np.bool_)
    apart[np.random.default_rng(seed).permutation(n)[: n // 2]] = True

    def on(rows: NDArray[np.bool_], *some: Deployment) -> list[Deployment]:
        return against_plain([replace(deployment, changed=deployment.changed[rows]) for deployment in some])

    seen = on(~apart, *candidates)
    chosen = best(seen, bits)
    plain, confirmed = on(apart, candidates[0], candidates[seen.index(chosen)])
    return Repair(bits=bits, tried=tried, deployments=seen, chosen=chosen, plain=plain, confirmed=confirmed)


def front(candidates: Sequence[Deployment]) -> list[bool]:
    """Of each deployment whether no other is as good in bits and top-1 changes, and better in one."""
    points = [(deployment.all_bits, float(deployment.vector_bits), deployment.rate) for deployment in candidates]

    def beaten(point: tuple[float, ...]) -> bool:
        return any(other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in points)

    return [not beaten(point) for point in points]


def best(candidates: Sequence[Deployment], bits: float) -> Deployment:
    """The deployment within bits that changes fewest answers."""
    fitting = [way for way in candidates if way.bits <= bits + 1e-9] or [candidates[0]]
    return min(fitting, key=lambda deployment: (deployment.rate, deployment.all_bits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A deployment that was chosen, and what it does to inputs that it was not chosen by.

    Attributes:
        bits: the budget, a linear weight with scales.
        tried: configurations in trials, in the order in which they were made.
        deployments: on the inputs of the choice, the plain scheme first.
        chosen: that which is recommended, one of them.
        plain: the plain scheme on the other inputs.
        confirmed: what was chosen, on the other inputs; its difference is from the plain scheme there.
    """

    bits: float
    tried: Sequence[Tried]
    deployments: Sequence[Deployment]
    chosen: Deployment
    plain: Deployment
    confirmed: Deployment

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "bits": self.bits,
            "n_tuned": max((trial.n for trial in self.tried), default=0),
            "tried": [{**as_json(trial), "scheme": str(trial.scheme)} for trial in self.tried],
            "deployments": [
                {**deployment.to_json(), "front": is_best}
                for deployment, is_best in zip(self.deployments, front(self.deployments), strict=True)
            ],
            "chosen": self.deployments.index(self.chosen),
            "confirmed": {
                "n": self.confirmed.flips.n,
                "inputs": "a part of which neither trials nor the choice saw any",
                "plain": self.plain.to_json(),
                "chosen": self.confirmed.to_json(),
            },
        }
