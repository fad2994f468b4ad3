"""Seeing the inputs of weights that are multiplied part by part.

Where queries, keys and values are not made of the same tokens, torch's attention multiplies some by
the first rows of its input projection and some by the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quantdrift.calibration.taps import Arrive
from quantdrift.models.layers import LinearLayer, memory_range

__all__ = ["PartTap"]

_aten = torch.ops.aten
_OPERANDS = {
    _aten.linear.default: (0, 1),
    _aten.addmm.default: (1, 2),
    _aten.mm.default: (0, 1),
    _aten.matmul.default: (0, 1),
}
"""Product to the positions of its input and its weight."""


class PartTap(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Sees products with some rows of a weight that belongs to no linear module.

    Beside a `ProductTap`, which sees products with the whole of it.

    Args:
        layers: the layers; their numbers are positions in this sequence.
        arrive: called with the layer's number, the input and None: all rows count.
    """

    def __init__(self, layers: Sequence[LinearLayer], arrive: Arrive) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._arrive = arrive
        self._weights = [
            (number, place, layer.weight)
            for number, layer in enumerate(layers)
            if not layer.modules and layer.expert is None
            if (place := memory_range(layer.weight)) is not None
        ]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = _OPERANDS.get(func) if self._weights else None
        if operands is not None:
            number = self._part_of(args[operands[1]])
            if number is not None:
                self._arrive(number, args[operands[0]], None)
        return func(*args, **(kwargs or {}))

    def _part_of(self, operand: Tensor) -> int | None:
        """The layer of whose weight an operand is some rows, either way round."""
        place = memory_range(operand)
        if place is None:
            return None
        device, start, end = place
        for number, (where, first, last), weight in self._weights:
            inside = device == where and first <= start and end <= last
            if inside and operand.numel() < weight.numel() and weight.shape[1] in operand.shape:
                return number
        return None
