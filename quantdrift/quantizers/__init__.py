"""Quantizers: one file per method, found by the name a scheme gives."""

from quantdrift.quantizers.base import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.quantizers.registry import Method, layer_quantizer, methods_of

__all__ = [
    "LayerQuantizer",
    "Method",
    "Moments",
    "QuantizedWeight",
    "layer_quantizer",
    "methods_of",
]
