"""A stored candidate that is loaded: what it is, and what decides its embeddings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.bits import BitsReport
from quantdrift.models.checkpoint import NEEDED
from quantdrift.models.checkpoint_loading import LoadedCheckpoint
from quantdrift.models.encoder_parts import encoder_parts, floating_dtype
from quantdrift.models.fingerprint import add_tensor
from quantdrift.models.layers import find_linears
from quantdrift.models.reading import reading_digest
from quantdrift.models.runtime import runtime_of
from quantdrift.models.sentence_encoder import Role, SentenceEncoder
from quantdrift.saving.folder import read_record

__all__ = ["StoredCandidate", "in_body", "runtime_of_encoder"]


class StoredCandidate:
    """A checkpoint as one side of a comparison.

    Attributes:
        encoder: the model.
        notes: in what beside weights it differs from its reference, and what it took from there.
        layers: names of its packed layers.
    """

    def __init__(self, loaded: LoadedCheckpoint) -> None:
        """Nothing is computed yet.

        Args:
            loaded: the checkpoint.
        """
        self._loaded = loaded
        self._digest: str | None = None
        self.encoder = loaded.encoder
        self.notes = loaded.notes
        self.layers: Sequence[str] = loaded.stored.packed

    def encode(self, texts: Sequence[str], role: Role, batch_size: int) -> NDArray[np.float32]:
        """Embed texts, float32 [n, dim]."""
        return self.encoder.encode(texts, role, batch_size)

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides its embeddings: weights as loaded, settings of the
        transformer, tokenizer, prompts, pooling, format, kernels and libraries.
        """
        if self._digest is None:
            digest = hashlib.blake2b(digest_size=16)
            parts = {
                **encoder_parts(self.encoder),
                "format": self._loaded.checkpoint.method,
                "quantization": self._loaded.checkpoint.quantization,
                **self._libraries(),
                "kernels": self._kernels(),
                "settings": reading_digest([], [self.encoder.module]),
            }
            digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
            for name, tensor in sorted(self.encoder.module.state_dict().items()):
                add_tensor(digest, name, tensor)
            self._digest = digest.hexdigest()
        return self._digest

    @property
    def runtime(self) -> dict[str, str]:
        """What decides embeddings beside weights and inputs."""
        return runtime_of_encoder(self.encoder)

    def bits(self) -> BitsReport:
        """Bits per weight, counted from what is stored."""
        return self._loaded.stored.bits

    def identify(self) -> dict[str, Any]:
        """What a run records of where it came from, as JSON values."""
        return {**self._loaded.checkpoint.identify(), "fingerprint": self.fingerprint}

    def describe(self) -> dict[str, Any]:
        """What a run records of how it is quantized, as JSON values."""
        return {
            **self._loaded.checkpoint.describe(),
            "dtype": str(floating_dtype(self.encoder)),
            "kernels": self._kernels(),
            "libraries": self._libraries(),
            "notes": list(self.notes),
        }

    def _kernels(self) -> dict[str, int]:
        """The classes that stand for the packed layers, and how often."""
        if self._onnx is not None:
            record = read_record(self._loaded.checkpoint.folder)
            packed = [one for one in record["layers"] if one["stored"].startswith("MatMulNBits")]
            return {f"MatMulNBits by {self._onnx.provider}": len(packed)}
        found: dict[str, int] = {}
        modules = {in_body(name): module for name, module in self.encoder.module.named_modules()}
        for name in self.layers:
            if name in modules:
                module = modules[name]
                weight = getattr(module, "weight", None)
                kind = type(module).__name__
                if isinstance(weight, Tensor) and type(weight) not in {Tensor, nn.Parameter}:
                    kind += f" of {type(weight).__name__}"
                found[kind] = found.get(kind, 0) + 1
        return found

    def _libraries(self) -> dict[str, str]:
        if self._onnx is not None:
            return {"onnxruntime": str(self._onnx.version)}
        packages, _ = NEEDED.get(self._loaded.checkpoint.method, ((), ""))
        return {package: _version(package) for package in packages}

    @property
    def _onnx(self) -> Any:
        """The graph that onnxruntime runs for the candidate; None if torch computes it."""
        if self._loaded.checkpoint.quantization.get("model_format") != "onnx":
            return None
        return self.encoder.model[0].auto_model


def runtime_of_encoder(encoder: SentenceEncoder) -> dict[str, str]:
    """What decides a model's embeddings beside weights and inputs, as for any pair.

    Args:
        encoder: the model.
    """
    linears = find_linears([encoder.module])
    return runtime_of(linears[0].parameter if linears else next(encoder.module.parameters()))


def in_body(name: str) -> str:
    """A layer's name below its module of sentence-transformers, which keep theirs in 0.model."""
    return name.split(".", 2)[-1]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
