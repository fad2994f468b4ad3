"""Quantizers: one file per method, found by the name a scheme gives."""

from quantdrift.quantizers.base import LayerQuantizer, Moments, QuantizedWeight
from quantdrift.quantizers.registry import layer_quantizer

__all__ = ["LayerQuantizer", "Moments", "QuantizedWeight", "layer_quantizer"]
