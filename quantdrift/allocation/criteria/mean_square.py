"""The losses of the criterion gap, from the shifts of gaps; no torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["mean_square_losses"]


def mean_square_losses(shifts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean square of the shift that each layer makes at each width, less that at the widest.

    Args:
        shifts: float64 [n_inputs, n_contenders, n_layers, n_widths], nan where there is no
            contender; widths ascending.

    Returns:
        float64 [n_layers, n_widths], not rising with the width, 0 at the widest.
    """
    squares = np.nanmean(shifts**2, axis=(0, 1))
    # a wider width that happens to lie worse could hold the narrower one's codes
    falling: NDArray[np.float64] = np.minimum.accumulate(squares, axis=1)
    return falling - falling[:, -1:]
