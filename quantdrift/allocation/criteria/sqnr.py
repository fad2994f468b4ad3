"""Relative error: rounding noise against the weights' own power (paper, "Allocation criteria")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Criterion, Setting
from quantdrift.allocation.criteria.by_width import column_power, rounding_losses

__all__ = ["CRITERION", "RelativeError"]


class RelativeError:
    """Noise over signal, s_l = ||Delta_l||^2 / ||W_l||^2; needs no data.

    Free of scale: a layer does not rank highly for large weights. The inverse of the signal to
    quantization noise ratio, so that more is worse.
    """

    name = "sqnr"
    needs_inputs = False

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The relative error at each width, without a unit; 0 for a layer of zeros.

        Raises:
            DataError: a weight is not finite.
        """
        signal = [float(column_power(layer.weight).sum()) for layer in setting.layers]

        def score(number: int, power: NDArray[np.float64]) -> float:
            return float(power.sum()) / signal[number] if signal[number] > 0 else 0.0

        return rounding_losses(setting, score)


CRITERION: Criterion = RelativeError()
