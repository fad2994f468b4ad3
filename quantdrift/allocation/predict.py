"""What rounding will change, for any widths of the layers, without rounding anything; no torch.

To first order a layer's rounding moves a gap by a signed contribution (`gradients.one_pass`), and
contributions of layers add up. An input flips when the sum takes a gap below zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import ScoreError, UnsupportedError
from quantdrift.statistics import Estimate, mean_estimate, quantile_estimate, rate_estimate
from quantdrift.widths import FULL_BITS

__all__ = ["Gaps", "Prediction", "flip_chances", "flipped", "predict", "summary"]

_DRAWS = 512
"""Random factors per layer: an input's chance is off by 0.02 at most, a rate by far less."""
_BLOCK = 64
"""Inputs whose draws are held at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """The gaps of calibration inputs, and what every layer at every width does to them.

    Attributes:
        gaps: float64 [n_inputs, n_contenders], of the reference, at least 0; nan where there is no
            contender.
        contributions: float64 [n_inputs, n_contenders, n_layers, n_widths], signed shifts.
        n_weights: int64 [n_layers].
        widths: bits per weight of the last axis, ascending.

    Raises:
        ScoreError: shapes do not fit, or there is no gap.
    """

    gaps: NDArray[np.float64]
    contributions: NDArray[np.float64]
    n_weights: NDArray[np.int64]
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        expected = (*self.gaps.shape, len(self.n_weights), len(self.widths))
        if self.gaps.ndim != 2 or self.contributions.shape != expected:  # noqa: PLR2004 -- two axes
            raise ScoreError(
                "expected gaps [n_inputs, n_contenders] and contributions [n_inputs, n_contenders, "
                f"{len(self.n_weights)} layers, {len(self.widths)} widths], got shapes "
                f"{self.gaps.shape} and {self.contributions.shape}"
            )
        if np.isnan(self.gaps).all():
            raise ScoreError("expected at least one input with a contender, got none")

    @property
    def counted(self) -> NDArray[np.bool_]:
        """bool [n_inputs], whether an input has a contender at all; rates are over these."""
        there: NDArray[np.bool_] = np.asarray((~np.isnan(self.gaps)).any(axis=1))
        return there

    def part(self, rows: NDArray[np.int64]) -> Gaps:
        """Those of some of the inputs.

        Args:
            rows: int64, positions.
        """
        return Gaps(
            gaps=self.gaps[rows],
            contributions=self.contributions[rows],
            n_weights=self.n_weights,
            widths=self.widths,
        )

    def bits_per_weight(self, widths: Sequence[int]) -> float:
        """The average of the layers' widths over their weights.

        Args:
            widths: of every layer.
        """
        return float(self.n_weights @ np.asarray(widths)) / int(self.n_weights.sum())

    def of_layers(self, widths: Sequence[int]) -> NDArray[np.float64]:
        """The shift that each layer makes at its width.

        Args:
            widths: of every layer; 16 leaves a layer alone.

        Returns:
            float64 [n_inputs, n_contenders, n_layers].

        Raises:
            UnsupportedError: a width was not measured, or there is not one for each layer.
        """
        known = {width: column for column, width in enumerate(self.widths)}
        if len(widths) != len(self.n_weights) or not set(widths) <= {*known, FULL_BITS}:
            raise UnsupportedError(
                f"expected a width for each of {len(self.n_weights)} layers, one of "
                f"{', '.join(map(str, self.widths))} (or {FULL_BITS} for a layer left alone); got "
                f"{len(widths)} of {', '.join(map(str, sorted(set(widths))))}"
            )
        columns = [known.get(width, 0) for width in widths]
        chosen: NDArray[np.float64] = self.contributions[:, :, np.arange(len(columns)), columns]
        return np.where(np.array(widths) == FULL_BITS, 0.0, chosen)

    def shifts(self, widths: Sequence[int]) -> NDArray[np.float64]:
        """The shift of every gap when the layers have these widths, c = sum over layers.

        Args:
            widths: of every layer; 16 leaves a layer alone.

        Returns:
            float64 [n_inputs, n_contenders], nan where there is no contender.
        """
        total: NDArray[np.float64] = self.of_layers(widths).sum(axis=-1)
        return np.where(np.isnan(self.gaps), np.nan, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is expected of rounding to nearest.

    Attributes:
        bits_per_weight: over the linear layers, codes alone.
        flips: rate of inputs with another first answer, with the signs that rounding has here.
        chance: the same if sign and size of every layer's shift were left to chance
            (`flip_chances`), which varies less with the inputs that happen to be drawn.
        shift: median over inputs of |shift| of the gap to the runner-up, in units of the score.
    """

    bits_per_weight: float
    flips: Estimate
    chance: Estimate
    shift: Estimate


def flipped(gaps: NDArray[np.float64], shifts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which inputs get another first answer: min over contenders of gap + shift < 0.

    A document beyond the contenders that are watched is not seen, so the rate is too low by those
    inputs which flip to one of these alone.

    Args:
        gaps: float64 [n_inputs, n_contenders], nan where there is no contender.
        shifts: likewise.

    Returns:
        bool [n_inputs].
    """
    crossed: NDArray[np.bool_] = np.asarray((gaps + shifts < 0).any(axis=1))  # nan is not below 0
    return crossed


def flip_chances(
    gaps: NDArray[np.float64], parts: NDArray[np.float64], *, seed: int = 0
) -> NDArray[np.float64]:
    """How likely each input flips if every layer's shift is random, of the same mean square.

    P(min over contenders of gap_j + sum over layers of z_l c_jl < 0), z_l independent standard
    normals. The shift of a gap is then normal with the sum of c_jl^2 as its variance, and since
    z_l is the same for all contenders of an input, their shifts are correlated as the layers make
    them: the product of the single chances would count what the first document loses several times.
    With one contender this is Phi(-gap / sqrt(sum of c_l^2)); several have no closed form, so 512
    seeded draws are counted.

    Args:
        gaps: float64 [n_inputs, n_contenders], nan where there is no contender.
        parts: float64 [n_inputs, n_contenders, n_layers], the shift c by each layer.
        seed: of the draws.

    Returns:
        float64 [n_inputs], from 0 to 1.
    """
    draws = np.random.default_rng(seed).standard_normal((parts.shape[2], _DRAWS))
    known = np.where(np.isnan(gaps), np.inf, gaps)
    given = np.where(np.isnan(gaps)[..., None], 0.0, parts)
    chances = np.empty(len(gaps))
    for at in range(0, len(gaps), _BLOCK):
        rows = slice(at, at + _BLOCK)
        crossed = known[rows, :, None] + given[rows] @ draws < 0
        chances[rows] = crossed.any(axis=1).mean(axis=-1)
    return chances


def predict(measured: Gaps, widths: Sequence[int]) -> Prediction:
    """What rounding the layers to these widths will change.

    Args:
        measured: gaps and contributions.
        widths: of every layer; 16 leaves a layer alone.

    Raises:
        UnsupportedError: a width was not measured.
    """
    rows = np.flatnonzero(measured.counted)
    some = measured.part(rows)
    parts = some.of_layers(widths)
    return summary(
        flipped(some.gaps, some.shifts(widths)),
        flip_chances(some.gaps, parts),
        some.shifts(widths)[:, 0],
        bits_per_weight=some.bits_per_weight(widths),
    )


def summary(
    flips: NDArray[np.bool_],
    chances: NDArray[np.float64],
    shifts: NDArray[np.float64],
    *,
    bits_per_weight: float,
) -> Prediction:
    """Rates and median with their intervals, from what is predicted of each input.

    Args:
        flips: bool [n_inputs].
        chances: float64 [n_inputs].
        shifts: float64 [n_inputs], of the gap to the runner-up.
        bits_per_weight: over the linear layers.
    """
    return Prediction(
        bits_per_weight=bits_per_weight,
        flips=rate_estimate(flips.astype(np.float64)),
        chance=mean_estimate(chances),
        shift=quantile_estimate(np.abs(shifts[~np.isnan(shifts)])),
    )
