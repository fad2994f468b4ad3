"""Activation norm: the energy that goes through a layer (paper, "Allocation criteria")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Criterion, Setting
from quantdrift.allocation.criteria.by_width import fading_losses
from quantdrift.allocation.criteria.input_moments import input_moments

__all__ = ["CRITERION", "ActivationNorm"]


class ActivationNorm:
    """Input energy, s_l = sum_i E[x_i^2], whatever rounding does to the weights.

    A control: it tells whether knowing which layers see large activations is enough.
    """

    name = "activation_norm"
    needs_inputs = True

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The energy, a fourth of it for each bit; 0 where no token arrives.

        Raises:
            DataError: no calibration inputs, or an input is not finite.
            UnsupportedError: no input is seen at any layer.
        """
        energy = [float(moments.mean_square.double().sum()) for moments in input_moments(setting)]
        return fading_losses(energy, setting.widths)


CRITERION: Criterion = ActivationNorm()
