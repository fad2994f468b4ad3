"""Reconstruction error: how much rounding changes a weight (paper, "Allocation criteria")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Criterion, Setting
from quantdrift.allocation.criteria.by_width import rounding_losses

__all__ = ["CRITERION", "Reconstruction"]


class Reconstruction:
    """Mean squared change of the weights, s_l = ||Delta_l||^2 / |W_l|; needs no data.

    It is the objective of allocators that look at weights alone, and the paper's main baseline.
    """

    name = "reconstruction"
    needs_inputs = False

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The mean squared change at each width, in squared units of the weights.

        Raises:
            DataError: a weight is not finite.
        """

        def score(number: int, power: NDArray[np.float64]) -> float:
            return float(power.sum()) / setting.layers[number].weight.numel()

        return rounding_losses(setting, score)


CRITERION: Criterion = Reconstruction()
