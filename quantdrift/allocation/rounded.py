"""A model whose layers are rounded to nearest, each to a width of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from quantdrift.calibration.driver import put_in_place
from quantdrift.models.aside import put_aside
from quantdrift.models.layers import LinearLayer
from quantdrift.quantizers.rtn import quantize_rtn
from quantdrift.widths import FULL_BITS

__all__ = ["rounded"]


@contextmanager
def rounded(
    layers: Sequence[LinearLayer], widths: Sequence[int], group_size: int | None
) -> Iterator[None]:
    """Inside, the layers hold rounded weights; afterwards the reference's, bit for bit.

    Args:
        layers: of a model in the reference arm.
        widths: bits per weight of each; 16 leaves a layer alone.
        group_size: input weights that share a scale, None for a whole output channel.
    """
    with put_aside(layers):
        for layer, bits in zip(layers, widths, strict=True):
            if bits != FULL_BITS:
                put_in_place(layer, quantize_rtn(layer.weight, bits=bits, group_size=group_size))
        yield
