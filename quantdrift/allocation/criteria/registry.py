"""From a criterion's name to the criterion; its module is loaded when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from quantdrift.errors import UnknownNameError

if TYPE_CHECKING:  # it would load torch
    from quantdrift.allocation.criteria.base import Criterion

__all__ = ["criterion"]

_MODULES = {
    "gap": "gap",
    "gap_exact": "gap_exact",
    "reconstruction": "reconstruction",
    "sqnr": "sqnr",
    "activation_error": "activation_error",
    "activation_salience": "activation_salience",
    "activation_norm": "activation_norm",
    "depth": "depth",
    "random": "at_random",
}
"""Criterion to the module of this package whose `CRITERION` it is."""


def criterion(name: str) -> Criterion:
    """The criterion of that name.

    Args:
        name: one of `quantdrift.grammar.CRITERIA`.

    Raises:
        UnknownNameError: no such criterion; carries the nearest names.
    """
    if name not in _MODULES:
        raise UnknownNameError("criterion", name, _MODULES, hint=f"(one of {', '.join(_MODULES)})")
    module = importlib.import_module(f"{__package__}.{_MODULES[name]}")
    found: Criterion = module.CRITERION
    return found
