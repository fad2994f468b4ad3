"""A saved ONNX candidate as a sentence encoder: sentence-transformers around onnxruntime.

Tokenization, prompts, pooling and normalization are those of sentence-transformers; the states of the tokens come
from the graph. No float weights of the transformer are loaded, there are none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput

from quantdrift.errors import RunError
from quantdrift.extras import extras_named
from quantdrift.models.saved import ONNX_MODEL, RECORD, read_record

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


class OnnxStates(nn.Module):
    """Stands where a transformers model stands, and runs an ONNX graph.

    Attributes:
        config: of the model that the graph was made of.
        digest: uint8 [16], of the graph's files: the weights, as far as a fingerprint goes.
        provider: what of onnxruntime computes, e.g. "CPUExecutionProvider".
        version: of onnxruntime.
    """

    digest: Tensor

    def __init__(self, folder: Path, config: PretrainedConfig, provider: str) -> None:
        """Start onnxruntime."""
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415 -- an optional extra without types

        super().__init__()
        self.config = config
        self.register_buffer("digest", torch.frombuffer(bytearray(_checked_digest(folder)), dtype=torch.uint8))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        providers = list(dict.fromkeys([provider, _CPU]))
        self._session = onnxruntime.InferenceSession(str(folder / ONNX_MODEL), options, providers=providers)
        self.version: str = onnxruntime.__version__
        self.provider: str = self._session.get_providers()[0]

    @property
    def device(self) -> torch.device:
        """Where inputs are taken from and results are put."""
        return self.digest.device

    def forward(self, **features: Any) -> BaseModelOutput:
        """The last hidden state of a batch of tokens, float32 [batch, sequence, hidden]."""
        feed = {value.name: features[value.name].cpu().numpy() for value in self._session.get_inputs()}
        (states,) = self._session.run(None, feed)
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states).to(self.device))


def load_onnx(folder: str | Path, device: torch.device | str = "cpu") -> SentenceTransformer:
    """Load an ONNX candidate as a SentenceTransformer; all of its methods work but training."""
    folder = Path(os.path.expanduser(folder))
    with extras_named(needed_for=f"running the ONNX model in {folder}"):
        import onnxruntime  # noqa: PLC0415 -- an optional extra
    if not (folder / ONNX_MODEL).is_file():
        raise RunError(
            f"expected a folder with {ONNX_MODEL} in it, got {folder}. One is written "
            "by: quantdrift quantize SPEC -o FOLDER --format onnx"
        )
    on_cuda = torch.device(device).type == "cuda" and _CUDA in onnxruntime.get_available_providers()
    where, provider = (str(device), _CUDA) if on_cuda else ("cpu", _CPU)

    def load(_usual: Callable[..., Any], name: str, *args: Any, **_kwargs: Any) -> OnnxStates:
        return OnnxStates(Path(name), next(one for one in args if isinstance(one, PretrainedConfig)), provider)

    return with_transformer(load, folder, device=where).eval()


def file_digest(folder: Path) -> bytes:
    """A digest of the graph, and of the weights where they lie beside it: 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    graph = folder / ONNX_MODEL
    for file in sorted(graph.parent.glob(f"{graph.name}*")):
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.digest()


def _checked_digest(folder: Path) -> bytes:
    """The digest; where there is a record, it must be the one that was written down."""
    found = file_digest(folder)
    if (folder / RECORD).is_file():
        wanted = read_record(folder).get("onnx", {}).get("digest")
        if found.hex() != wanted:
            raise RunError(
                f"{folder / ONNX_MODEL} is not what {RECORD} beside it was written for (digest {found.hex()}, expected "
                f"{wanted}): it is damaged or was changed. Write it again with: quantdrift quantize SPEC -o FOLDER "
                "--format onnx"
            )
    return found


def with_transformer(load: Callable[..., nn.Module], folder: Path, **kwargs: Any) -> SentenceTransformer:
    """A SentenceTransformer whose transformer `load` makes, from the usual loader and its arguments."""

    class Own(Transformer):
        def _load_model(self, *args: Any, **kwargs: Any) -> Any:
            return load(super()._load_model, *args, **kwargs)

    class Model(SentenceTransformer):
        def _load_module_class_from_ref(self, class_ref: str, *args: Any, **kwargs: Any) -> Any:
            found = super()._load_module_class_from_ref(class_ref, *args, **kwargs)
            return Own if found is Transformer else found

    return Model(str(folder), **kwargs)
