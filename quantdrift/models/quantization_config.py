"""What the quantization_config of a config.json says: the method, the width."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from quantdrift.display import shown

__all__ = ["method_of", "nominal_bits", "shortened"]

_WIDTH_KEYS = ("bits", "w_bit", "nbits", "num_bits")
_LISTED = 8
"""Entries of a list that a record repeats: calibration texts and layer names can be thousands."""


def method_of(quantization: Mapping[str, Any]) -> str:
    """What quantized the weights, as the config names it.

    >>> method_of({"load_in_4bit": True}), method_of({"bits": 4})
    ('bitsandbytes', 'unknown')

    Args:
        quantization: of a config.json.
    """
    if quantization.get("load_in_4bit") or quantization.get("load_in_8bit"):
        return "bitsandbytes"
    return shown(str(quantization.get("quant_method", "unknown")))


def nominal_bits(quantization: Mapping[str, Any]) -> float | None:
    """The weight width that a quantization_config names; None if it names none, or several.

    >>> nominal_bits({"quant_method": "gptq", "bits": 4, "group_size": 128})
    4.0

    Args:
        quantization: of a config.json.
    """
    method = method_of(quantization)
    if method == "quantdrift":
        return float(quantization["bits_per_weight"]["linear"])
    if method == "bitsandbytes":
        return 4.0 if quantization.get("load_in_4bit") else 8.0
    if method == "torchao":
        named = set(re.findall(r"Int(\d+)Weight|Float(8)", json.dumps(quantization)))
        widths = {float(first or second) for first, second in named}
    else:
        widths = set(_widths(quantization))
    return widths.pop() if len(widths) == 1 else None


def shortened(value: Any) -> Any:
    """A config as a record repeats it: without what is not set, long lists as their length.

    >>> shortened({"bits": 4, "tokenizer": None, "dataset": ["a text"] * 512})
    {'bits': 4, 'dataset': '512 entries'}

    Args:
        value: JSON values, or what stands for them.
    """
    if isinstance(value, Mapping):
        return {str(key): shortened(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        if len(value) > _LISTED:
            return f"{len(value)} entries"
        return [shortened(part) for part in value]
    return value if isinstance(value, str | int | float | bool) else None


def _widths(value: Any) -> list[float]:
    if isinstance(value, list):
        return [width for part in value for width in _widths(part)]
    if not isinstance(value, Mapping):
        return []
    own = [float(value[key]) for key in _WIDTH_KEYS if isinstance(value.get(key), int | float)]
    # compressed-tensors has a width for activations beside that for weights
    parts = [part for key, part in value.items() if "activations" not in key]
    return own or [width for part in parts for width in _widths(part)]
