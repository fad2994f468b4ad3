"""From a scheme to the method that makes it; a method's module is loaded when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from quantdrift.errors import UnsupportedError
from quantdrift.quantizers.base import LayerQuantizer
from quantdrift.scheme_settings import refuse_settings, settings_taken
from quantdrift.spec import Scheme
from quantdrift.widths import FULL_BITS

__all__ = ["Method", "layer_quantizer", "method_at", "methods_of"]

_MODULES = {
    "rtn": "rtn",
    "adaround": "adaround",
    "awq": "awq",
    "gptq": "gptq",
    "gptq_ao": "gptq",
    "hqq": "hqq",
}
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
        from quantdrift.allocation.settings import settings_of  # noqa: PLC0415 -- loads scipy
        from quantdrift.allocation.stored.widths import stored_allocation  # noqa: PLC0415 -- as above

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
