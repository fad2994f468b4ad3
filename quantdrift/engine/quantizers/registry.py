"""From a scheme to the method that makes it; a method's module is loaded when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quantdrift.engine.quantizers.base import LayerQuantizer
from quantdrift.engine.refusals import refuse_settings, settings_taken
from quantdrift.errors import UnsupportedError
from quantdrift.spec import FULL_BITS, POSSIBLE_BITS, Scheme

# --- registry -------------------------------------------------------------------------------------

_MODULES = {"rtn": "rtn", "adaround": "adaround", "awq": "awq", "gptq": "gptq", "gptq_ao": "gptq", "hqq": "hqq"}
"""Quantizer to the module of this package whose `from_scheme(scheme)` makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What quantizes a layer's weight.

    Attributes:
        bits: per weight; 16 leaves the weight alone.
        quantizer: what does it; None where nothing does.
    """

    bits: int
    quantizer: LayerQuantizer | None


def methods_of(scheme: Scheme) -> dict[int, Method]:
    """Width to what quantizes a layer to it, for every width that the scheme's layers may have.

    Raises:
        UnsupportedError: the scheme is understood, but this version cannot make it; says why.
        MissingExtraError: the library that does it is not installed.
        SpecError: the widths that the scheme names are none, or another of its settings.
        DataError: the file that it takes the widths from is no allocation.
    """
    refuse_settings(scheme)
    methods = {bits: method_at(scheme, bits) for bits in scheme.widths}
    if scheme.criterion is not None:
        # what is wrong with them would otherwise be said when the reference has answered
        from quantdrift.allocation.solver import settings_of  # noqa: PLC0415 -- loads scipy
        from quantdrift.engine.calibration.candidate import stored_allocation  # noqa: PLC0415 -- as above

        settings_of(scheme)
        stored_allocation(scheme)
    return methods


def method_at(scheme: Scheme, bits: int) -> Method:
    """What quantizes a layer to one width, in everything else as a scheme says.

    Args:
        scheme: of one width or of several.
        bits: 2 to 8, or 16 for nothing.

    Raises:
        UnsupportedError: the quantizer does not have this width, or quantizes whole models.
        MissingExtraError: the library that does it is not installed.
    """
    own = [option for option in scheme.options if option[0] in settings_taken(scheme)]
    quantizer = None
    if bits != FULL_BITS:
        quantizer = layer_quantizer(replace(scheme.at(bits), options=tuple(own)))
    if scheme.criterion is not None and hasattr(quantizer, "walk_blocks"):
        raise UnsupportedError(
            f"{scheme}: {scheme.option('backend')} quantizes a whole model to one width; "
            f"leave out the criterion {scheme.criterion}, or +backend="
        )
    return Method(bits=bits, quantizer=quantizer)


def layer_quantizer(scheme: Scheme) -> LayerQuantizer | None:
    """The method that quantizes one layer's weight as the scheme says; None leaves weights alone.

    Args:
        scheme: of one width.

    Raises:
        UnsupportedError: the scheme is understood, but this version cannot make it; says why.
        MissingExtraError: the library that does it is not installed.
    """
    refuse_settings(scheme)
    if scheme.weight_bits == FULL_BITS:
        return None
    module = importlib.import_module(f"{__package__}.{_MODULES[scheme.quantizer]}")
    from_scheme: Callable[[Scheme], LayerQuantizer] = module.from_scheme
    return from_scheme(scheme)


# --- Which method quantizes which layer: one for all, or as widths were chosen --------------------


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
            raise UnsupportedError(f"{self._scheme} has {several}; got {len(widths)} widths, {sorted(set(widths))}")
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
