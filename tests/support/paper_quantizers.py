"""GPTQ and AWQ written from their papers in plain float64: what the backends are held against.

Slow and direct, and none of the package's or of a library's code. `ties` says what a weight rounds
to that lies within a hair of the middle between two codes, where float32 may fall either way; the
share of such weights is returned, so that a test can tell that they are few.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
HAIR = 1e-3
"""Distance to a rounding boundary, in steps, within which a code of `ties` is taken."""


@dataclass
class Rounding:
    """Rounds to a grid, counting how many weights `ties` decided."""

    low: int
    high: int
    n_followed: int = 0

    def codes(self, exact: Matrix, ties: Matrix | None) -> Matrix:
        """Nearest codes of weights given in steps."""
        codes = np.clip(np.round(exact), self.low, self.high)
        if ties is None:
            return codes
        close = (np.abs(exact - ties) <= 0.5 + HAIR) & (codes != ties)
        self.n_followed += int(close.sum())
        return np.where(close, ties, codes)


def absmax_scale(group: Matrix, bits: int, *, library_grid: bool = False) -> Matrix:
    """max|w| / (2^(bits-1) - 1) of every row.

    The GPTQ libraries' is (top - bottom) / (2^bits - 1), with top = max|w| and bottom = -top where
    any weight is negative, else 0; such a row can use only half of its grid.
    """
    absmax = np.abs(group).max(axis=1, keepdims=True)
    if library_grid:
        mirrored = (group < 0).any(axis=1, keepdims=True) | (absmax == 0)
        return np.where(absmax == 0, 1, absmax) * (1 + mirrored) / (2**bits - 1)
    return np.where(absmax == 0, 1, absmax / (2 ** (bits - 1) - 1))


def symmetric(bits: int, *, library_grid: bool = False) -> Rounding:
    high = 2 ** (bits - 1) - 1
    return Rounding(low=-high - library_grid, high=high)


def rtn(weight: Matrix, bits: int, group_size: int | None, ties: Matrix | None = None) -> Matrix:
    """Every weight to the nearest point of its group's grid."""
    size, rounding = group_size or weight.shape[1], symmetric(bits)
    rounded = np.empty_like(weight)
    for start in range(0, weight.shape[1], size):
        columns = slice(start, start + size)
        scale = absmax_scale(weight[:, columns], bits)
        wanted = None if ties is None else ties[:, columns]
        rounded[:, columns] = rounding.codes(weight[:, columns] / scale, wanted) * scale
    return rounded


def gptq(
    weight: Matrix,
    second: Matrix,
    bits: int,
    group_size: int | None,
    *,
    act_order: bool = False,
    library_grid: bool = False,
    ties: Matrix | None = None,
) -> tuple[Matrix, int]:
    """Optimal brain surgery one column at a time (Frantar et al. 2023, equations 2 and 3).

    With inv = H^-1 over the columns still open: rounding column j by an error e changes the others
    by -e / inv_jj * inv_j, and closing j takes inv_:j inv_j: / inv_jj from inv.

    Returns:
        The rounded weights, and how many of them `ties` decided.
    """
    damping = 0.01 * np.mean(np.diag(2 * second)) or 1.0  # inputs that are all 0 leave plain rounding
    hessian = 2 * second + damping * np.eye(len(second))
    order = np.argsort(-np.diag(hessian), kind="stable") if act_order else np.arange(len(second))
    inverse = np.linalg.inv(hessian)
    size = group_size or weight.shape[1]
    left, rounded = weight.copy(), np.empty_like(weight)
    rounding = symmetric(bits, library_grid=library_grid)
    for place, j in enumerate(order):
        if place % size == 0:
            scale = absmax_scale(left[:, order[place : place + size]], bits, library_grid=library_grid)
        wanted = None if ties is None else ties[:, [j]]
        rounded[:, [j]] = rounding.codes(left[:, [j]] / scale, wanted) * scale
        error = (left[:, j] - rounded[:, j]) / inverse[j, j]
        later = order[place + 1 :]
        left[:, later] -= np.outer(error, inverse[j, later])
        inverse -= np.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    return rounded, rounding.n_followed


def awq_losses(
    weight: Matrix, second: Matrix, mean_abs: Matrix, bits: int, group_size: int | None
) -> tuple[Matrix, list[Matrix]]:
    """Loss of Q(W s) / s and s, for s = mean_abs^(i/20), i from 0 to 19 (Lin et al. 2024)."""
    scalings = [mean_abs ** (i / 20) for i in range(20)]
    losses = [loss(weight, rtn(weight * s, bits, group_size) / s, second) for s in scalings]
    return np.array(losses), scalings


def awq(weight: Matrix, scaling: Matrix, bits: int, group_size: int | None, ties: Matrix | None = None) -> Matrix:
    """Q(W s) / s."""
    return rtn(weight * scaling, bits, group_size, ties) / scaling


def loss(weight: Matrix, rounded: Matrix, second: Matrix) -> float:
    """Mean over tokens of |x W^T - x Q^T|^2, which is tr((W - Q) second (W - Q)^T)."""
    error = weight - rounded
    return float(((error @ second) * error).sum())


def output_difference(left: Matrix, right: Matrix, weight: Matrix, second: Matrix) -> float:
    """Distance between the outputs of two quantized layers, relative to the layer's output."""
    return float(np.sqrt(loss(left, right, second) / loss(weight, np.zeros_like(weight), second)))


def outlying_inputs(seed: int, n_tokens: int, in_features: int) -> Matrix:
    """Inputs as a transformer has them: correlated, a mean apart from 0, a few features large."""
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((n_tokens, in_features // 4))
    mixed = hidden @ rng.standard_normal((in_features // 4, in_features)) / np.sqrt(in_features / 4)
    size = np.exp(rng.standard_normal(in_features) / 2)
    size[rng.choice(in_features, 3, replace=False)] *= 8
    noise = rng.standard_normal((n_tokens, in_features))
    return (mixed + noise / 2 + rng.standard_normal(in_features) / 4) * size
