"""From a scheme to the method that makes it; a method's module is loaded when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from quantdrift.components import CALIBRATED
from quantdrift.errors import UnsupportedError
from quantdrift.quantizers.base import LayerQuantizer
from quantdrift.spec import Scheme

__all__ = ["layer_quantizer"]

_FULL_BITS = 16
_MODULES = {
    "rtn": "rtn",
    "adaround": "adaround",
    "awq": "awq",
    "gptq": "gptq",
    "gptq_ao": "gptq",
    "hqq": "hqq",
}
"""Quantizer to the module of this package whose `from_scheme(scheme)` makes it."""
_OPTIONS = {
    "rtn": (),
    "adaround": (),
    "awq": ("backend", "grid"),
    "gptq": ("backend", "grid"),
    "gptq_ao": ("backend", "grid"),
    "hqq": ("backend",),
}
"""Settings that a method itself takes; `calib` and `seed` are the calibration's."""


def layer_quantizer(scheme: Scheme) -> LayerQuantizer | None:
    """The method that quantizes one layer's weight as the scheme says; None leaves weights alone.

    Raises:
        UnsupportedError: the scheme is understood, but this version cannot make it; says why.
        MissingExtraError: the library that does it is not installed.
    """
    if scheme.criterion is not None or scheme.is_mixed:
        raise UnsupportedError(
            f"mixed precision (+{scheme.criterion}) is not available in this version of "
            "quantdrift; use a whole number of bits without a criterion"
        )
    calibrated = scheme.quantizer in CALIBRATED or scheme.activation_bits is not None
    takes = (*_OPTIONS[scheme.quantizer], *(("calib", "seed") if calibrated else ()))
    for key, _ in scheme.options:
        if key not in takes:
            others = f"it takes {', '.join(takes)}" if takes else "it takes no setting"
            raise UnsupportedError(
                f"+{key}= has no effect on {scheme.quantizer}: {others}. Leave it out"
            )
    if scheme.weight_bits == _FULL_BITS:
        return None
    module = importlib.import_module(f"{__package__}.{_MODULES[scheme.quantizer]}")
    from_scheme: Callable[[Scheme], LayerQuantizer] = module.from_scheme
    return from_scheme(scheme)
