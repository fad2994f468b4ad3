"""allocation.json: one layer a line, readable, and checked in full when it is read.

Widths may be changed by hand: change them and set "edited" to true. What follows from the widths
(bits per weight, loss) is then computed anew, and the bound of the solver, which need not hold any
longer, is dropped. In any other file, what is stated must be what the layers add up to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantdrift.allocation.stored.record import AllocatedLayer, Allocation
from quantdrift.allocation.stored.record_fields import allocation_of
from quantdrift.errors import DataError
from quantdrift.records import refuse_other, write_text

__all__ = ["check_place", "read_allocation", "write_allocation"]

FORMAT = "quantdrift-allocation"
VERSION = 1
_TOLERANCE = 1e-9
"""Relative, of stated figures: another program may write fewer digits."""


def write_allocation(path: Path, allocation: Allocation) -> None:
    """Write allocation.json, replacing an earlier allocation at that place.

    Args:
        path: the file; its folder is made if need be.
        allocation: what to write.

    Raises:
        RunError: something else lies there, or it cannot be written. Nothing is left behind, and
            an earlier allocation stays whole until the last step.
    """
    path = Path(path).absolute()
    check_place(path)
    write_text(path, _text(allocation), what="the allocation")


def check_place(path: Path) -> None:
    """Refuse a place that holds something other than an allocation, before hours go into one.

    Raises:
        RunError: it is a folder, or another kind of file.
    """
    refuse_other(path, FORMAT, "an allocation")


def read_allocation(path: Path) -> Allocation:
    """Read allocation.json, and check all that it says.

    Args:
        path: the file.

    Raises:
        DataError: it is missing, no allocation, of another version, or something in it is not as
            expected; names the line or the key, what was expected and what came.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"expected an allocation in {path}, which cannot be read: {error}"
        ) from error
    try:
        content = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f'{path} is not an allocation: expected "format": "{FORMAT}" in it')
    if content.get("version") != VERSION:
        raise DataError(
            f"{path} is an allocation of version {content.get('version')!r}; this quantdrift reads "
            f"version {VERSION}. Read it with the quantdrift that wrote it, or make it again."
        )
    try:
        allocation = allocation_of(content)
        if content["edited"]:
            return replace(allocation, bound=None)
        _compare(content, _figures(allocation))
        return replace(allocation, edited=False)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


# --- what stands in the file ------------------------------------------------------------------


def _content(allocation: Allocation) -> dict[str, Any]:
    """All of the file but the layers."""
    figures = _figures(allocation)
    return {
        "format": FORMAT,
        "version": VERSION,
        "quantdrift": allocation.version,
        "date": allocation.date,
        "edited": allocation.edited,
        "model": {"name": allocation.model, "fingerprint": allocation.fingerprint},
        "scheme": {"group_size": allocation.group_size, "quantizer": allocation.quantizer},
        "criterion": {
            "name": allocation.criterion,
            "settings": dict(allocation.settings),
            "seed": allocation.seed,
            "dataset": allocation.dataset,
            "data_digest": allocation.data_digest,
            "n_inputs": len(allocation.input_ids),
            "input_ids": list(allocation.input_ids),
        },
        "widths": list(allocation.widths),
        "budget": allocation.budget,
        "solver": {
            "method": allocation.method,
            "status": allocation.status,
            "loss": figures["solver.loss"],
            "bound": allocation.bound,
            "gap": figures["solver.gap"],
        },
        "bits_per_weight": {
            "allocated": figures["bits_per_weight.allocated"],
            "linear": figures["bits_per_weight.linear"],
            "all_parameters": figures["bits_per_weight.all_parameters"],
        },
        "others": {"n_parameters": allocation.n_others, "bits": allocation.others_bits},
    }


def _figures(allocation: Allocation) -> dict[str, float | None]:
    """What follows from the rest."""
    return {
        "bits_per_weight.allocated": allocation.bits_per_weight,
        "bits_per_weight.linear": allocation.linear_bits,
        "bits_per_weight.all_parameters": allocation.all_parameters_bits,
        "solver.loss": allocation.loss,
        "solver.gap": allocation.gap,
    }


def _text(allocation: Allocation) -> str:
    """The file: what has parts, a line for each of them; each layer on one."""
    lines = []
    for key, value in _content(allocation).items():
        parts = (
            [f"    {_json(name)}: {_json(part)}" for name, part in value.items()]
            if isinstance(value, dict)
            else []
        )
        text = "{\n" + ",\n".join(parts) + "\n  }" if parts else _json(value)
        lines.append(f"  {_json(key)}: {text}")
    layers = ",\n".join(
        "    " + _json(_layer_content(layer, allocation.widths)) for layer in allocation.layers
    )
    lines.append(f'  "layers": [\n{layers}\n  ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _layer_content(layer: AllocatedLayer, widths: tuple[int, ...]) -> dict[str, Any]:
    return {
        "name": layer.name,
        "shape": list(layer.shape),
        "n_weights": layer.n_weights,
        "width": layer.width,
        "loss": None
        if layer.loss is None
        else {str(width): loss for width, loss in zip(widths, layer.loss, strict=True)},
        "unit": layer.unit,
    }


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _compare(content: Mapping[str, Any], figures: Mapping[str, float | None]) -> None:
    for key, expected in figures.items():
        part, _, name = key.partition(".")
        got = content[part][name]
        same = (
            got is expected
            if got is None or expected is None
            # a gap is a difference of two losses that may be nearly equal
            else math.isclose(
                got, expected, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE if name == "gap" else 0.0
            )
        )
        if not same:
            raise DataError(
                f"{key}: expected {expected}, which the layers add up to, got {got}. If widths "
                'were changed by hand, set "edited" to true: what follows from them is then '
                "computed anew."
            )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise DataError(f"the key {key!r} is there twice in one object; expected it once")
        content[key] = value
    return content


def _no_number(name: str) -> float:
    raise DataError(f"expected numbers, got {name}")
