"""AdaRound: up or down is learned for every weight, so that the layer's output changes least."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quantdrift.errors import QuantDriftError
from quantdrift.quantizers.adaround_steps import decide
from quantdrift.quantizers.base import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.quantizers.granularity import spread
from quantdrift.quantizers.rtn import absmax_scale
from quantdrift.spec import Scheme

__all__ = ["AdaRound", "from_scheme"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaRound:
    """AdaRound as a method (Nagel et al. 2020; settings of the paper's appendix "Quantizers").

    The scale is that of RTN. A weight (f + r) scale, with f whole and 0 <= r < 1, becomes
    (f + h) scale with h = clip(1.2 sigmoid(v) - 0.1, 0, 1), where v starts at h = r. Adam
    minimizes over v, for every output channel, with e = (h - r) scale the error of its weights and
    H the second moment of the layer's input, so that e H e^T is the error of its output,

        e H e^T / sum_j scale_j^2 H_jj + 10 sum_j (1 - |2 h_j - 1|^beta).

    The second term joins in after a fifth of the steps; from then on beta goes from 20 to 2 along
    half a cosine. In the end h is rounded.

    The papers do not say how the error is weighed against the regularizer, nor how beta goes down.
    Here the error is relative to that of a whole step in every weight were inputs uncorrelated, so
    that neither units nor bits matter, and the regularizer is a sum, as in the original. Measured
    on MiniLM at 2 to 4 bits, an error that weighs a hundred times less or more ends up to 5 %
    larger; at a thousand times more 1 of 10,000 h stays undecided, and 1 of 40,000 does when beta
    goes down in a straight line.

    Attributes:
        bits: 2 to 8.
        group_size: input weights that share a scale, None for one scale per output channel.
        steps: of Adam.
    """

    bits: int
    group_size: int | None
    steps: int = 400

    needs_moments = True
    has_zero_points = False

    def quantize(self, weight: Tensor, moments: Moments | None) -> QuantizedWeight:
        """Quantize one weight matrix.

        Args:
            weight: float [out_features, in_features], not changed; the arithmetic is float32.
            moments: of the layer's input, on the weight's device.

        Returns:
            Codes and scales; the note `soft` is the share of weights that end with 0 < h < 1. A
            weight on the grid stays; one whose input is always 0 goes to the nearest point.

        Raises:
            QuantDriftError: no token reached the layer, or its second moment is not finite.
        """
        second = _usable(moments)
        exact = weight.detach().to(torch.float32)
        levels = 2 ** (self.bits - 1) - 1
        scale = absmax_scale(exact, bits=self.bits, group_size=self.group_size)
        step = spread(scale, exact.shape[1], self.group_size)
        position = exact / step
        nearest = torch.round(position).clamp_(-levels, levels)
        # a point of the grid, divided by its scale, can come out a few last digits off
        on_grid = (position - nearest).abs() <= levels * 2.0**-20
        floor = torch.where(on_grid, nearest, torch.floor(position))
        # without any input there is no error to learn from, and a half would stay a half
        settled = on_grid | (second.diagonal() == 0)
        fraction = torch.where(settled, nearest, position) - floor
        unit = _unit(torch.where(settled, 0, step), second.diagonal())
        up = decide(fraction, settled, unit, second, steps=self.steps)
        return QuantizedWeight(
            codes=(floor + (2 * up >= 1)).to(torch.int8),
            scale=scale,
            bits=self.bits,
            group_size=self.group_size,
            notes={"soft": ((up > 0) & (up < 1)).float().mean().item()},
        )

    def describe(self) -> dict[str, str]:
        """It is built in."""
        return {"backend": "quantdrift", "grid": "symmetric absmax"}


def from_scheme(scheme: Scheme) -> LayerQuantizer:
    """The method as a scheme asks for it."""
    return AdaRound(bits=int(scheme.weight_bits), group_size=scheme.group_size)


def _usable(moments: Moments | None) -> Tensor:
    """The second moment in float32, if it can be learned from."""
    if moments is None or moments.n_tokens == 0:
        raise QuantDriftError(
            "AdaRound needs the second moment of the layer's input, and no calibration token "
            "reached this layer; calibrate on inputs that reach it, or round it to nearest (rtn)"
        )
    second = moments.second.to(torch.float32)
    if not torch.isfinite(second).all():
        raise QuantDriftError(
            "AdaRound needs a finite second moment of the layer's input, and this one is not; "
            "load the model in float32, or look for what overflows in it"
        )
    return second


def _unit(step: Tensor, power: Tensor) -> Tensor:
    """Steps, 0 where settled, in a unit in which one of each makes a row's uncorrelated error 1."""
    largest = step.amax(dim=1, keepdim=True)
    step = step / torch.where(largest == 0, 1, largest)  # squares neither underflow nor overflow
    error = (step.square() * power).sum(dim=1, keepdim=True)
    return step / torch.where(error == 0, 1, error).sqrt()
