"""What is saved: a model, and the codes that its layers' weights become."""

from __future__ import annotations

import errno
import hashlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.engine.bits import BitsReport
from quantdrift.engine.calibration.in_order import put_in_place
from quantdrift.engine.layers import LinearLayer, find_linears, memory_range
from quantdrift.engine.quantizers.base import QuantizedWeight
from quantdrift.engine.weights import put_aside, weights_fingerprint
from quantdrift.errors import UnsupportedError
from quantdrift.models.named import ModelSource
from quantdrift.spec import Spec

# --- What is saved: a model, and the codes that its layers' weights become ------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateLayer:
    """One quantized layer.

    Attributes:
        name: as `find_linears` gives it for the model.
        quantized: codes and grid.
        error: ||X (W - Q)^T||^2 / ||X W^T||^2 over the calibration tokens; None if not known.
        fallback: why it was rounded to nearest instead; None if it was not.
    """

    name: str
    quantized: QuantizedWeight
    error: float | None = None
    fallback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A model with its reference weights, and the codes that make it the candidate.

    Attributes:
        model: a SentenceTransformer, or another torch module with `save_pretrained`.
        source: where the model came from.
        revision: of a hub model.
        spec: model and scheme.
        layers: every quantized layer.
        fingerprint: digest of the reference weights.
        bits: what the candidate costs.
        calibration: what is recorded of how the codes were made; None for a method without data.
    """

    model: Any
    source: ModelSource
    spec: Spec
    layers: Sequence[CandidateLayer]
    fingerprint: str
    bits: BitsReport
    revision: str | None = None
    calibration: Mapping[str, Any] | None = None

    @property
    def module(self) -> nn.Module:
        """The model as a torch module."""
        module: nn.Module = self.model
        return module


@contextmanager
def in_place(candidate: Candidate, *, dtype: torch.dtype | None = None) -> Iterator[None]:
    """Inside, the model is the candidate; on leaving, it is as it was, bit for bit.

    Args:
        candidate: the model and its codes.
        dtype: to hold all floating-point weights in, quantized and others; their own if None.

    Raises:
        ValueError: there is no layer of a name.
        RunError: there is no room to put the weights aside.
    """
    linears = {layer.name: layer for layer in find_linears([candidate.module])}
    missing = [layer.name for layer in candidate.layers if layer.name not in linears]
    if missing:
        raise ValueError(f"the model has no layer {missing[0]!r}")
    held = [*candidate.module.parameters(), *candidate.module.buffers()]
    others = {tensor.dtype for tensor in held if tensor.is_floating_point()} - {dtype}
    with ExitStack() as stack:
        if dtype is not None and others:
            stack.enter_context(_held_in(dtype, held))
        else:
            stack.enter_context(put_aside([linears[layer.name] for layer in candidate.layers]))
        for layer in candidate.layers:
            put_in_place(linears[layer.name], layer.quantized)
        yield


@contextmanager
def _held_in(dtype: torch.dtype, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the floating-point tensors are copies in another type; then the originals again."""
    originals = [(tensor, tensor.data) for tensor in tensors if tensor.is_floating_point()]
    # what shares memory shares it in the copy too, a matrix and its transpose included
    copies: dict[object, tuple[Tensor, Tensor]] = {}
    try:
        for tensor, data in originals:
            key = memory_range(data) or id(tensor)
            if key not in copies:
                copies[key] = (data, data.to(dtype, copy=True))
            first, copy = copies[key]
            alike = data.stride() == first.stride()
            tensor.data = copy if alike else copy.as_strided(data.shape, data.stride())
        yield
    finally:
        for tensor, data in originals:
            tensor.data = data


# --- What a model's library wrote, looked at before it is believed --------------------------------


def check_written(candidate: Candidate, folder: Path, fingerprint: str) -> None:
    """Refuse a folder that does not hold the weights of the quantized layers.

    A layer's weight has to lie in the files byte for byte, under whatever name. Where one does not,
    as some libraries cut weights up or join them, the folder is loaded and compared as a whole.
    Files that are not safetensors are not looked at.

    Args:
        candidate: what was saved; it is in place.
        folder: what was written.
        fingerprint: digest of the candidate's weights.

    Raises:
        UnsupportedError: names a layer.
    """
    files = sorted(folder.rglob("*.safetensors"))
    names = {layer.name for layer in candidate.layers}
    layers = [layer for layer in find_linears([candidate.module]) if layer.name in names]
    missing = _not_in_files(layers, files) if files else []
    if missing and _loaded_fingerprint(candidate.model, folder) != fingerprint:
        kind = type(candidate.model).__name__
        raise UnsupportedError(
            f"{kind}.save_pretrained wrote something else than the quantized model: {len(missing)} "
            f"of {len(layers)} layers are not in its files, {missing[0].name} for one. A model "
            "with an adapter has to be merged with it first (merge_and_unload) and saved"
        )


def _not_in_files(layers: list[LinearLayer], files: list[Path]) -> list[LinearLayer]:
    wanted = {(layer.parameter.dtype, tuple(layer.parameter.shape)) for layer in layers}
    found = {_digest(tensor) for tensor in _tensors(files, wanted)}
    parameters = {id(layer.parameter): layer.parameter for layer in layers}
    there = {key: _digest(parameter) in found for key, parameter in parameters.items()}
    return [layer for layer in layers if not there[id(layer.parameter)]]


def _tensors(files: list[Path], wanted: set[tuple[torch.dtype, tuple[int, ...]]]) -> Iterator[Tensor]:
    """The tensors of some types and shapes, one at a time."""
    from safetensors import safe_open  # noqa: PLC0415 -- comes with transformers

    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 -- no dict
                tensor: Tensor = opened.get_tensor(name)
                if (tensor.dtype, tuple(tensor.shape)) in wanted:
                    yield tensor


def _digest(tensor: Tensor) -> bytes:
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(data.numpy().data, digest_size=16).digest()


def _loaded_fingerprint(model: Any, folder: Path) -> str | None:
    """Digest of the weights that the model's own library loads; None where it cannot."""
    load = getattr(type(model), "from_pretrained", type(model))
    try:
        return weights_fingerprint([load(str(folder))])
    except Exception:  # whatever it says, these files are not the model's
        return None


# --- safetensors folder ---------------------------------------------------------------------------


def save_safetensors(candidate: Candidate, folder: Path) -> dict[str, Any]:
    """Write the model with the candidate's weights, in the dtype it is loaded in.

    Args:
        candidate: what to save.
        folder: an empty folder.

    Returns:
        What `scheme.json` says of it: dtype, digest of the weights.

    Raises:
        UnsupportedError: the library saves something else than the model's weights.
    """
    with in_place(candidate):
        save_model_files(candidate.model, folder)
        fingerprint = weights_fingerprint([candidate.module])
        check_written(candidate, folder, fingerprint)
    dtypes = sorted({str(p.dtype) for p in candidate.module.parameters()})
    return {"dtype": ", ".join(dtype.removeprefix("torch.") for dtype in dtypes), "candidate_fingerprint": fingerprint}


def save_model_files(model: Any, folder: Path) -> None:
    """Let a model's library save it, with tokenizer and settings where the library does that.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors import SafetensorError  # noqa: PLC0415 -- comes with transformers

    save = model.save_pretrained
    # the card that sentence-transformers makes speaks of the model that was quantized
    options = {"create_model_card": False} if "create_model_card" in inspect.signature(save).parameters else {}
    try:
        with torch.no_grad():
            save(str(folder), **options)
    except SafetensorError as error:  # a full disk, in words
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error)) from error
