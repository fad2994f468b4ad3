"""How a stability check would do: calibrated on one part of the inputs, tried on the rest.

Source: paper, appendix on the check's calibration (coverage and violation over random splits).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.conformal import (
    Observed,
    Source,
    StabilityError,
    Statistic,
    accepts,
    least_inputs,
    nothing_accepted,
    observe,
    threshold_of,
)

ALPHAS = (0.10, 0.05, 0.01)
"""The paper's levels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A quantity over random splits.

    Attributes:
        mean: over the splits where it is defined.
        sd: sample standard deviation over these; None if there is only one. Splits share inputs,
            so that it is no standard error.
        n: how many splits these are.
    """

    mean: float
    sd: float | None
    n: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"value": self.mean, "sd": self.sd, "n_splits": self.n}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What one statistic gives at one level.

    Attributes:
        statistic: what was calibrated.
        alpha: level.
        coverage: share of the tested inputs that are accepted; None if there are too few
            calibration inputs for the level.
        joint_violation: share of the tested inputs that are accepted though their top-1 changed;
            what the level bounds in the mean. None likewise.
        violation: share of the *accepted* inputs whose top-1 changed; None if no split accepts any.
        threshold: median over the splits, +inf if it accepts nothing, -inf if everything.
        reason: why one of them is None.
    """

    statistic: Statistic
    alpha: float
    coverage: Spread | None
    joint_violation: Spread | None
    violation: Spread | None
    threshold: float
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; null with a reason for what is undefined or infinite."""

        def shown(spread: Spread | None) -> dict[str, Any]:
            return {"value": None, "reason": self.reason} if spread is None else spread.to_json()

        finite = math.isfinite(self.threshold)
        accepts_all = "infinity: " + ("nothing" if self.threshold > 0 else "everything")
        sign = "+" if self.threshold > 0 else "-"
        return {
            "statistic": self.statistic,
            "alpha": self.alpha,
            "coverage": shown(self.coverage),
            "joint_violation": shown(self.joint_violation),
            "violation": shown(self.violation),
            "threshold": {"value": self.threshold}
            if finite
            else {"value": None, "reason": f"{sign}{accepts_all} is accepted"},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """Certificates of one run.

    Attributes:
        n_inputs: inputs with at least two items; the others take no part.
        n_calibration: of these, how many calibrate in each split; the rest are tested.
        n_splits: number of random splits.
        share: of the inputs that calibrate.
        seed: of the splits.
        flip_rate: share of the inputs whose top-1 changed: the joint violation if everything were
            accepted.
        certificates: by statistic, then by level, in the order asked for.
    """

    n_inputs: int
    n_calibration: int
    n_splits: int
    share: float
    seed: int
    flip_rate: float
    certificates: tuple[Certificate, ...]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        names = ("n_inputs", "n_calibration", "n_splits", "share", "seed", "flip_rate")
        return {
            **{name: getattr(self, name) for name in names},
            "certificates": [each.to_json() for each in self.certificates],
        }


def certify(
    source: Source,
    alphas: Sequence[float] = ALPHAS,
    statistics: Sequence[Statistic] = ("S",),
    *,
    n_splits: int = 20,
    share: float = 0.5,
    seed: int = 0,
) -> Certified:
    """Calibrate on a random part of the inputs, try on the rest, many times over.

    Args:
        source: evidence, or (reference scores, candidate scores), each [n_inputs, n_items].
        alphas: levels, each above 0 and below 1.
        statistics: which; all see the same splits.
        n_splits: how many random splits, at least 1.
        share: of the inputs that calibrate, above 0 and below 1.
        seed: of the splits.

    Raises:
        StabilityError: a number is out of its range, or there are fewer than two inputs.
        ScoreError: the arrays cannot be used.
        RunError: msp or entropy of evidence whose scores are not logits.
    """
    for alpha in alphas:
        least_inputs(alpha)  # refuses what is no level
    if n_splits < 1 or not 0 < share < 1:
        raise StabilityError(
            "expected at least one split, and a share above 0 and below 1 to calibrate on; got "
            f"{n_splits} and {share:g}"
        )
    inputs = {}
    for name in dict.fromkeys(statistics):
        seen = observe(source, name)
        inputs[name] = seen.part(seen.defined)
    first = next(iter(inputs.values())) if inputs else observe(source)
    n = len(first.confidence)
    if n < 2:  # noqa: PLR2004 -- one to calibrate on, one to try
        raise StabilityError(f"expected at least two inputs with two items or more, to split them; got {n}")
    n_calibration = min(max(round(share * n), 1), n - 1)
    rng = np.random.default_rng(seed)
    orders = (rng.permutation(n) for _ in range(n_splits))
    splits = ((order[:n_calibration], order[n_calibration:]) for order in orders)
    tries = _tries(inputs, tuple(dict.fromkeys(alphas)), splits)
    return Certified(
        n_inputs=n,
        n_calibration=n_calibration,
        n_splits=n_splits,
        share=share,
        seed=seed,
        flip_rate=float(first.flipped.mean()),
        certificates=tuple(_summed_up(name, alpha, found, n_calibration) for (name, alpha), found in tries.items()),
    )


def _tries(
    inputs: dict[Statistic, Observed],
    alphas: Sequence[float],
    splits: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> dict[tuple[Statistic, float], NDArray[np.float64]]:
    """Threshold, coverage and joint violation of every split, [n_splits, 3]."""
    tries: dict[tuple[Statistic, float], list[tuple[float, float, float]]]
    tries = {(name, alpha): [] for name in inputs for alpha in alphas}
    for calibrating, tested in splits:
        for name, whole in inputs.items():
            known = whole.part(calibrating)
            confidence, flipped = whole.confidence[tested], whole.flipped[tested]
            for alpha in alphas:
                threshold = threshold_of(known, alpha)
                accepted = accepts(confidence, threshold, name)
                wrong = accepted & flipped
                tries[name, alpha].append((threshold, accepted.mean(), wrong.mean()))
    return {key: np.array(found) for key, found in tries.items()}


def _summed_up(statistic: Statistic, alpha: float, tries: NDArray[np.float64], n_calibration: int) -> Certificate:
    thresholds, coverage, joint = tries.T
    few = nothing_accepted(n_calibration, alpha)
    some = coverage > 0
    # an even number of splits can have its median between a number and an infinity
    ordered = np.sort(thresholds)
    middle = ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]]
    median = middle[0] if middle[0] == middle[1] else middle.mean()
    return Certificate(
        statistic=statistic,
        alpha=alpha,
        coverage=None if few else _spread(coverage),
        joint_violation=None if few else _spread(joint),
        violation=None if few or not some.any() else _spread(joint[some] / coverage[some]),
        threshold=float(median),
        reason=few or (None if some.any() else "no split accepts any input"),
    )


def _spread(values: NDArray[np.float64]) -> Spread:
    sd = float(values.std(ddof=1)) if len(values) > 1 else None
    return Spread(mean=float(values.mean()), sd=sd, n=len(values))
