"""Codes on disk, layer by layer: what was interrupted goes on, what is finished is not repeated.

They lie beside the embeddings, under a key of everything that decides them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from quantdrift.cache import kept_file, read_kept
from quantdrift.calibration.driver import LayerCandidate
from quantdrift.errors import RunError
from quantdrift.quantizers import QuantizedWeight
from quantdrift.records import parse_json

__all__ = ["CodeStore"]

_TENSORS = ("codes", "scale", "zero_point", "permutation", "input_scaling")


class CodeStore:
    """Where the layers of one candidate are kept.

    Args:
        root: cache folder; None keeps nothing.
        key: of the candidate, from `key_of`.
    """

    def __init__(self, root: Path | None, key: str) -> None:
        self._folder = None if root is None else root / "codes" / key[:2] / key

    def read(self, n_layers: int) -> dict[int, LayerCandidate]:
        """The layers that are there, by number."""
        found = {}
        for number in range(n_layers) if self._folder is not None else ():
            layer = read_kept(self._path(number), _read)
            if layer is not None:
                found[number] = layer
        return found

    def write(self, number: int, layer: LayerCandidate) -> None:
        """Keep a layer.

        Raises:
            RunError: the folder cannot be written, or there is no space.
        """
        if self._folder is None:
            return
        from safetensors.torch import save_file  # noqa: PLC0415 -- comes with transformers

        tensors, facts = _taken_apart(layer)
        path = self._path(number)
        try:
            with kept_file(path) as partial:
                save_file(tensors, partial, metadata={"layer": json.dumps(facts)})
        except Exception as error:  # safetensors has its own error for a full disk
            raise RunError(
                f"quantized layers cannot be kept in {self._folder}: {error}. Free some space, set "
                "QUANTDRIFT_CACHE to a folder on another disk, or use --no-cache"
            ) from error

    def _path(self, number: int) -> Path:
        assert self._folder is not None  # asked before
        return self._folder / f"{number:05d}.safetensors"


def _read(content: memoryview) -> LayerCandidate:
    from safetensors.torch import load  # noqa: PLC0415 -- as above

    length = int.from_bytes(content[:8], "little")
    header = parse_json(bytes(content[8 : 8 + length]))
    facts = parse_json(header["__metadata__"]["layer"])
    return _put_together(load(bytes(content)), facts)


def _taken_apart(layer: LayerCandidate) -> tuple[dict[str, Tensor], dict[str, object]]:
    facts: dict[str, object] = {
        name: getattr(layer, name)
        for name in ("name", "n_tokens", "absmax", "called", "output_error", "seconds", "fallback")
    }
    tensors: dict[str, Tensor] = {}
    if (weight := layer.quantized) is not None:
        facts["grid"] = {
            "bits": weight.bits,
            "group_size": weight.group_size,
            "notes": dict(weight.notes),
        }
        for name in _TENSORS:
            value = getattr(weight, name)
            if value is not None:
                tensors[name] = value.contiguous()
    return tensors, facts


def _put_together(tensors: dict[str, Tensor], facts: dict[str, Any]) -> LayerCandidate:
    grid: dict[str, Any] | None = facts.pop("grid", None)
    parts: dict[str, Any] = dict(tensors)
    quantized = None if grid is None else QuantizedWeight(**parts, **grid)
    return LayerCandidate(quantized=quantized, **facts)
