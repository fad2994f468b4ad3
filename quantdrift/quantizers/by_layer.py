"""Which method quantizes which layer: one for all, or as widths were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quantdrift.errors import UnsupportedError
from quantdrift.quantizers.base import LayerQuantizer
from quantdrift.quantizers.registry import Method, method_at, methods_of
from quantdrift.spec import Scheme
from quantdrift.widths import POSSIBLE_BITS

__all__ = ["MethodsByLayer"]


class MethodsByLayer:
    """The methods of a scheme for a model's layers.

    Args:
        scheme: how the layers are quantized.

    Raises:
        UnsupportedError: the scheme is understood, but this version cannot make it; says why.
        MissingExtraError: the library that does it is not installed.
        SpecError: the widths that the scheme names are none.
    """

    def __init__(self, scheme: Scheme) -> None:
        self._scheme, self._methods = scheme, methods_of(scheme)
        self._widths: list[int] | None = None

    @property
    def chosen(self) -> bool:
        """Whether every layer has a width; from the beginning, where there is but one."""
        return self._widths is not None or self._scheme.criterion is None

    @property
    def needs_moments(self) -> bool:
        """Whether a method needs the moments of the layers' inputs."""
        return any(quantizer.needs_moments for quantizer in self._quantizers())

    @property
    def has_zero_points(self) -> bool:
        """Whether the grid has a zero point beside each scale."""
        return any(quantizer.has_zero_points for quantizer in self._quantizers())

    def choose(self, widths: Sequence[int], n_layers: int) -> None:
        """Give every layer its width.

        Args:
            widths: one per layer, 2 to 8 bits, or 16, which leaves its weight alone. A layer that
                is left out of the choice may have another than the scheme offers.
            n_layers: how many layers there are.

        Raises:
            UnsupportedError: the scheme does not let its layers differ, the quantizer does not have
                one of these widths, or there are more or fewer than layers.
        """
        one = self._scheme.criterion is None
        if one or not POSSIBLE_BITS.issuperset(widths) or len(widths) != n_layers:
            several = "layers of one width" if one else f"{n_layers} layers of 2 to 8 bits, or 16"
            raise UnsupportedError(
                f"{self._scheme} has {several}; got {len(widths)} widths, {sorted(set(widths))}"
            )
        for bits in {*widths} - {*self._methods}:
            self._methods[bits] = method_at(self._scheme, bits)
        self._widths = list(widths)

    def for_layers(self, n_layers: int) -> list[Method]:
        """The method of every layer.

        Raises:
            UnsupportedError: a criterion is to choose widths, and has not.
        """
        if self._scheme.criterion is None:
            return list(self._methods.values()) * n_layers
        if self._widths is None:
            raise UnsupportedError(
                f"the criterion of {self._scheme} chooses the layers' widths, and that has not "
                "been done; call choose(...) first"
            )
        return [self._methods[bits] for bits in self._widths]

    def describe(self) -> dict[str, Any]:
        """What a run records of the methods, as JSON values."""
        described: dict[str, Any] = {"quantizer": self._scheme.quantizer}
        for quantizer in self._quantizers()[:1]:  # the others differ in width alone
            described |= quantizer.describe()
        return described

    def _quantizers(self) -> list[LayerQuantizer]:
        found = [method.quantizer for method in self._methods.values()]
        return [quantizer for quantizer in found if quantizer is not None]
