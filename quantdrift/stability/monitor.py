"""`StabilityMonitor`: looks at every served input, and may be asked after each of them.

A test repeated after every input rejects sooner or later whatever the inputs. This one bets against
exchangeability with a stake of 1; by Ville's inequality the stake ever reaches 1 / level with
probability at most `level`, however often one looks.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantdrift.errors import ScoreError
from quantdrift.stability.check import StabilityCheck
from quantdrift.stability.errors import StabilityError

__all__ = ["StabilityMonitor", "rounded"]

_JUMP = 0.01
"""Share of every bettor's stake that is spread over all of them before each bet."""

_RESTART = 1_000
"""After so many inputs another bettor starts with a stake of its own."""

_NEGLIGIBLE = 1e-12
"""A bettor worth less is dropped, which can only lower the total."""

_BITS = 11
"""Significant bits of a confidence that are looked at; so that counts suffice, and memory ends."""


class StabilityMonitor:
    """An alarm for served inputs that are no longer like the calibration inputs.

    Every confidence gets a conformal p-value against the calibration sample and all confidences
    served before it, ties broken at random; under exchangeability these are independent and
    uniform. A simple jumper martingale bets on them. One such bettor loses its stake for good in a
    long calm, so that it would notice a later change too late or never; therefore another one
    starts every 1,000 inputs. Bettor j holds 1 / ((j + 1)(j + 2)) of the stake, which sums to 1, so
    that the total is a test martingale too.

    Threads may share one; whoever adds waits for the others.

    Attributes:
        check: whose calibration inputs are compared with.
        level: chance of ever a false alarm.

    Source: Vovk, Gammerman and Shafer (2005), section 7.1, for the jumper and its p-values.
    """

    __slots__ = (
        "_alarm",
        "_counts",
        "_keys",
        "_lock",
        "_n",
        "_rng",
        "_started",
        "_wealth",
        "check",
        "level",
    )

    def __init__(self, check: StabilityCheck, *, level: float = 0.01, seed: int = 0) -> None:
        if not 0 < level < 1:
            raise StabilityError(
                f"expected a level above 0 and below 1, the chance of ever a false alarm; got "
                f"{level:g}"
            )
        self.check = check
        self.level = level
        self._lock = threading.Lock()
        self._rng = np.random.default_rng(seed)
        self._keys, counts = np.unique(rounded(np.array(check.sample)), return_counts=True)
        self._counts = counts.astype(np.int64)
        self._n = 0
        self._started = 0
        self._wealth = np.empty((0, 3))  # of each bettor, by whether it bets on high, none, low
        self._alarm = False

    @property
    def alarm(self) -> bool:
        """Whether exchangeability was rejected; stays on."""
        return self._alarm

    @property
    def n(self) -> int:
        """How many inputs were added."""
        return self._n

    @property
    def stake(self) -> float:
        """What became of the stake of 1; the alarm is raised when it reaches 1 / level."""
        with self._lock:
            return self._stake()

    def _stake(self) -> float:
        return float(self._wealth.sum()) + 1 / (self._started + 1)

    def add(self, scores: ArrayLike) -> bool:
        """Look at served inputs, in the order served.

        Args:
            scores: float [n_inputs, n_items], of the candidate.

        Returns:
            Whether there is an alarm.

        Raises:
            ScoreError: they cannot be used; nothing was added.
        """
        return self.add_confidence(self.check.confidence(scores))

    def add_confidence(self, values: ArrayLike) -> bool:
        """The same from confidences, float [n_inputs].

        Raises:
            ScoreError: one is NaN or infinite; nothing was added.
        """
        found = np.atleast_1d(np.asarray(values, dtype=np.float64))
        if found.ndim != 1 or not np.isfinite(found).all():
            raise ScoreError(
                f"expected finite confidences of shape [n_inputs]; got shape {found.shape}, "
                f"{int((~np.isfinite(found)).sum())} of them NaN or infinite"
            )
        with self._lock:
            for value in rounded(found).tolist():
                self._bet(self._p_value(value))
                self._n += 1
                self._alarm = self._alarm or self._stake() >= 1 / self.level
            return self._alarm

    def _p_value(self, value: float) -> float:
        """Rank among all seen so far, the value itself included; ties at random."""
        place = int(np.searchsorted(self._keys, value))
        greater = int(self._counts[place:].sum())
        equal = 0
        if place < len(self._keys) and self._keys[place] == value:
            equal = int(self._counts[place])
            self._counts[place] += 1
        else:
            self._keys = np.insert(self._keys, place, value)
            self._counts = np.insert(self._counts, place, 1)
        total = int(self._counts.sum())
        return float((greater - equal + self._rng.random() * (equal + 1)) / total)

    def _bet(self, p_value: float) -> None:
        if self._alarm:  # it stays on, and stakes would grow past what a float holds
            return
        if self._n % _RESTART == 0:
            share = 1 / ((self._started + 1) * (self._started + 2))
            kept = self._wealth[self._wealth.sum(axis=1) > _NEGLIGIBLE]
            self._wealth = np.vstack([kept, np.full((1, 3), share / 3)])
            self._started += 1
        together = self._wealth.sum(axis=1, keepdims=True)
        mixed = (1 - _JUMP) * self._wealth + _JUMP / 3 * together
        self._wealth = mixed * (1 + np.array([-1.0, 0.0, 1.0]) * (p_value - 0.5))


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values to 11 significant bits (about three digits), by a rule that knows no other value.

    >>> rounded(np.array([1.0, 0.12345678]))
    array([1.        , 0.12347412])
    """
    fraction, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(fraction * 2**_BITS) / 2**_BITS, exponent))
