"""An ONNX graph where a transformers model stands: its own tokens, pooling and prompts around onnxruntime.

Tokenization, prompts, pooling and normalization are those of sentence-transformers; what the graph gives are states
of tokens, finished embeddings or logits. No float weights of the transformer are loaded, there are none.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor
from transformers import PretrainedConfig
from transformers.utils.generic import ModelOutput

from quantdrift.base.errors import RunError
from quantdrift.base.extras import extras_named
from quantdrift.candidate.checkpoint import ForeignModule
from quantdrift.models.files.saved import RECORD, read_record

Given = Literal["last_hidden_state", "sentence_embedding", "logits"]
"""What a graph gives of a batch: states [batch, sequence, hidden], embeddings [batch, dim], or logits [batch, n]."""

ONNX_MODEL = "onnx/model.onnx"
"""Where sentence-transformers looks for it, too."""
_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_TYPES: Mapping[str, Any] = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}
DEADLINE = 600.0
"""Seconds that a graph may take for one batch."""


@dataclass
class _Outputs(ModelOutput):
    """The outputs of a graph for a batch, float32."""

    last_hidden_state: Tensor | None = None
    sentence_embedding: Tensor | None = None
    logits: Tensor | None = None


class OnnxStates(ForeignModule):
    """Stands where a transformers model stands, and runs an ONNX graph.

    Attributes:
        digest: uint8 [16], of the graph's files: the weights, as far as a fingerprint goes.
        given: what the graph gives.
    """

    digest: Tensor

    def __init__(
        self,
        graph: Path,
        digest: bytes,
        config: PretrainedConfig,
        device: torch.device | str,
        output: tuple[str, Given] = ("last_hidden_state", "last_hidden_state"),
        *,
        operators: Mapping[str, int],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Start onnxruntime on a graph, of which an output is read; `operators` stand for its quantized layers."""
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415 -- an optional extra without types

        super().__init__()
        self.config = config
        self.register_buffer("digest", torch.frombuffer(bytearray(digest), dtype=torch.uint8))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        providers = list(dict.fromkeys([place_of(device)[1], _CPU]))
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=providers)
        self._graph = graph
        self._output, self.given = output
        self.libraries = {"onnxruntime": str(onnxruntime.__version__)}
        self.provider = str(self._session.get_providers()[0])
        self.kernels = {f"{operator} by {self.provider}": n for operator, n in operators.items()}
        self.facts = {"provider": self.provider, "threads": torch.get_num_threads(), **(facts or {})}
        # a dynamic range is that of the whole batch
        self.by_batch = "dynamic" in self.facts.get("graph", {}).get("method", {})

    @property
    def device(self) -> torch.device:
        """The device that inputs are taken from and results are put on."""
        return self.digest.device

    def forward(self, **features: Any) -> _Outputs:
        """Return the outputs of the graph for a batch of tokens, float32."""
        feed = {value.name: self._fed(value.name, _TYPES[value.type], features) for value in self._session.get_inputs()}
        try:
            (given,) = self._run(feed)
        except RunError:
            raise
        except Exception as error:  # onnxruntime's own, one for each of its codes
            reason = " ".join(str(error).split())
            if "alloc" in reason.lower():
                raise MemoryError(reason) from error
            sizes = {name: list(value.shape) for name, value in feed.items()}
            raise RunError(f"onnxruntime cannot run {self._graph} on inputs of {sizes}: {reason[:400]}") from error
        return _Outputs(**{self.given: torch.from_numpy(given.astype(np.float32, copy=False)).to(self.device)})

    def _run(self, feed: Mapping[str, NDArray[Any]]) -> Any:
        """Run the graph; a loop in it may turn 2^62 times, so that it is stopped after DEADLINE."""
        import onnxruntime  # noqa: PLC0415 -- an optional extra

        options, late = onnxruntime.RunOptions(), threading.Event()

        def stop() -> None:
            late.set()
            options.terminate = True

        timer = threading.Timer(DEADLINE, stop)
        timer.daemon = True
        timer.start()
        try:
            return self._session.run([self._output], feed, options)
        except Exception as error:
            if late.is_set():
                raise RunError(
                    f"{self._graph} took more than {DEADLINE:g} s for one batch and was stopped; expected a graph that "
                    "ends. A smaller --batch-size makes a batch shorter"
                ) from error
            raise
        finally:
            timer.cancel()

    def _fed(self, name: str, kind: Any, features: Mapping[str, Any]) -> NDArray[Any]:
        """An input as the graph takes it; what the tokenizer does not give is what the model would take itself."""
        if (value := features.get(name)) is None:
            tokens = features["input_ids"]
            mask = features.get("attention_mask")
            mask = torch.ones_like(tokens) if mask is None else mask
            value = (mask.cumsum(dim=1) - 1).clamp(min=0) if name == "position_ids" else torch.zeros_like(tokens)
        return np.asarray(value.cpu().numpy().astype(kind))


def place_of(device: torch.device | str) -> tuple[str, str]:
    """Return where results are put, and what computes them."""
    import onnxruntime  # noqa: PLC0415 -- an optional extra

    on_cuda = torch.device(device).type == "cuda" and _CUDA in onnxruntime.get_available_providers()
    return (str(device), _CUDA) if on_cuda else ("cpu", _CPU)


def load_onnx(folder: str | Path, device: torch.device | str = "cpu") -> SentenceTransformer:
    """Load an ONNX candidate as a SentenceTransformer; all of its methods work but training."""
    folder = Path(os.path.expanduser(folder))
    with extras_named(needed_for=f"running the ONNX model in {folder}"):
        import onnxruntime  # noqa: F401, PLC0415 -- an optional extra
    if not (folder / ONNX_MODEL).is_file():
        raise RunError(
            f"expected a folder with {ONNX_MODEL} in it, got {folder}. One is written "
            "by: quantdrift quantize SPEC -o FOLDER --format onnx"
        )
    record = read_record(folder) if (folder / RECORD).is_file() else None
    digest = file_digest(folder)
    if record is not None and digest.hex() != (wanted := record.get("onnx", {}).get("digest")):
        raise RunError(
            f"{folder / ONNX_MODEL} is not what {RECORD} beside it was written for (digest {digest.hex()}, expected "
            f"{wanted}): it is damaged or was changed. Write it again with: quantdrift quantize SPEC -o FOLDER "
            "--format onnx"
        )
    stored = [layer["stored"] for layer in (record or {}).get("layers", ())]
    operators = {"MatMulNBits": sum(how.startswith("MatMulNBits") for how in stored)}

    def states(config: PretrainedConfig) -> OnnxStates:
        return OnnxStates(folder / ONNX_MODEL, digest, config, device, operators=operators)

    model: SentenceTransformer = around(states, folder, device)
    return model


def around(
    states: Callable[[PretrainedConfig], OnnxStates],
    folder: Path,
    device: torch.device | str,
    kind: Any = SentenceTransformer,
) -> Any:
    """A SentenceTransformer or CrossEncoder of a folder with modules.json, whose transformer is a graph."""
    # no layer of a graph can be computed in float32 for itself
    more: dict[str, Any] = {"keep_in_fp32_modules": []} if hasattr(kind, "set_keep_in_fp32_modules") else {}

    class Graph(Transformer):
        def _load_model(self, *args: Any, **_kwargs: Any) -> Any:
            return states(next(value for value in args if isinstance(value, PretrainedConfig)))

    class Model(kind):  # type: ignore[misc]  # of a class that is a parameter
        def _load_module_class_from_ref(self, class_ref: str, *args: Any, **kwargs: Any) -> Any:
            module = super()._load_module_class_from_ref(class_ref, *args, **kwargs)
            return Graph if module is Transformer else module

    return Model(str(folder), device=place_of(device)[0], **more).eval()


def file_digest(folder: Path) -> bytes:
    """A digest of the graph, and of the weights where they lie beside it: 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    graph = folder / ONNX_MODEL
    for file in sorted(graph.parent.glob(f"{graph.name}*")):
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.digest()
