"""From what a baseline says of a layer to a loss at every width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantdrift.allocation.criteria.base import Setting, rounding_error
from quantdrift.errors import DataError

__all__ = ["column_power", "fading_losses", "rounding_losses"]

_BLOCK = 1 << 22
"""Elements that are summed in float32; the sums of blocks add up in float64."""


def rounding_losses(
    setting: Setting, score: Callable[[int, NDArray[np.float64]], float]
) -> NDArray[np.float64]:
    """The losses of a criterion that looks at Delta = W - Q(W), the change that rounding makes.

    loss[l, b] = min over b' <= b of score(l, ||Delta_l(b')[:, i]||^2), and 0 at the widest b.
    The minimum is there because losses must fall: where a finer grid happens to lie worse, the
    codes of the coarser one fit in the wider format too. The narrowest width, by which the paper
    ranks layers, is as it was measured.

    Args:
        setting: layers and widths.
        score: from a layer's number and the squared norms of Delta's columns, float64
            [in_features], to the layer's score, at least 0.

    Returns:
        float64 [n_layers, n_widths].

    Raises:
        DataError: a weight is not finite.
    """
    losses = np.zeros((len(setting.layers), len(setting.widths)))
    with setting.progress.stage("rounding layers one by one", len(setting.layers)) as tell:
        for number, layer in enumerate(setting.layers):
            for column, bits in enumerate(setting.widths[:-1]):
                power = column_power(rounding_error(layer, bits, setting.group_size))
                if not np.isfinite(power).all():
                    raise DataError(
                        f"expected finite weights in {layer.name}, got some that are not (or are "
                        "beyond 1e19), so its rounding error has no size; check the checkpoint, "
                        "or load it in float32 or bfloat16"
                    )
                losses[number, column] = score(number, power)
            tell(1)
    return np.minimum.accumulate(losses, axis=1)


def fading_losses(scores: Sequence[float], widths: Sequence[int]) -> NDArray[np.float64]:
    """The losses of a criterion that does not look at the width.

    loss[l, b] = s_l 4^-b, and 0 at the widest b: the power of rounding noise falls by four a bit.

    Args:
        scores: s_l of every layer, at least 0.
        widths: bits per weight, ascending.

    Returns:
        float64 [n_layers, n_widths].
    """
    fading = np.array([*(4.0**-bits for bits in widths[:-1]), 0.0])
    losses: NDArray[np.float64] = np.asarray(scores, np.float64)[:, None] * fading
    return losses


def column_power(matrix: Tensor) -> NDArray[np.float64]:
    """The squared norm of every column, sum over rows of m^2.

    Args:
        matrix: float [n_rows, n_columns], on any device.

    Returns:
        float64 [n_columns].
    """
    total = np.zeros(matrix.shape[1])
    n_rows = max(1, _BLOCK // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), n_rows):
        rows = matrix[start : start + n_rows]
        total += rows.to(torch.float32).square().sum(dim=0).cpu().numpy()
    return total
