"""The configurations that repair tries, and the choice among those it measured.

A configuration is a scheme that takes the place of the plain scheme, the one that is to be repaired. A deployment is a
measured one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.asking.forecast import Forecast, Step
from quantdrift.builtin.weights import not_plain
from quantdrift.evidence import perturbation
from quantdrift.evidence.record import Evidence
from quantdrift.kinds.quantizer import QUANTIZERS
from quantdrift.kinds.stage import STAGES, Kind
from quantdrift.runs.words import query_ratio, stored_bytes
from quantdrift.scheme import Scheme
from quantdrift.spec.remedies import remedies_of
from quantdrift.statistics.estimates import Estimate, as_json, rate_estimate
from quantdrift.statistics.paired import paired_rate_difference

TRIED = tuple(
    sorted(
        (name for name, entry in QUANTIZERS.items() if entry.in_repair), key=lambda name: QUANTIZERS[name].calibrated
    )
)
"""Default quantizers, those that need no data first."""
POSSIBLE = tuple(name for name, entry in QUANTIZERS.items() if not entry.widths)
"""Quantizers that can be tried; a number format has only one width."""
GROUPS = (64, 32)
"""Finer group sizes."""
MORE = 0.125
"""Default budget above the bits of the plain scheme, in bits per linear weight."""
SLOWER = 4.0
"""Default budget of the time of a query, as a multiple of the plain scheme's: such times vary from run to run."""
WIDTHS = (2, 3, 4, 5, 6, 8)
"""Widths of an allocation by gap."""


def uniform_configurations(scheme: Scheme, quantizers: Sequence[str]) -> list[Scheme]:
    """The plain scheme first, then other quantizers at the same width."""
    options = tuple(option for option in scheme.options if option[0] not in {"backend", "grid"})
    others = [name for name in quantizers if name != scheme.quantizer]
    return [scheme, *(replace(scheme, quantizer=name, options=options) for name in others)]


def finer_configurations(scheme: Scheme) -> list[Scheme]:
    """The scheme in smaller groups."""
    size = scheme.group_size or 2 * max(GROUPS)
    return [replace(scheme, group_size=group) for group in GROUPS if group < size]


def allocated_configuration(scheme: Scheme, budget: float) -> Scheme | None:
    """The scheme with widths by gap, on average `budget` bits per weight without scales; None if no widths fit."""
    if not WIDTHS[0] <= budget < WIDTHS[-1]:
        return None
    options = (*scheme.options, ("widths", ",".join(map(str, WIDTHS))))
    return replace(scheme, weight_bits=round(budget, 4), criterion="gap", options=options)


def staged_configurations(scheme: Scheme, kind: Kind, *, thorough: bool) -> list[Scheme]:
    """The scheme with the options that each stage of a kind offers for repair, in place of its own."""
    return [
        replace(scheme, options=tuple({**dict(scheme.options), **options}.items()))
        for stage in STAGES.values()
        if stage.kind == kind
        for options in stage.repair_options + (stage.slow_repair_options if thorough else ())
    ]


def likely_steps(scheme: Scheme, quantizers: Sequence[str], plain: Forecast, *, thorough: bool) -> Forecast:
    """Add the trials and the runs that a search takes: as many as there are, though which ones win is not known."""
    runs, trials = [*remedies_of(scheme, "vectors")], list[Scheme]()
    if not any(not_plain(scheme)):
        uniform = uniform_configurations(scheme, quantizers)
        half = uniform[len(uniform) // 2 :]  # those that are calibrated come last, and tend to win
        trials = [*uniform, *half, *(finer for each in half for finer in finer_configurations(each))]
        staged = [half[-1], *staged_configurations(half[-1], "model", thorough=thorough)]
        runs += [half[-1], *staged, *(replace(each, query_only=True) for each in staged)]
    after = replace(plain, kept=True, loaded=True, settings=replace(plain.settings, noise_floor=False))
    small = replace(after, sides=tuple(side.part(min(side.n, 2 * 32)) for side in plain.sides))
    parts = (("trials", small, trials), ("runs", after, runs))
    times = ((name, sum(replace(part, scheme=each).seconds for each in made)) for name, part, made in parts)
    return replace(plain, more=tuple(Step(name, 0, seconds) for name, seconds in times))


def named(scheme: Scheme, *, path: bool = True) -> str:
    """The scheme as it is typed: where its widths are in a file, by the path or the name of that."""
    if (file := scheme.option("allocation")) is None:
        return str(scheme)
    of_widths = {"allocation", "widths", "queries", "solver", "units"}
    options = [f"+{key}={value}" for key, value in scheme.options if key not in of_widths]
    inputs = f" (A{scheme.activation_bits})" if scheme.activation_bits else ""
    place = file if path else Path(file).name
    return f"{place}{inputs}-{scheme.quantizer}{'+query' if scheme.query_only else ''}{''.join(options)}"


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The result of a trial of a configuration on some inputs.

    Attributes:
        scheme: the configuration.
        bits: bits per linear weight, scales counted.
        shift: root mean square of the shifts of the gap to the runner-up, in units of the score.
        likely: share of these inputs whose gap closes.
        n: inputs of the trial.
        reason: why there is no shift, or no run.
    """

    scheme: Scheme
    bits: float | None = None
    shift: float | None = None
    likely: float | None = None
    n: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A configuration that was measured on the held-out inputs.

    Attributes:
        scheme: the configuration.
        run: folder of its run.
        bits: bits per linear weight, scales counted.
        all_bits: bits per parameter of the whole model, scales counted.
        stored: bytes of a document, in its index if there is one; None if none are stored, or unknown.
        time: time of a query, as a multiple of exact search; None if there is no search.
        changed: bool [n_inputs], whether the top-1 changed.
        difference: change rate minus that of the plain scheme, paired; None for the plain scheme itself.
    """

    scheme: Scheme
    run: str
    bits: float
    all_bits: float
    stored: float | None = None
    time: float | None = None
    changed: NDArray[np.bool_] = field(repr=False, compare=False)
    difference: Estimate | None = None

    @property
    def flips(self) -> Estimate:
        """Share of the inputs with a top-1 change."""
        return rate_estimate(self.changed.astype(np.float64))

    @property
    def rate(self) -> float:
        """That share as a number."""
        return self.flips.value or 0.0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        fields = {"run": self.run, "bits": self.bits, "all_bits": self.all_bits}
        fields |= {"bytes_per_document": self.stored, "query_ratio": self.time}
        difference = self.difference and self.difference.to_json()
        return {"scheme": str(self.scheme), **fields, "flip@1": self.flips.to_json(), "difference": difference}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a deployment may take to be chosen; None for no limit.

    Attributes:
        bits: bits per linear weight, scales counted.
        stored: bytes of a document.
        time: time of a query, as a multiple of exact search.
    """

    bits: float
    stored: float | None = None
    time: float | None = None

    def has_room_for(self, deployment: Deployment) -> bool:
        """Whether a deployment takes no more."""
        names = ("bits", "stored", "time")
        both = [(getattr(deployment, name), getattr(self, name)) for name in names]
        return all(taken <= most + 1e-9 for taken, most in both if taken is not None and most is not None)


def deployment_of(
    scheme: Scheme, evidence: Evidence, record: Mapping[str, Any], run: str, *, plain: float | None
) -> Deployment:
    """The deployment that a run measured; `plain` are the bytes of a document in float32, None if none are stored."""
    bits, size = record["bits_per_weight"], stored_bytes(record)
    indexed = (record.get("deployment") or {}).get("index") is not None
    return Deployment(
        scheme=scheme,
        run=run,
        bits=bits["linear_with_scales"],
        all_bits=bits["all_parameters"],
        stored=plain if size is None and "deployment" not in record else size,
        time=None if evidence.confidence is not None else query_ratio(record) if indexed else 1.0,
        changed=np.asarray(perturbation.flips(evidence), dtype=np.bool_),
    )


def against_plain(candidates: Sequence[Deployment]) -> list[Deployment]:
    """Add the paired differences from the first deployment, which is the plain scheme."""
    plain, *others = candidates
    differences = [paired_rate_difference(plain.changed, other.changed) for other in others]
    return [plain, *(replace(other, difference=step) for other, step in zip(others, differences, strict=True))]


def apart(n: int, seed: int) -> NDArray[np.bool_]:
    """Whether each of n held-out inputs is for measuring what was chosen, and not for the choice; half of them are."""
    rows = np.zeros(n, dtype=np.bool_)
    rows[np.random.default_rng(seed).permutation(n)[: n // 2]] = True
    return rows


def on_rows(rows: NDArray[np.bool_], candidates: Sequence[Deployment]) -> list[Deployment]:
    """Deployments on some of their inputs."""
    return against_plain([replace(deployment, changed=deployment.changed[rows]) for deployment in candidates])


def chosen_apart(
    candidates: Sequence[Deployment], budget: Budget, *, tried: Sequence[Tried] = (), seed: int = 0
) -> "Repair":
    """Choose on one half of the held-out inputs, and measure the chosen deployment on the other.

    On the inputs of the choice the lowest of many rates is biased downwards; on other inputs it is not.

    Args:
        candidates: deployments on the same inputs, the plain scheme first.
        budget: what the chosen one may take.
        tried: the results of trials.
        seed: random seed of the halves.
    """
    others = apart(len(candidates[0].changed), seed)
    seen = on_rows(~others, candidates)
    chosen = best(seen, budget)
    plain, confirmed = on_rows(others, [candidates[0], candidates[seen.index(chosen)]])
    return Repair(budget=budget, tried=tried, deployments=seen, chosen=chosen, plain=plain, confirmed=confirmed)


def front(candidates: Sequence[Deployment]) -> list[bool]:
    """Whether each deployment is on the Pareto front of bits, bytes a document and top-1 changes."""
    points = [(deployment.all_bits, deployment.stored or 0.0, deployment.rate) for deployment in candidates]

    def beaten(point: tuple[float, ...]) -> bool:
        return any(other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in points)

    return [not beaten(point) for point in points]


def best(candidates: Sequence[Deployment], budget: Budget) -> Deployment:
    """The deployment within the budget that changes the fewest answers; of equals the first of the smallest."""
    fitting = list(filter(budget.has_room_for, candidates)) or [candidates[0]]
    return min(fitting, key=lambda each: (each.rate, each.all_bits, each.stored or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The chosen deployment, measured on inputs that took no part in the choice.

    Attributes:
        budget: what the chosen one may take.
        tried: the trials, in order.
        deployments: the deployments on the inputs of the choice, the plain scheme first.
        chosen: the recommended one of them.
        plain: the plain scheme on the other inputs.
        confirmed: the chosen deployment on the other inputs, with its difference from the plain scheme there.
        left: number of configurations that were not begun, for lack of time.
    """

    budget: Budget
    tried: Sequence[Tried]
    deployments: Sequence[Deployment]
    chosen: Deployment
    plain: Deployment
    confirmed: Deployment
    left: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "bits": self.budget.bits,
            "bytes_per_document": self.budget.stored,
            "query_ratio": self.budget.time,
            "n_tuned": max((trial.n for trial in self.tried), default=0),
            "tried": [{**as_json(trial), "scheme": str(trial.scheme)} for trial in self.tried],
            "deployments": [
                {**deployment.to_json(), "front": is_best}
                for deployment, is_best in zip(self.deployments, front(self.deployments), strict=True)
            ],
            "chosen": self.deployments.index(self.chosen),
            "not_begun": self.left,
            "confirmed": {
                "n": self.confirmed.flips.n,
                "inputs": "a part of which neither trials nor the choice saw any",
                "plain": self.plain.to_json(),
                "chosen": self.confirmed.to_json(),
            },
        }
