"""A trial of the stability check, or of a system that defers: calibrated on one part of the inputs, tried on the rest.

Source: paper, appendix on the check's calibration (coverage and violation over random splits).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.text import counted, percent
from quantdrift.statistics import conformal
from quantdrift.statistics.selective import CONFIDENCE
from quantdrift.trust.rescoring import system_of

ALPHAS = (0.10, 0.05, 0.01)
"""The paper's levels."""
Promised = conformal.Guarantee | Literal["system"]
"""Of the answers of a system, by the candidate or by full precision, at most alpha differ, with confidence; or a
guarantee of the candidate's."""
Promise = tuple[Promised, conformal.Statistic]
"""What is guaranteed, and by which statistic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share over random splits.

    Attributes:
        value: the share, or None if it is undefined.
        sd: its standard deviation over the splits; None for fewer than two. Splits share inputs, so that it is no
            standard error.
        n: how many splits it is of.
        reason: why value is None.
    """

    value: float | None
    sd: float | None = None
    n: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The result of one statistic at one level.

    Attributes:
        guarantee: "conditional", of the accepted answers at most alpha changed; "joint"; or "system", where what is not
            accepted is deferred to full precision.
        statistic: what was calibrated.
        alpha: level.
        coverage: share of the tested inputs that are accepted; undefined if there are too few calibration inputs for
            the level.
        joint_violation: share of the tested inputs that are accepted though their top-1 changed; what the level
            bounds in the mean of a joint guarantee; of a system, the share of all its answers that differ from full
            precision's, which the level bounds. Undefined likewise.
        violation: share of the *accepted* inputs whose top-1 changed, which the level bounds of a conditional
            guarantee; undefined if no split accepts any, and of a system.
        threshold: median over the splits, +inf if it accepts nothing, -inf if everything.
        threshold_of_all: likewise, set on all inputs: what is stored for a server.
        coverage_of_all: share of all inputs that it accepts.
        nothing_of_all: why that threshold is infinite and accepts nothing; None if it accepts some.
    """

    guarantee: Promised
    statistic: conformal.Statistic
    alpha: float
    coverage: Share
    joint_violation: Share
    violation: Share
    threshold: float
    threshold_of_all: float
    coverage_of_all: float
    nothing_of_all: str | None

    @property
    def level(self) -> str:
        """The level as tables show it."""
        return f"{self.alpha:.2f}" if round(self.alpha, 2) == self.alpha else f"{self.alpha:g}"

    @property
    def deferred(self) -> Share:
        """Share of the tested inputs that are not accepted."""
        accepted = self.coverage.value
        return self.coverage if accepted is None else replace(self.coverage, value=1 - accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """Certificates of one run.

    Attributes:
        n_inputs: inputs with at least two items; the others take no part.
        n_calibration: of these, how many calibrate in each split; the rest are tested.
        n_splits: number of random splits.
        share: of the inputs that calibrate.
        seed: of the splits.
        confidence: of the conditional and the system's guarantee.
        flip_rate: share of the inputs whose top-1 changed: the joint violation if everything were accepted.
        certificates: by guarantee and statistic, then by level, in the order asked for.
    """

    n_inputs: int
    n_calibration: int
    n_splits: int
    share: float
    seed: int
    confidence: float
    flip_rate: float
    certificates: tuple[Certificate, ...]

    @property
    def tried(self) -> str:
        """How it was tried, in a sentence."""
        tested, splits = self.n_inputs - self.n_calibration, counted(self.n_splits, "random split")
        return (
            f"Thresholds are set on all {self.n_inputs:,} inputs, as --save keeps them. Tried: set on "
            f"{self.n_calibration:,} of them, tested on the other {tested:,}, over {splits}; ± is the standard "
            f"deviation over the splits. {percent(self.flip_rate)} of all answers changed."
        )

    @property
    def of_first(self) -> list[Certificate]:
        """Those of the first guarantee and statistic, by level, the largest first."""
        first = self.certificates[0]
        ours = [
            one for one in self.certificates if (one.guarantee, one.statistic) == (first.guarantee, first.statistic)
        ]
        return sorted(ours, key=lambda one: -one.alpha)

    def briefly(self, share: Literal["violation", "joint_violation"], of: str) -> list[str]:
        """How it was set, and what came out where it was tried, by the first statistic: two sentences."""
        tested = self.n_inputs - self.n_calibration
        shares = ", ".join(percent(getattr(one, share).value, 2) for one in self.of_first)
        return [
            f"Thresholds are set on all {self.n_inputs:,} inputs; {percent(self.flip_rate)} of all answers changed.",
            f"Tried: set on {self.n_calibration:,} of them and tested on the other {tested:,}, {self.n_splits:,} times "
            f"over, {shares} of {of} (--all has more).",
        ]


def random_splits(n: int, share: float, n_splits: int, seed: int) -> tuple[int, list[NDArray[np.int64]]]:
    """Give how many of n inputs come first in each split, and the inputs in their order."""
    if n_splits < 1 or not 0 < share < 1:
        raise QuantDriftError(
            f"expected at least one split, and a share above 0 and below 1 to set a threshold on; got {n_splits} and "
            f"{share:g}"
        )
    if n < 2:  # noqa: PLR2004 -- one to set it on, one to try it on
        raise QuantDriftError(f"expected at least two inputs with two items or more, to split them; got {n}")
    rng = np.random.default_rng(seed)
    return min(max(round(share * n), 1), n - 1), [rng.permutation(n) for _ in range(n_splits)]


def certify(
    source: conformal.Source,
    alphas: Sequence[float] = ALPHAS,
    promises: Sequence[Promise] = (("conditional", "gap"), ("joint", "S")),
    *,
    confidence: float = CONFIDENCE,
    n_splits: int = 20,
    share: float = 0.5,
    seed: int = 0,
) -> Certified:
    """Calibrate on a random part of the inputs, try on the rest, many times over."""
    for alpha in alphas:
        conformal.least_inputs(alpha)  # refuses what is no level
    observed = {name: conformal.observe(source, name) for name in dict.fromkeys(name for _, name in promises)}
    inputs = {name: seen.part(seen.defined) for name, seen in observed.items()}
    first = next(iter(inputs.values()))
    n_calibration, orders = random_splits(len(first.confidence), share, n_splits, seed)
    certificates = []
    for guarantee, name in dict.fromkeys(promises):
        whole, sure = inputs[name], None if guarantee == "joint" else confidence
        system = system_of(source, name) if guarantee == "system" else None
        for alpha in dict.fromkeys(alphas):
            kept = system.threshold(alpha, confidence) if system else conformal.threshold_of(whole, alpha, sure)
            served = system.accepts(kept) if system else conformal.accepts(whole.confidence, kept, name)
            tries = []
            for order in orders:
                calibrating, tested = order[:n_calibration], order[n_calibration:]
                if system:
                    threshold = system.threshold(alpha, confidence, calibrating)
                    accepted, wrong = system.accepts(threshold)[tested], system.differs(threshold)[tested]
                else:
                    threshold = conformal.threshold_of(whole.part(calibrating), alpha, sure)
                    accepted = conformal.accepts(whole.confidence[tested], threshold, name)
                    wrong = accepted & whole.flipped[tested]
                tries.append((threshold, accepted.mean(), wrong.mean()))
            few = conformal.nothing_accepted(n_calibration, alpha, sure)
            if system and np.isinf([threshold for threshold, *_ in tries]).all():
                few = system.why_none(n_calibration, alpha, confidence)
            nothing = None
            if kept == np.inf:
                n = len(first.confidence)
                nothing = (
                    system.why_none(n, alpha, confidence) if system else conformal.nothing_accepted(n, alpha, sure)
                )
                nothing = nothing or f"no answer can be accepted at level {alpha:g} by these inputs"
            of_all = {"threshold_of_all": kept, "coverage_of_all": float(served.mean()), "nothing_of_all": nothing}
            certificates.append(_summed_up(guarantee, name, alpha, np.array(tries), few, of_all=of_all))
    return Certified(
        n_inputs=len(first.confidence),
        n_calibration=n_calibration,
        n_splits=n_splits,
        share=share,
        seed=seed,
        confidence=confidence,
        flip_rate=float(first.flipped.mean()),
        certificates=tuple(certificates),
    )


def _summed_up(
    guarantee: Promised,
    statistic: conformal.Statistic,
    alpha: float,
    tries: NDArray[np.float64],
    few: str | None,
    *,
    of_all: Mapping[str, Any],
) -> Certificate:
    """Sum up the thresholds, coverages and joint violations of all splits, [n_splits, 3]."""
    thresholds, coverage, joint = tries.T
    some = coverage > 0
    nothing = few or (None if some.any() else "no split accepts any input")
    nothing = nothing or ("all answers of a system are counted" if guarantee == "system" else None)
    return Certificate(
        guarantee=guarantee,
        statistic=statistic,
        alpha=alpha,
        coverage=share_of(coverage, few),
        joint_violation=share_of(joint, few),
        violation=share_of(joint[some] / coverage[some], nothing),
        threshold=float(np.median(thresholds)),
        **of_all,
    )


def share_of(values: NDArray[np.float64], reason: str | None, *, mean: float | None = None) -> Share:
    """Give the mean of values of splits, or another one, and their spread; undefined for a reason."""
    if reason is not None:
        return Share(value=None, reason=reason)
    sd = float(values.std(ddof=1)) if len(values) > 1 else None
    return Share(value=float(values.mean()) if mean is None else mean, sd=sd, n=len(values))
