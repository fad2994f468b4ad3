"""What is saved: a model, and the codes that its layers' weights become."""

from __future__ import annotations

import errno
import hashlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.engine.bits import BitsReport
from quantdrift.engine.calibration.in_order import LayerCandidate, put_in_place
from quantdrift.engine.layers import find_linears
from quantdrift.engine.weights import add_tensor, put_aside, weights_fingerprint
from quantdrift.errors import UnsupportedError
from quantdrift.models.named import ModelSource
from quantdrift.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A model with its reference weights, and the codes that make it the candidate.

    Attributes:
        model: a SentenceTransformer, or another torch module with `save_pretrained`.
        source: where the model came from.
        revision: of a hub model.
        spec: model and scheme.
        layers: every quantized layer, with its codes.
        fingerprint: digest of the reference weights.
        bits: what the candidate costs.
        calibration: what is recorded of how the codes were made; None for a method without data.
    """

    model: Any
    source: ModelSource
    spec: Spec
    layers: Sequence[LayerCandidate]
    fingerprint: str
    bits: BitsReport
    revision: str | None = None
    calibration: Mapping[str, Any] | None = None

    def put_into(self, model: nn.Module) -> None:
        """Give the layers of the model, or of a copy of it, the values that the codes stand for."""
        linears = {layer.name: layer for layer in find_linears([model])}
        for layer in self.layers:
            assert layer.quantized is not None  # one that is left alone is none of these
            put_in_place(linears[layer.name], layer.quantized)


@contextmanager
def in_place(candidate: Candidate) -> Iterator[None]:
    """Inside, the model is the candidate; on leaving, it is as it was, bit for bit."""
    names = {layer.name for layer in candidate.layers}
    with put_aside([layer for layer in find_linears([candidate.model]) if layer.name in names]):
        candidate.put_into(candidate.model)
        yield


def save_safetensors(candidate: Candidate, folder: Path) -> dict[str, Any]:
    """Write the model with the candidate's weights, in the dtype it is loaded in."""
    with in_place(candidate):
        save_model_files(candidate.model, folder)
        fingerprint = weights_fingerprint([candidate.model])
        _refuse_other_weights(candidate, folder, fingerprint)
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in candidate.model.parameters()})
    return {"dtype": ", ".join(dtypes), "candidate_fingerprint": fingerprint}


def save_model_files(model: Any, folder: Path) -> None:
    """Let a model's library save it, with tokenizer and settings where the library does that."""
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


def _refuse_other_weights(candidate: Candidate, folder: Path, fingerprint: str) -> None:
    """Refuse a folder that does not hold the weights of the quantized layers.

    A layer's weight has to lie in the files byte for byte, under whatever name. Where one does not, as some libraries
    cut weights up or join them, the folder is loaded and compared as a whole.
    """
    from safetensors import safe_open  # noqa: PLC0415 -- comes with transformers

    names = {layer.name for layer in candidate.layers}
    layers = [layer for layer in find_linears([candidate.model]) if layer.name in names]
    wanted = {layer.name: _digest(layer.parameter) for layer in layers}
    shapes = {layer.parameter.shape for layer in layers}
    found = set()
    files = sorted(folder.rglob("*.safetensors"))
    for file in files:
        with safe_open(file, framework="pt") as opened:
            tensors = (opened.get_tensor(name) for name in opened.keys())  # noqa: SIM118 -- no dict
            found |= {_digest(tensor) for tensor in tensors if tensor.shape in shapes}
    missing = [name for name, digest in wanted.items() if files and digest not in found]
    if missing and _loaded_fingerprint(candidate.model, folder) != fingerprint:
        kind = type(candidate.model).__name__
        raise UnsupportedError(
            f"{kind}.save_pretrained wrote something else than the quantized model: {len(missing)} of {len(layers)} "
            f"layers are not in its files, {missing[0]} for one. A model with an adapter has to be merged with it "
            "first (merge_and_unload) and saved"
        )


def _digest(tensor: Tensor) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    add_tensor(digest, "", tensor)
    return digest.digest()


def _loaded_fingerprint(model: Any, folder: Path) -> str | None:
    """Digest of the weights that the model's own library loads; None where it cannot."""
    load = getattr(type(model), "from_pretrained", type(model))
    try:
        return weights_fingerprint([load(str(folder))])
    except Exception:  # whatever it says, these files are not the model's
        return None
