"""A reference and a stored candidate: two loaded models behind the interface of a pair.

Unlike a candidate that is made in place, this one is a model of its own, so both are resident.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.bits import BitsReport
from quantdrift.calibration.sample import Sample
from quantdrift.models.checkpoint import NEEDED
from quantdrift.models.checkpoint_loading import LoadedCheckpoint
from quantdrift.models.encoder_parts import encoder_parts, floating_dtype
from quantdrift.models.fingerprint import weights_fingerprint
from quantdrift.models.layers import find_linears
from quantdrift.models.reach import WeightUse
from quantdrift.models.reading import reading_digest
from quantdrift.models.runtime import runtime_of
from quantdrift.models.sentence_encoder import Role, SentenceEncoder
from quantdrift.progress import Progress
from quantdrift.saving.folder import read_record

__all__ = ["TwoModels"]


class TwoModels:
    """Two embedding models, of which one answers at a time; used as a `QuantizedPair` is.

    Attributes:
        layers: names of the candidate's packed layers.
        query_only: False; both sides are embedded by the candidate.
        needs_calibration: False; the candidate is made already.
    """

    query_only = False
    needs_calibration = False

    def __init__(self, reference: SentenceEncoder, candidate: LoadedCheckpoint) -> None:
        """Pair them; both keep their weights.

        Args:
            reference: the model at full precision.
            candidate: what it is compared with.
        """
        self._reference = reference
        self._candidate = candidate
        self._linears = find_linears([reference.module])
        self._reached: set[str] = set()
        self._active = False
        self._digest: str | None = None
        self.layers: Sequence[str] = candidate.stored.packed

    def encode(self, texts: Sequence[str], role: Role, batch_size: int) -> NDArray[np.float32]:
        """Embed texts by the model that is in place, float32 [n, dim]."""
        encoder = self._candidate.encoder if self._active else self._reference
        return encoder.encode(texts, role, batch_size)

    @property
    def fingerprint(self) -> str:
        """Digest of the reference's weights."""
        return weights_fingerprint([self._reference.module])

    def candidate_fingerprint(self) -> str:
        """Digest of all that decides the candidate's embeddings: weights as loaded, settings of the
        transformer, tokenizer, prompts, pooling, format, kernels and libraries.
        """
        if self._digest is None:
            candidate = self._candidate
            digest = hashlib.blake2b(digest_size=16)
            parts = {
                **encoder_parts(candidate.encoder),
                "format": candidate.checkpoint.method,
                "quantization": candidate.checkpoint.quantization,
                **self._libraries(),
                "kernels": self._kernels(),
                "settings": reading_digest([], [candidate.encoder.module]),
            }
            digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
            for name, tensor in sorted(candidate.encoder.module.state_dict().items()):
                _update(digest, name, tensor)
            self._digest = digest.hexdigest()
        return self._digest

    @property
    def device(self) -> torch.device:
        """Where the models run."""
        return next(self._reference.module.parameters()).device

    @property
    def runtime(self) -> dict[str, str]:
        """What decides the reference's embeddings beside weights and inputs, as for any pair."""
        first = next(self._reference.module.parameters())
        return runtime_of(self._linears[0].parameter if self._linears else first)

    @property
    def never_reached(self) -> list[str]:
        """Names of the reference's layers that the candidate packs and no observed pass used."""
        packed = set(self.layers)
        return [
            layer.name
            for layer in self._linears
            if _in_body(layer.name) in packed and layer.name not in self._reached
        ]

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Note which of the reference's layers the forward passes inside use."""
        with WeightUse(self._linears) as use:
            yield
        self._reached |= use.used

    def prepare(self, sample: Sample, *, root: Path | None, progress: Progress) -> None:
        """Nothing: the candidate was calibrated by whoever made it."""

    @contextmanager
    def candidate(self) -> Iterator[None]:
        """Inside, the candidate answers; on leaving, the reference again.

        Raises:
            RuntimeError: the candidate is in place already.
        """
        if self._active:
            raise RuntimeError("the candidate is in place already")
        self._active = True
        try:
            # kernels that choose or compile themselves at the first call say so on standard output
            with contextlib.redirect_stdout(sys.stderr):
                yield
        finally:
            self._active = False

    def bits(self) -> BitsReport:
        """Bits per weight of the candidate, counted from what is stored."""
        return self._candidate.stored.bits

    def describe(self) -> dict[str, Any]:
        """What a run records of the candidate, as JSON values."""
        return {
            **self._candidate.checkpoint.describe(),
            "dtype": str(floating_dtype(self._candidate.encoder)),
            "kernels": self._kernels(),
            "libraries": self._libraries(),
            "notes": list(self._candidate.notes),
        }

    def _kernels(self) -> dict[str, int]:
        """The classes that stand for the packed layers, and how often."""
        if self._onnx is not None:
            record = read_record(self._candidate.checkpoint.folder)
            packed = [one for one in record["layers"] if one["stored"].startswith("MatMulNBits")]
            return {f"MatMulNBits by {self._onnx.provider}": len(packed)}
        found: dict[str, int] = {}
        modules = {
            _in_body(name): module
            for name, module in self._candidate.encoder.module.named_modules()
        }
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
        packages, _ = NEEDED.get(self._candidate.checkpoint.method, ((), ""))
        return {package: _version(package) for package in packages}

    @property
    def _onnx(self) -> Any:
        """The graph that onnxruntime runs for the candidate; None if torch computes it."""
        if self._candidate.checkpoint.quantization.get("model_format") != "onnx":
            return None
        return self._candidate.encoder.model[0].auto_model


def _in_body(name: str) -> str:
    """A layer's name below its module of sentence-transformers, which keep theirs in 0.model."""
    return name.split(".", 2)[-1]


def _update(digest: Any, name: str, value: object) -> None:
    """Add a tensor, or what a packed one consists of."""
    if not isinstance(value, Tensor):
        return
    if hasattr(value, "__tensor_flatten__"):
        inner, settings = value.__tensor_flatten__()
        digest.update(f"{name}:{type(value).__name__}:{settings};".encode())
        for part in inner:
            _update(digest, f"{name}.{part}", getattr(value, part))
        return
    digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
    data = value.detach().cpu().contiguous().flatten()
    if data.numel():
        digest.update(data.view(torch.uint8).numpy().data)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
