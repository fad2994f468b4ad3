"""Are served inputs still exchangeable with those that a threshold was set on? A test that may be asked at any time.

Each new confidence is ranked among a sample of the calibration inputs' and the new ones before it. While all are
exchangeable, these ranks, ties broken at random, are independent and uniform. A gambler bets that low or high ranks
come too often, and against fair ranks nobody multiplies a stake by 20 with a chance above 1 / 20, however long the
game (Ville's inequality). So a false alarm, at any time, has a chance of at most 5 %.

Source: conformal test martingales (Vovk, Nouretdinov and Gammerman 2003; Fedorova et al. 2012), power bets, each begun
at every input with a part of the stake.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift.base.errors import ScoreError

ALIKE_ABOVE = 0.05
"""From this p-value down the inputs are said to differ."""
KEPT = 10_000
"""Most confidences that are remembered to rank a new one among."""
_POWERS = np.array([0.6, 0.8, 1.25, 1.6])
_END, _MOST = 1e-12, 1e300
"""Least distance of a rank from 0 and 1, and most capital, so that neither is ever infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resemblance:
    """Whether served confidences could be of the distribution of the calibration inputs'.

    Attributes:
        p_value: of the inputs so far; valid whenever it is asked for. It never rises.
        n: served inputs so far.
    """

    p_value: float
    n: int

    @property
    def alike(self) -> bool:
        """Whether no difference is shown, which is not the same as none."""
        return self.p_value > ALIKE_ABOVE

    @property
    def sentence(self) -> str:
        """The finding in plain words."""
        finding = "show no difference from" if self.alike else "differ from"
        after = "" if self.alike else ", for inputs like which the guarantee is. Calibrate again on such as these"
        return (
            f"the confidences of these {self.n:,} inputs {finding} those of the calibration inputs "
            f"(conformal test martingale, p = {self.p_value:.2g}){after}"
        )

    def to_json(self) -> dict[str, Any]:
        """Give a JSON object."""
        return {"p_value": self.p_value, "n": self.n, "alike": self.alike, "sentence": self.sentence}


def finite_confidences(values: ArrayLike) -> NDArray[np.float64]:
    """The confidences of served inputs; a ScoreError if there are none, or they are no finite numbers in one row."""
    served = np.asarray(values, dtype=np.float64)
    if served.ndim != 1 or not len(served) or not np.isfinite(served).all():
        raise ScoreError(
            f"expected the finite confidence of at least one served input, [n_inputs]; got shape {served.shape}"
        )
    return served


class ShiftMonitor:
    """Watches the confidences of served inputs, as they come.

    >>> rng = np.random.default_rng(0)
    >>> monitor = ShiftMonitor(rng.random(300))
    >>> monitor.add(rng.random(100)).alike, monitor.add(0.5 * rng.random(100)).alike
    (True, False)

    Attributes:
        n: served inputs so far.
        p_value: 1 over the largest capital so far, at most 1.
    """

    def __init__(self, sample: Iterable[float], *, seed: int = 0) -> None:
        """Begin with confidences of the calibration inputs; the seed breaks ties, and forgets."""
        self.n, self.p_value = 0, 1.0
        self._seen = sorted(sample)
        self._capital = np.zeros(2 * len(_POWERS))
        self._rng = np.random.default_rng(seed)

    def add(self, confidences: ArrayLike) -> Resemblance:
        """Take the confidences of more inputs, float [n_inputs], and tell whether all so far look alike.

        Raises:
            ScoreError: they are no finite numbers, or none.
        """
        served = finite_confidences(confidences)
        drawn = self._rng.random((len(served), 2)).tolist()
        ranks = np.array([self._rank(value, *draws) for value, draws in zip(served.tolist(), drawn, strict=True)])
        ranks = np.clip(ranks, _END, 1 - _END)[:, None]
        won = np.hstack([_POWERS * ranks ** (_POWERS - 1), _POWERS * (1 - ranks) ** (_POWERS - 1)])
        kept = 1 / np.log2(np.arange(self.n, self.n + len(served) + 1) + 2)  # of the stake, for bets that begin later
        for factors, begins, left in zip(won, (kept[:-1] - kept[1:]) / won.shape[1], kept[1:].tolist(), strict=True):
            self._capital = np.minimum((self._capital + begins) * factors, _MOST)
            self.p_value = min(self.p_value, 1 / (float(self._capital.sum()) + left))
        self.n += len(served)
        return Resemblance(p_value=self.p_value, n=self.n)

    def _rank(self, value: float, tie: float, forgotten: float) -> float:
        """The share of what was seen that is below a new confidence, which is remembered."""
        low, high = bisect_left(self._seen, value), bisect_right(self._seen, value)
        insort(self._seen, value)
        rank = (low + tie * (high - low + 1)) / len(self._seen)
        if len(self._seen) > KEPT:  # any of them with the same chance, the new one too: then ranks stay fair
            del self._seen[int(forgotten * len(self._seen))]
        return rank
