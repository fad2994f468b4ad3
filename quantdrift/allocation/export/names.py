"""The names that runtimes know layers by, from those in an allocation.

Runtimes load the transformers model alone, and name a layer by its path inside that model. In a
SentenceTransformer the transformers model is an attribute of a numbered module, `0.model` or,
before version 6, `0.auto_model`; names of its layers begin with that, and it is taken away:

    0.model.encoder.layer.0.attention.self.query  ->  encoder.layer.0.attention.self.query

Any other name that begins with a number belongs to a module that no runtime loads, such as a Dense
after the pooling. Names that begin with no number are those inside the model already.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from quantdrift.allocation.stored.record import AllocatedLayer, Allocation
from quantdrift.errors import UnsupportedError
from quantdrift.widths import FULL_BITS

__all__ = ["anywhere", "runtime_layers", "some"]

_NUMBERED = re.compile(r"[0-9]+\.(?P<rest>.+)")
_HOLDERS = ("model.", "auto_model.")
_NO_MODULE = re.compile(
    r".*\.(?:gate_up_proj|up_proj|down_proj|weight)\.[0-9]+|(?:.*\.)?(?:in|q|k|v)_proj_weight"
)
"""A matrix in a stack of experts, and the input projections that attention keeps itself."""
_SHOWN = 3


def runtime_layers(allocation: Allocation) -> tuple[AllocatedLayer, ...]:
    """The layers inside the transformers model, named by their path in it.

    Args:
        allocation: with names as `find_linears` gives them.

    Returns:
        The layers in their order; those outside the transformers model, which are not quantized,
        are left out.

    Raises:
        UnsupportedError: a layer outside the transformers model is to be quantized, a layer is not
            a module of its own, two get one name, or nothing is left to quantize.
    """
    inside, outside = [], []
    for layer in allocation.layers:
        name = _inside(layer.name)
        if name is not None:
            inside.append(replace(layer, name=name))
        elif layer.width != FULL_BITS:
            outside.append(layer.name)
    if outside:
        raise UnsupportedError(
            f"{some(outside)}: outside the transformers model, which is all that runtimes load; "
            f"leave such layers unquantized: quantdrift allocate ... --keep '{outside[0]}'"
        )
    names = [layer.name for layer in inside]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise UnsupportedError(
            f"{some(twice)}: in more than one of the model's modules; expected an allocation of "
            "one transformers model"
        )
    if parts := [name for name in names if _NO_MODULE.fullmatch(name)]:
        raise UnsupportedError(
            f"{some(parts)}: part of a larger module (a stack of experts, or attention with "
            "projections of its own), which no format can give a width alone"
        )
    if all(layer.width == FULL_BITS for layer in inside):
        raise UnsupportedError(
            "no layer of the transformers model is quantized; expected an allocation with a width "
            "of 2 to 8 for at least one"
        )
    return tuple(inside)


def anywhere(name: str, names: Sequence[str]) -> str:
    r"""A regular expression for a layer, whatever model class holds the transformers model.

    An encoder's `layers.0.mlp.up_proj` is `model.layers.0.mlp.up_proj` in a causal LM. The
    expression matches both, and needs no more than re, PCRE and std::regex have in common.

    Args:
        name: of the layer.
        names: of all layers; where one of them ends in `name`, only the whole name matches.

    >>> anywhere("layers.0.fc", ["layers.0.fc", "layers.10.fc"])
    '^(?:.*\\.)?layers\\.0\\.fc$'
    """
    held = any(other.endswith(f".{name}") for other in names)
    before = "" if held else r"(?:.*\.)?"
    return f"^{before}{re.escape(name)}$"


def some(names: Sequence[str]) -> str:
    """A few of the names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _inside(name: str) -> str | None:
    """Path inside the transformers model; None for a layer outside it."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return name
    rest: str = numbered["rest"]
    return next((rest.removeprefix(h) for h in _HOLDERS if rest.startswith(h)), None)
