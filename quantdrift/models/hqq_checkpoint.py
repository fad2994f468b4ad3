"""HQQ checkpoints as plain ones: transformers 5 writes and names the format, but cannot read it.

The layers are unpacked by the hqq library into the floating-point weights that its own forward pass
multiplies with, and written to a temporary folder beside copies of all other files.
"""

from __future__ import annotations

import importlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantdrift.errors import RunError, UnsupportedError
from quantdrift.models.checkpoint import Checkpoint
from quantdrift.models.stored import weight_files

__all__ = ["unpacked"]

CODES = "W_q"
"""The part of a layer's state that holds its codes; scale, zero and settings lie beside it."""

_WEIGHTS = "model.safetensors"


@contextmanager
def unpacked(checkpoint: Checkpoint) -> Iterator[Path]:
    """A temporary copy of a checkpoint's folder whose linear layers are unpacked.

    Args:
        checkpoint: of method "hqq".

    Raises:
        UnsupportedError: its weights are not as transformers writes them for HQQ.
        RunError: no room for the copy.
    """
    with tempfile.TemporaryDirectory(prefix="quantdrift-hqq-") as made:
        target = Path(made) / "model"
        body = target / checkpoint.body.relative_to(checkpoint.folder)
        try:
            shutil.copytree(checkpoint.folder, target, ignore=_weights_of(checkpoint.body))
            _write_weights(checkpoint.body, body)
            config = json.loads((body / "config.json").read_text(encoding="utf-8"))
            config.pop("quantization_config", None)
            (body / "config.json").write_text(json.dumps(config), encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"{checkpoint.name} cannot be unpacked to {made}: {error}. Set TMPDIR to a folder "
                "on a disk with as much room as the model takes in full"
            ) from error
        yield target


def _weights_of(body: Path) -> Callable[[str, list[str]], set[str]]:
    """What is not copied: the packed weights, and folders that nothing is loaded from."""

    def skipped(folder: str, names: list[str]) -> set[str]:
        unused = {"onnx", "openvino", ".git"}
        if Path(folder) == body:
            unused |= {name for name in names if name.endswith((".safetensors", ".bin"))}
            unused |= {name for name in names if name.endswith(".index.json")}
        return unused & set(names)

    return skipped


def _write_weights(source: Path, target: Path) -> None:
    """Every shard again, each layer in the shard that holds its codes."""
    from safetensors import safe_open  # noqa: PLC0415 -- comes with transformers
    from safetensors.torch import save_file  # noqa: PLC0415 -- as above

    files = weight_files(source, _WEIGHTS)
    weight_map: dict[str, str] = {}
    with ExitStack() as stack:
        opened = {file: stack.enter_context(safe_open(file, framework="pt")) for file in files}
        holder = {name: one for one in opened.values() for name in one.keys()}  # noqa: SIM118 -- no dict
        layers = {name.removesuffix(f".{CODES}") for name in holder if name.endswith(f".{CODES}")}
        if not layers:
            raise UnsupportedError(
                f"{source} names HQQ in its config.json, but holds no packed layer (NAME.{CODES} "
                f"in {_WEIGHTS}); expected what save_pretrained of transformers writes"
            )
        parts: dict[str, list[str]] = {layer: [] for layer in layers}
        for name in holder:
            if name.rpartition(".")[0] in layers:
                parts[name.rpartition(".")[0]].append(name)
        for file, here in opened.items():
            written: dict[str, Tensor] = {}
            for name in here.keys():  # noqa: SIM118 -- no dict
                layer = name.rpartition(".")[0]
                if layer not in layers:
                    written[name] = here.get_tensor(name)
                elif name == f"{layer}.{CODES}":
                    state = {part: holder[part].get_tensor(part) for part in parts[layer]}
                    written |= _unpacked_layer(layer, state)
            save_file(written, target / file.name, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(written, file.name)
    if len(files) > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (target / f"{_WEIGHTS}.index.json").write_text(json.dumps(index), encoding="utf-8")


def _unpacked_layer(layer: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    library: Any = importlib.import_module("hqq.core.quantize")  # an extra, and it ships no types
    own = {name.removeprefix(f"{layer}."): tensor for name, tensor in state.items()}
    bias = own.get("bias")
    try:
        linear = library.HQQLinear(None, None, compute_dtype=_compute_dtype(own), device="cpu")
        linear.load_state_dict(own)
        weight = linear.dequantize()
    except (KeyError, RuntimeError, ValueError, AttributeError, TypeError) as error:
        raise UnsupportedError(f"hqq cannot unpack the layer {layer}: {error!r}") from error
    written = {f"{layer}.weight": weight.contiguous()}
    return written if bias is None else {**written, f"{layer}.bias": bias}


def _compute_dtype(state: Mapping[str, Tensor]) -> torch.dtype:
    """What the layer computes in, which a checkpoint spells out letter by letter."""
    letters = state.get("compute_dtype")
    name = "float16" if letters is None else bytes(letters.tolist()).decode()
    dtype = getattr(torch, name.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype
