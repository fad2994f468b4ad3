"""What allocation.json consists of, field by field, and what may stand in each."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from quantdrift.allocation.stored.record import AllocatedLayer, Allocation
from quantdrift.errors import DataError, nearest

__all__ = ["allocation_of"]

_Kind = tuple[str, Callable[[Any], bool]]
"""What is expected, in words, and whether something is that."""
_LARGEST = 2**63 - 1
_SHOWN = 60
"""Characters of what came."""


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_list(value: object, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(of(part) for part in value)


def _is_date(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


def _or_null(kind: _Kind) -> _Kind:
    return f"{kind[0]} or null", lambda value: value is None or kind[1](value)


_TEXT: _Kind = ("a text", lambda value: isinstance(value, str) and value != "")
_WHOLE: _Kind = ("a whole number, 0 or more", lambda value: _is_whole(value) and value >= 0)
_SOME: _Kind = ("a whole number, 1 or more", lambda value: _is_whole(value) and value >= 1)
_NUMBER: _Kind = ("a number, 0 or more", lambda value: _is_number(value) and value >= 0)
_OBJECT: _Kind = ("an object", lambda value: isinstance(value, dict))
_SCALARS: _Kind = (
    "an object of texts, numbers, true, false or null",
    lambda value: (
        isinstance(value, dict)
        and all(
            part is None or isinstance(part, str | bool) or _is_number(part)
            for part in value.values()
        )
    ),
)
_FIELDS: dict[str, dict[str, _Kind]] = {
    "": {
        "format": _TEXT,
        "version": _WHOLE,
        "quantdrift": _TEXT,
        "date": ("a date and time as ISO 8601", _is_date),
        "edited": ("true or false", lambda value: isinstance(value, bool)),
        "model": _OBJECT,
        "scheme": _OBJECT,
        "criterion": _OBJECT,
        "widths": (
            "a list of whole numbers, one at least",
            lambda value: _is_list(value, _is_whole) and value != [],
        ),
        "budget": _NUMBER,
        "solver": _OBJECT,
        "bits_per_weight": _OBJECT,
        "others": _OBJECT,
        "layers": ("a list of objects", lambda value: _is_list(value, _OBJECT[1])),
    },
    "model": {"name": _TEXT, "fingerprint": _TEXT},
    "scheme": {"group_size": _or_null(_SOME), "quantizer": _or_null(_TEXT)},
    "criterion": {
        "name": _TEXT,
        "settings": _SCALARS,
        "seed": _WHOLE,
        "dataset": _or_null(_TEXT),
        "data_digest": _or_null(_TEXT),
        "n_inputs": _WHOLE,
        "input_ids": ("a list of texts", lambda value: _is_list(value, lambda x: type(x) is str)),
    },
    "solver": {
        "method": _TEXT,
        "status": _TEXT,
        "loss": _NUMBER,
        "bound": _or_null(_NUMBER),
        "gap": _or_null(("a number", _is_number)),
    },
    "bits_per_weight": {
        "allocated": _or_null(_NUMBER),
        "linear": _NUMBER,
        "all_parameters": _NUMBER,
    },
    "others": {"n_parameters": _WHOLE, "bits": _WHOLE},
}
_LAYER: dict[str, _Kind] = {
    "name": _TEXT,
    "shape": (
        "[out_features, in_features]",
        lambda value: _is_list(value, _SOME[1]) and len(value) == 2,  # noqa: PLR2004 -- a matrix
    ),
    "n_weights": _SOME,
    "width": _SOME,
    "loss": _or_null(_OBJECT),
    "unit": _or_null(_WHOLE),
}


def allocation_of(content: dict[str, Any]) -> Allocation:
    """What a file says, taken as edited: what it states of its widths is not compared with them.

    Args:
        content: the JSON object of the file.

    Raises:
        DataError: a field is missing, not known, or not as expected.
    """
    for part, fields in _FIELDS.items():
        _check(content[part] if part else content, part, fields)
    criterion, solver = content["criterion"], content["solver"]
    if criterion["n_inputs"] != len(criterion["input_ids"]):
        raise DataError(
            f"criterion.n_inputs: expected {len(criterion['input_ids'])}, as many as input_ids, "
            f"got {criterion['n_inputs']}"
        )
    widths = tuple(content["widths"])
    return Allocation(
        model=content["model"]["name"],
        fingerprint=content["model"]["fingerprint"],
        group_size=content["scheme"]["group_size"],
        quantizer=content["scheme"]["quantizer"],
        criterion=criterion["name"],
        settings=criterion["settings"],
        seed=criterion["seed"],
        dataset=criterion["dataset"],
        data_digest=criterion["data_digest"],
        input_ids=tuple(criterion["input_ids"]),
        widths=widths,
        budget=float(content["budget"]),
        method=solver["method"],
        status=solver["status"],
        bound=None if solver["bound"] is None else float(solver["bound"]),
        layers=tuple(
            _layer(layer, f"layers[{number}]", widths)
            for number, layer in enumerate(content["layers"])
        ),
        n_others=content["others"]["n_parameters"],
        others_bits=content["others"]["bits"],
        edited=True,
        version=content["quantdrift"],
        date=content["date"],
    )


def _layer(content: dict[str, Any], where: str, widths: tuple[int, ...]) -> AllocatedLayer:
    if isinstance(name := content.get("name"), str):
        where = f"{where} ({name})"
    _check(content, where, _LAYER)
    out_features, in_features = content["shape"]
    if content["n_weights"] != out_features * in_features:
        raise DataError(
            f"{where}.n_weights: expected {out_features * in_features}, as the shape has, got "
            f"{content['n_weights']}"
        )
    if content["loss"] is not None:
        _check(content["loss"], f"{where}.loss", {str(width): _NUMBER for width in widths})
    return AllocatedLayer(
        name=content["name"],
        shape=(out_features, in_features),
        width=content["width"],
        loss=None
        if content["loss"] is None
        else tuple(float(content["loss"][str(width)]) for width in widths),
        unit=content["unit"],
    )


def _check(content: dict[str, Any], where: str, fields: Mapping[str, _Kind]) -> None:
    """That an object has these fields and no others, and in each what belongs there."""
    prefix = f"{where}." if where else ""
    for name, (expected, fits) in fields.items():
        if name not in content:
            raise DataError(f"{prefix}{name} is missing; expected {expected}")
        if not fits(content[name]):
            got = json.dumps(content[name])
            got = got if len(got) <= _SHOWN else f"{got[:_SHOWN]} ..."
            raise DataError(f"{prefix}{name}: expected {expected}, got {got}")
    if extra := [name for name in content if name not in fields]:
        meant = nearest(extra[0], fields)
        hint = f"; did you mean {' or '.join(meant)}?" if meant else "."
        raise DataError(
            f"{prefix}{extra[0]} is not known{hint} Expected {', '.join(fields)} and nothing else."
        )
