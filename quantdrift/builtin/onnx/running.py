"""An ONNX graph in place of a transformers model, run by onnxruntime.

sentence-transformers does tokenization, prompts, pooling and normalization; the graph computes states of tokens,
finished embeddings or logits. The transformer's float weights are not loaded: the folder has none.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor
from transformers import PretrainedConfig
from transformers.utils.generic import ModelOutput

from quantdrift.base.errors import RunError
from quantdrift.candidate.checkpoint import ForeignModule

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
    """The output of a graph for a batch, float32: states [batch, sequence, hidden], embeddings or logits [batch, n]."""

    last_hidden_state: Tensor | None = None
    sentence_embedding: Tensor | None = None
    logits: Tensor | None = None


class OnnxStates(ForeignModule):
    """Runs an ONNX graph in place of a transformers model.

    Attributes:
        digest: uint8 [16], digest of the graph's files, which stands for the weights in a fingerprint.
    """

    digest: Tensor

    def __init__(
        self,
        graph: Path,
        digest: str,
        config: PretrainedConfig,
        device: torch.device | str,
        output: str,
        *,
        operators: Mapping[str, int],
        facts: Mapping[str, Any],
    ) -> None:
        """Start onnxruntime on a graph to compute one output; `operators` counts its quantized layers."""
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415 -- an optional extra without types

        super().__init__()
        self.config = config
        self.register_buffer("digest", torch.frombuffer(bytearray.fromhex(digest), dtype=torch.uint8))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        providers = list(dict.fromkeys([place_of(device)[1], _CPU]))
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=providers)
        self._graph = graph
        self._output = output
        self.libraries = {"onnxruntime": str(onnxruntime.__version__)}
        provider = str(self._session.get_providers()[0])
        self.kernels = {f"{operator} by {provider}": n for operator, n in operators.items()}
        self.facts = {"provider": provider, "threads": torch.get_num_threads(), **facts}
        # dynamic ranges are taken over the whole batch
        self.by_batch = "dynamic" in self.facts.get("graph", {}).get("method", {})

    @property
    def device(self) -> torch.device:
        """The device of inputs and outputs."""
        return self.digest.device

    def forward(self, **features: Any) -> _Outputs:
        """Run the graph on a batch of tokens."""
        feed = {value.name: self._fed(value.name, _TYPES[value.type], features) for value in self._session.get_inputs()}
        try:
            (output,) = self._run(feed)
        except RunError:
            raise
        except Exception as error:  # onnxruntime has an exception class for each of its codes
            reason = " ".join(str(error).split())
            if "alloc" in reason.lower():
                raise MemoryError(reason) from error
            sizes = {name: list(value.shape) for name, value in feed.items()}
            raise RunError(f"onnxruntime cannot run {self._graph} on inputs of {sizes}: {reason[:400]}") from error
        name = "last_hidden_state" if self._output == "token_embeddings" else self._output
        return _Outputs(**{name: torch.from_numpy(output.astype(np.float32, copy=False)).to(self.device)})

    def _run(self, feed: Mapping[str, NDArray[Any]]) -> Any:
        """Run the graph, and stop it after DEADLINE: a loop in it may turn 2^62 times."""
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
        """Return an input as the graph takes it; what the tokenizer does not give gets the model's own default."""
        if (value := features.get(name)) is None:
            tokens = features["input_ids"]
            mask = features.get("attention_mask")
            mask = torch.ones_like(tokens) if mask is None else mask
            value = (mask.cumsum(dim=1) - 1).clamp(min=0) if name == "position_ids" else torch.zeros_like(tokens)
        return np.asarray(value.cpu().numpy().astype(kind))


def place_of(device: torch.device | str) -> tuple[str, str]:
    """Return the device of the results, and the provider that computes them."""
    import onnxruntime  # noqa: PLC0415 -- an optional extra

    on_cuda = torch.device(device).type == "cuda" and _CUDA in onnxruntime.get_available_providers()
    return (str(device), _CUDA) if on_cuda else ("cpu", _CPU)


def around(
    states: Callable[[PretrainedConfig], OnnxStates], folder: Path, device: torch.device | str, kind: Any
) -> Any:
    """A SentenceTransformer or CrossEncoder of a folder with modules.json, whose transformer is a graph."""
    # a graph has no single layers that could be kept in float32
    more: dict[str, Any] = {"keep_in_fp32_modules": []} if hasattr(kind, "set_keep_in_fp32_modules") else {}

    class Graph(Transformer):
        def _load_model(self, *args: Any, **_kwargs: Any) -> Any:
            return states(next(value for value in args if isinstance(value, PretrainedConfig)))

    class Model(kind):  # type: ignore[misc]  # the base class is a parameter
        def _load_module_class_from_ref(self, class_ref: str, *args: Any, **kwargs: Any) -> Any:
            module = super()._load_module_class_from_ref(class_ref, *args, **kwargs)
            return Graph if module is Transformer else module

    return Model(str(folder), device=place_of(device)[0], **more).eval()
