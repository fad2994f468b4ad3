"""The widths a weight may have."""

from __future__ import annotations

__all__ = ["FULL_BITS", "MAX_BITS", "MIN_BITS", "POSSIBLE_BITS"]

MIN_BITS, MAX_BITS = 2, 8
"""Of quantized weights."""
FULL_BITS = 16
"""Stands for a weight that is left alone, whatever its dtype."""
POSSIBLE_BITS = frozenset({*range(MIN_BITS, MAX_BITS + 1), FULL_BITS})
