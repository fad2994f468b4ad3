"""The changes that rounding makes to weights, kept while there is room."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quantdrift.allocation.criteria.base import rounding_error
from quantdrift.models.layers import LinearLayer

__all__ = ["WeightChanges"]

_ROOM = 2 * 2**30
"""Bytes; a change that does not fit is made again each time it is needed."""


class WeightChanges:
    """What is added to a layer's weight when it is rounded to a width; by number of the layer.

    Args:
        layers: in the reference arm, as long as this is used.
        widths: bits per weight.
        group_size: input weights that share a scale, None for a whole output channel.
    """

    def __init__(
        self, layers: Sequence[LinearLayer], widths: tuple[int, ...], group_size: int | None
    ) -> None:
        self._layers, self._widths, self._group_size = layers, widths, group_size
        self._kept: dict[int, Tensor] = {}
        self._room = _ROOM

    def __getitem__(self, number: int) -> Tensor:
        """float32 [n_widths, out_features * in_features], on the weight's device."""
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        layer = self._layers[number]
        with torch.no_grad():
            changes = torch.stack(
                [-rounding_error(layer, bits, self._group_size).flatten() for bits in self._widths]
            )
        size = changes.numel() * changes.element_size()
        if size <= self._room:
            self._kept[number] = changes
            self._room -= size
        return changes
