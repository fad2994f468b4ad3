"""Bits per weight of a candidate."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from torch import nn

from quantdrift.models.layers import LinearLayer, memory_range, named_modules
from quantdrift.scheme import FULL_BITS

SCALE_BITS = 16
"""A stored scale takes 16 bits in the formats that runtimes read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BitsReport:
    """Bits per weight, of the linear layers and of all parameters: token embeddings are a large part of a small model.

    Attributes:
        linear: average over the linear layers, codes alone. A layer that is not quantized counts at its stored width,
            and a classification head is left out. For a model without linear layers it equals `all_parameters`.
        linear_with_scales: the same with the scales: 16 bits per group, another 16 for a zero point, or the scales of
            a number format.
        all_parameters: average over all parameters, scales included; those that no stage quantizes count at their
            stored width.
        n_quantized: number of quantized weights, including a quantized embedding matrix.
        n_parameters: number of parameters of the model.
    """

    linear: float
    linear_with_scales: float
    all_parameters: float
    n_quantized: int
    n_parameters: int

    def to_json(self) -> dict[str, float | int]:
        """Return the fields as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBits:
    """A quantized parameter that is no linear layer, and the bits that it takes, scales included."""

    parameter: nn.Parameter
    bits: int


def count_bits(
    modules: Sequence[nn.Module],
    layers: Sequence[LinearLayer],
    widths: Sequence[int],
    *,
    scale_bits: Callable[[int, int], int],
    beside: Sequence[StoredBits] = (),
) -> BitsReport:
    """Count the bits of a candidate.

    `scale_bits` gives the bits of a matrix [rows, columns] beside its codes; `beside` holds the other quantized
    parameters. An order of columns and an input scaling, one number per input feature, are not counted.
    """
    # A model that ties weights, and several roots, can name one parameter more than once.
    parameters = {_identity(p): p for module in modules for p in module.parameters()}
    # A parameter can hold several layers (experts), and some of them may not be among these.
    others = Counter({identity: parameter.numel() for identity, parameter in parameters.items()})
    codes, scales, n_linear, n_quantized = 0, 0, 0, 0
    for layer, bits in zip(layers, widths, strict=True):
        out_features, in_features = layer.weight.shape
        n_weights = out_features * in_features
        n_linear += n_weights
        others[_identity(layer.parameter)] -= n_weights
        if bits == FULL_BITS:
            codes += n_weights * layer.parameter.element_size() * 8
        else:
            n_quantized += n_weights
            codes += n_weights * bits
            scales += scale_bits(out_features, in_features)
    for stored in beside:
        others[_identity(stored.parameter)] -= stored.parameter.numel()
        n_quantized += stored.parameter.numel()
    rest = sum(others[identity] * parameter.element_size() * 8 for identity, parameter in parameters.items())
    n_parameters = sum(parameter.numel() for parameter in parameters.values())
    of_all = (codes + scales + sum(stored.bits for stored in beside) + rest) / n_parameters
    return BitsReport(
        linear=codes / n_linear if n_linear else of_all,
        linear_with_scales=(codes + scales) / n_linear if n_linear else of_all,
        all_parameters=of_all,
        n_quantized=n_quantized,
        n_parameters=n_parameters,
    )


def not_quantized(
    modules: Sequence[nn.Module], layers: Sequence[LinearLayer], beside: Sequence[StoredBits]
) -> dict[str, int]:
    """Map parameters of two and more dimensions that nothing quantizes to their numbers of weights.

    They are embeddings, convolutions and bare matrices. "*" stands for the number of a block in a path.
    """
    known = {_identity(parameter) for parameter in (*(x.parameter for x in layers), *(x.parameter for x in beside))}
    sizes: Counter[str] = Counter()
    for path, module in named_modules(modules):
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() > 1 and _identity(parameter) not in known:
                known.add(_identity(parameter))
                sizes[re.sub(r"\.[0-9]+(?=\.)", ".*", f"{path}.{name}" if path else name)] += parameter.numel()
    return dict(sizes.most_common())


def _identity(parameter: nn.Parameter) -> object:
    return memory_range(parameter) or id(parameter)
