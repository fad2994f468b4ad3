"""allocation.json: one layer a line, readable, and checked in full when it is read.

Widths may be changed by hand: change them and set "edited" to true. What follows from the widths
(bits per weight, loss) is then computed anew, and the bound of the solver, which need not hold any
longer, is dropped. Any other file must be as it was written, which its digest tells.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantdrift.allocation.stored.record import AllocatedLayer, Allocation
from quantdrift.allocation.stored.record_fields import allocation_of
from quantdrift.errors import DataError
from quantdrift.records import DIGEST, check_seal, read_json, refuse_other, sealed, write_text

__all__ = ["check_place", "read_allocation", "write_allocation"]

FORMAT = "quantdrift-allocation"
VERSION = 2


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
        content = read_json(path, once=True, finite=True)
    except OSError as error:
        raise DataError(
            f"expected an allocation in {path}, which cannot be read: {error}"
        ) from error
    except ValueError as error:
        raise DataError(f"{path} is damaged, expected an allocation: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f'{path} is not an allocation: expected "format": "{FORMAT}" in it')
    if content.get("version") != VERSION:
        raise DataError(
            f"{path} is an allocation of version {content.get('version')!r}; this quantdrift reads "
            f"version {VERSION}. Make it again: quantdrift allocate"
        )
    try:
        if content.get("edited") is not True:  # else its digest is of what it was before
            check_seal(content)
        allocation = allocation_of({k: v for k, v in content.items() if k != DIGEST})
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except ValueError as error:
        raise DataError(
            f'{path}: {error}. If you changed it by hand, set "edited" to true: what follows from '
            "the widths is then computed anew"
        ) from error
    return replace(allocation, **({"bound": None} if content["edited"] else {"edited": False}))


# --- what stands in the file ------------------------------------------------------------------


def _content(allocation: Allocation) -> dict[str, Any]:
    """All of the file but the layers."""
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
            "loss": allocation.loss,
            "bound": allocation.bound,
            "gap": allocation.gap,
        },
        "bits_per_weight": {
            "allocated": allocation.bits_per_weight,
            "linear": allocation.linear_bits,
            "all_parameters": allocation.all_parameters_bits,
        },
        "others": {"n_parameters": allocation.n_others, "bits": allocation.others_bits},
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
    digest = sealed(json.loads("{" + ",".join(lines) + "}"))[DIGEST]
    lines.append(f'  "{DIGEST}": "{digest}"')
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
