"""Activation salience: rounding noise of large channels (paper, "Allocation criteria")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Criterion, Setting
from quantdrift.allocation.criteria.by_width import rounding_losses
from quantdrift.allocation.criteria.input_moments import input_moments

__all__ = ["CRITERION", "ActivationSalience"]


class ActivationSalience:
    """Error weighted by the size of inputs, s_l = sum_i E|x_i| ||Delta_l[:, i]||^2.

    AWQ protects channels with large activations; this does the same for layers.
    """

    name = "activation_salience"
    needs_inputs = True

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The weighted error at each width; 0 where no token arrives.

        Raises:
            DataError: no calibration inputs, or a weight or an input is not finite.
            UnsupportedError: no input is seen at any layer.
        """
        size = [moments.mean_abs.double().numpy() for moments in input_moments(setting)]
        return rounding_losses(setting, lambda number, power: float(size[number] @ power))


CRITERION: Criterion = ActivationSalience()
