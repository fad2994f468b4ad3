"""Gap sensitivity from one pass: how much a layer's rounding moves the gaps, in the mean square."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Criterion, Setting
from quantdrift.allocation.criteria.mean_square import mean_square_losses
from quantdrift.allocation.gradients.one_pass import contributions

__all__ = ["CRITERION", "GapSensitivity"]


@dataclass(frozen=True, slots=True)
class GapSensitivity:
    """Mean square of the shift that one layer makes in the gap to the runner-up.

    loss[l, b] = mean over inputs of c(b)^2, less the same at the widest width, with c the signed
    first-order shift of a gap (`one_pass.contributions`); over several contenders, where the
    problem has them because inputs are few. Shifts of different layers
    are nearly independent, so their mean squares add up to that of the whole model's shift, which
    is what carries a gap across zero; medians do not add up.

    Source: the paper's gap sensitivity (section 5.1), with another average and all layers at once.
    """

    name: str = "gap"
    needs_inputs: bool = True

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The loss of every layer at every width, in squared units of the score.

        Args:
            setting: model, widths and calibration inputs.

        Raises:
            UnsupportedError: no gradient can be taken through this model or harness.
        """
        return mean_square_losses(contributions(setting))


CRITERION: Criterion = GapSensitivity()
