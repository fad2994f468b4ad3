"""The model of MODEL@SCHEME is at full precision: what is quantized already would flip nothing."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from quantdrift.errors import RunError, UnsupportedError
from quantdrift.models.checkpoint import find_checkpoint
from quantdrift.models.quantization_config import method_of
from quantdrift.models.resolve import ModelSource, resolve
from quantdrift.saving.folder import is_candidate_folder, read_record

if TYPE_CHECKING:
    from torch import nn

__all__ = ["full_precision", "refuse_quantized"]


def full_precision(name: str) -> ModelSource:
    """Find the model that a spec names, and refuse one that is known to be quantized.

    Nothing is loaded or downloaded; `refuse_quantized` looks at a model from the hub once it is
    loaded.

    Args:
        name: the model part of a spec.

    Raises:
        UnknownNameError: nothing of that name.
        UnsupportedError: it is quantized, or a folder that holds no model.
    """
    if name.lower().endswith(".gguf"):
        raise _quantized(name, "a GGUF file")
    source = resolve(name)
    if source.kind != "local":
        return source
    folder = Path(source.location)
    if is_candidate_folder(folder):
        base = None
        with suppress(RunError):  # of another version: it is a candidate all the same
            base = read_record(folder).get("base_model", {}).get("name")
        raise _quantized(name, "a candidate saved by quantdrift quantize", reference=base)
    method = find_checkpoint(name).method
    if method != "none":
        raise _quantized(name, f"its config.json says {method}")
    return source


def refuse_quantized(modules: Iterable[nn.Module], name: str) -> None:
    """Refuse a loaded model that transformers knows to be quantized.

    Args:
        modules: the outermost torch modules of the model.
        name: of the model, as the user wrote it.

    Raises:
        UnsupportedError: the config of one of its parts has a quantization_config.
    """
    for outermost in modules:
        for module in outermost.modules():
            said = getattr(getattr(module, "config", None), "quantization_config", None)
            if said:
                content = said if isinstance(said, dict) else said.to_dict()
                raise _quantized(name, f"its config.json says {method_of(content)}")


def _quantized(name: str, why: str, *, reference: str | None = None) -> UnsupportedError:
    return UnsupportedError(
        f"{name} is quantized already ({why}); expected a model at full precision before @. To "
        f'see which answers it changes: quantdrift run "{reference or "REFERENCE"} vs {name}"'
    )
