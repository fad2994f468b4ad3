"""Quantizers: one file per method, found by the name a scheme gives."""

from __future__ import annotations

from functools import partial

from quantdrift.components import AVAILABLE_QUANTIZERS
from quantdrift.errors import UnsupportedError
from quantdrift.quantizers.base import LayerQuantizer, QuantizedWeight
from quantdrift.quantizers.rtn import quantize_rtn
from quantdrift.spec import Scheme

__all__ = ["LayerQuantizer", "QuantizedWeight", "layer_quantizer"]


def layer_quantizer(scheme: Scheme) -> LayerQuantizer:
    """The function that quantizes one layer's weight as the scheme says.

    Raises:
        UnsupportedError: the scheme is understood, but this version cannot make it; says why.
    """
    if scheme.quantizer not in AVAILABLE_QUANTIZERS:
        raise UnsupportedError(
            f"the quantizer {scheme.quantizer!r} is not available in this version of quantdrift; "
            f"available: {', '.join(AVAILABLE_QUANTIZERS)}"
        )
    if scheme.activation_bits is not None:
        raise UnsupportedError(
            f"quantized activations (A{scheme.activation_bits}) are not available in this version "
            "of quantdrift; leave the A part out to quantize weights only"
        )
    if scheme.criterion is not None or scheme.is_mixed:
        raise UnsupportedError(
            f"mixed precision (+{scheme.criterion}) is not available in this version of "
            "quantdrift; use a whole number of bits without a criterion"
        )
    if scheme.options:
        names = ", ".join(f"+{key}=" for key, _ in scheme.options)
        raise UnsupportedError(
            f"{names} has no effect on {scheme.quantizer}, which takes no such option; leave it out"
        )
    return partial(quantize_rtn, bits=int(scheme.weight_bits), group_size=scheme.group_size)
