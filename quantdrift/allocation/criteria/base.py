"""What a criterion may look at, and what it gives: a loss for every layer at every width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.allocation.problem import GapProblem
from quantdrift.models.layers import LinearLayer
from quantdrift.progress import Progress
from quantdrift.quantizers.rtn import RoundToNearest

__all__ = ["Criterion", "InputMoments", "Kept", "Setting", "rounding_error"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputMoments:
    """What the input of a layer looks like in the reference, over the calibration tokens.

    Attributes:
        mean_square: float32 [in_features], mean over tokens of x^2.
        mean_abs: float32 [in_features], mean over tokens of |x|.
        n_tokens: how many there were; 0 says that the layer was never reached, and then the rest
            is zeros.
    """

    mean_square: Tensor
    mean_abs: Tensor
    n_tokens: int


class Kept(Protocol):
    """Arrays by name, kept on disk."""

    def get(self, name: str) -> NDArray[np.float64] | None:
        """The array of that name; None where there is none, or a damaged one."""
        ...

    def put(self, name: str, array: NDArray[np.float64]) -> None:
        """Keep an array; whole, or not at all, if the process is killed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """What layers are scored on.

    Attributes:
        modules: the model's outermost modules, in the reference arm.
        layers: what gets a width.
        widths: bits per weight to choose from, ascending, at least two.
        group_size: input weights that share a scale, None for a whole output channel.
        seed: of what is drawn at random.
        progress: where progress is shown.
        problem: calibration inputs; None where the criterion needs none.
        kept: what was measured before, so that a run that was killed goes on where it stopped; None
            keeps nothing. It belongs to this model and these calibration inputs alone.
    """

    modules: Sequence[nn.Module]
    layers: Sequence[LinearLayer]
    widths: tuple[int, ...]
    group_size: int | None
    seed: int
    progress: Progress
    problem: GapProblem | None = None
    kept: Kept | None = None


class Criterion(Protocol):
    """A rule that says how much is lost where a layer gets a width."""

    @property
    def name(self) -> str:
        """As the spec spells it."""
        ...

    @property
    def needs_inputs(self) -> bool:
        """Whether it looks at calibration inputs, which `Setting.problem` then has to have."""
        ...

    def losses(self, setting: Setting) -> NDArray[np.float64]:
        """The loss of every layer at every width.

        Args:
            setting: model, widths and calibration inputs.

        Returns:
            float64 [n_layers, n_widths], at least 0, not rising with the width, and 0 at the
            widest. Losses of layers add up; their unit is the criterion's own. Between two widths
            the paper's rule ranks layers by the first column over the number of weights.

        Raises:
            QuantDriftError: the model cannot be measured this way; says which criterion can.
        """
        ...


def rounding_error(layer: LinearLayer, bits: int, group_size: int | None) -> Tensor:
    """The change W - Q(W) that rounding to nearest makes to a layer, whatever the quantizer.

    Args:
        layer: whose weight W is.
        bits: 2 to 8.
        group_size: input weights that share a scale, None for a whole output channel.

    Returns:
        float32 [out_features, in_features], on the weight's device.
    """
    weight = layer.weight
    quantized = RoundToNearest(bits=bits, group_size=group_size).quantize(weight, None)
    return weight.float() - quantized.dequantize(weight.dtype).float()
