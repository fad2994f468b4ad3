"""Activation-weighted error: rounding noise in a layer's output (paper, "Allocation criteria")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Criterion, Setting
from quantdrift.allocation.criteria.by_width import rounding_losses
from quantdrift.allocation.criteria.input_moments import input_moments

__all__ = ["CRITERION", "ActivationError"]


class ActivationError:
    """Error where the activations are, s_l = sum_i E[x_i^2] ||Delta_l[:, i]||^2.

    The diagonal of what GPTQ minimizes layer by layer; exact where input channels do not correlate.
    """

    name = "activation_error"
    needs_inputs = True

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The squared error of a token's output at each width; 0 where no token arrives.

        Raises:
            DataError: no calibration inputs, or a weight or an input is not finite.
            UnsupportedError: no input is seen at any layer.
        """
        energy = [moments.mean_square.double().numpy() for moments in input_moments(setting)]
        return rounding_losses(setting, lambda number, power: float(energy[number] @ power))


CRITERION: Criterion = ActivationError()
