"""What a scheme costs in bits per weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from torch import nn

from quantdrift.models.layers import LinearLayer
from quantdrift.quantizers.granularity import n_groups
from quantdrift.spec import Scheme

__all__ = ["BitsReport", "count_bits"]

SCALE_BITS = 16
"""A stored scale takes 16 bits in the formats that runtimes read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BitsReport:
    """Bits per weight. A small model's token embeddings weigh much, so both figures are given.

    Attributes:
        linear: over the quantized linear layers, codes alone.
        linear_with_scales: the same, with a 16-bit scale per group.
        all_parameters: over every parameter of the model, scales included, the others at the width
            they are stored in.
        n_quantized: number of quantized weights.
        n_parameters: number of parameters of the model.
    """

    linear: float
    linear_with_scales: float
    all_parameters: float
    n_quantized: int
    n_parameters: int

    def to_json(self) -> dict[str, float | int]:
        """The fields as a JSON object."""
        return asdict(self)


def count_bits(
    modules: Sequence[nn.Module], layers: Sequence[LinearLayer], scheme: Scheme
) -> BitsReport:
    """Count the bits of a candidate.

    Args:
        modules: the model.
        layers: the layers that are quantized.
        scheme: how.
    """
    # A parameter can hold several layers (experts), and some of them may be left alone.
    quantized: Counter[int] = Counter()
    scales = 0
    for layer in layers:
        out_features, in_features = layer.weight.shape
        quantized[id(layer.parameter)] += out_features * in_features
        scales += out_features * n_groups(in_features, scheme.group_size) * SCALE_BITS
    n_quantized = quantized.total()
    codes = n_quantized * scheme.weight_bits
    others = 0
    n_parameters = 0
    # parameters() of several roots can repeat a shared parameter
    for parameter in {id(p): p for module in modules for p in module.parameters()}.values():
        n_parameters += parameter.numel()
        left = parameter.numel() - quantized[id(parameter)]
        others += left * parameter.element_size() * 8
    return BitsReport(
        linear=codes / n_quantized,
        linear_with_scales=(codes + scales) / n_quantized,
        all_parameters=(codes + scales + others) / n_parameters,
        n_quantized=n_quantized,
        n_parameters=n_parameters,
    )
