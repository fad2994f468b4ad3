"""An ONNX graph where a transformers model stands: its own tokens, pooling and prompts around onnxruntime.

Tokenization, prompts, pooling and normalization are those of sentence-transformers; what the graph gives are states
of tokens, finished embeddings or logits. No float weights of the transformer are loaded, there are none.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.utils.generic import ModelOutput

from quantdrift.base.display import shown
from quantdrift.base.errors import RunError, UnsupportedError
from quantdrift.base.extras import extras_named
from quantdrift.checkpoints.named import first_line
from quantdrift.checkpoints.onnx_graph import OnnxGraph
from quantdrift.checkpoints.saved import ONNX_MODEL, RECORD, read_record

Given = Literal["last_hidden_state", "sentence_embedding", "logits"]
"""What a graph gives of a batch: states [batch, sequence, hidden], embeddings [batch, dim], or logits [batch, n]."""

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
_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids", "pixel_values"})
_NAMES: Mapping[str, Given] = {
    "sentence_embedding": "sentence_embedding",
    "last_hidden_state": "last_hidden_state",
    "token_embeddings": "last_hidden_state",
}
"""Outputs of encoders by name; the first that a graph has is taken."""


@dataclass
class _Outputs(ModelOutput):
    """What a graph gives of a batch, float32."""

    last_hidden_state: Tensor | None = None
    sentence_embedding: Tensor | None = None
    logits: Tensor | None = None


class OnnxStates(nn.Module):
    """Stands where a transformers model stands, and runs an ONNX graph.

    Attributes:
        config: of the model that the graph was made of.
        digest: uint8 [16], of the graph's files: the weights, as far as a fingerprint goes.
        given: what the graph gives.
        provider: what of onnxruntime computes, e.g. "CPUExecutionProvider".
        threads: it may use.
        version: of onnxruntime.
    """

    digest: Tensor

    def __init__(
        self,
        graph: Path,
        digest: bytes,
        config: PretrainedConfig,
        device: torch.device | str,
        output: tuple[str, Given] = ("last_hidden_state", "last_hidden_state"),
    ) -> None:
        """Start onnxruntime on a graph, of which an output is read."""
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415 -- an optional extra without types

        super().__init__()
        self.config = config
        self.register_buffer("digest", torch.frombuffer(bytearray(digest), dtype=torch.uint8))
        self.threads = torch.get_num_threads()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        providers = list(dict.fromkeys([_place(device)[1], _CPU]))
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=providers)
        self._graph = graph
        self._output, self.given = output
        self.version: str = onnxruntime.__version__
        self.provider: str = self._session.get_providers()[0]

    @property
    def device(self) -> torch.device:
        """Where inputs are taken from and results are put."""
        return self.digest.device

    def forward(self, **features: Any) -> _Outputs:
        """What the graph gives of a batch of tokens, float32."""
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
        if (found := features.get(name)) is None:
            tokens = features["input_ids"]
            mask = features.get("attention_mask")
            mask = torch.ones_like(tokens) if mask is None else mask
            found = (mask.cumsum(dim=1) - 1).clamp(min=0) if name == "position_ids" else torch.zeros_like(tokens)
        return np.asarray(found.cpu().numpy().astype(kind))


def _place(device: torch.device | str) -> tuple[str, str]:
    """Where results are put, and what computes them."""
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
    return around(
        lambda config: OnnxStates(folder / ONNX_MODEL, _checked_digest(folder), config, device), folder, device
    )


def around(
    states: Callable[[PretrainedConfig], OnnxStates], folder: Path, device: torch.device | str
) -> SentenceTransformer:
    """A SentenceTransformer of a folder with modules.json, whose transformer is a graph."""

    def load(_usual: Callable[..., Any], _name: str, *args: Any, **_kwargs: Any) -> OnnxStates:
        return states(next(one for one in args if isinstance(one, PretrainedConfig)))

    return with_transformer(load, folder, device=_place(device)[0]).eval()


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


# --- a graph that somebody else wrote -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """How a graph is fed and read.

    Attributes:
        output: its name, and what it is.
        notes: what a run says of it, one sentence each.
    """

    output: tuple[str, Given]
    notes: tuple[str, ...] = ()


def signature(graph: OnnxGraph, *, classifies: bool = False) -> Signature:
    """What a graph takes and gives, by names, else by shapes; UnsupportedError if that cannot be told."""
    _check_inputs(graph)
    notes = []
    if "position_ids" in graph.inputs:
        notes.append(f"{graph.file.name} asks for positions: they are counted from 0, padding left out")
    if any(layer.how == "dynamic" for layer in graph.packed):
        notes.append(
            f"{graph.file.name} quantizes its activations by the range of a whole batch: what else is in a batch "
            "changes what a text gets. --batch-size 1 measures it text by text"
        )
    if classifies:
        if "logits" not in graph.outputs:
            raise UnsupportedError(f"{graph.file} gives {_listed(graph.outputs)}; expected logits, as classifiers do")
        return Signature(output=("logits", "logits"), notes=tuple(notes))
    for name, given in _NAMES.items():
        if name in graph.outputs:
            if given == "sentence_embedding":
                notes.append(f"{graph.file.name} pools by itself: its sentence_embedding is used as it is")
            return Signature(output=(name, given), notes=tuple(notes))
    if "logits" in graph.outputs:
        raise UnsupportedError(
            f"{graph.file} gives logits, and these data take embeddings; expected last_hidden_state or "
            "sentence_embedding. A classifier takes classification data (a folder with test.jsonl)"
        )
    ranks: tuple[tuple[int, Given, str], ...] = (
        (3, "last_hidden_state", "[batch, sequence, hidden]: the states of tokens"),
        (2, "sentence_embedding", "[batch, hidden]: an embedding, used as it is"),
    )
    for rank, given, meaning in ranks:
        found = [name for name, sizes in graph.outputs.items() if len(sizes) == rank]
        if len(found) == 1:
            notes.append(f"the output {shown(found[0])} of {graph.file.name} is read by its shape, {meaning}")
            return Signature(output=(found[0], given), notes=tuple(notes))
        if found:
            break
    raise UnsupportedError(
        f"{graph.file} gives {_listed(graph.outputs)}; expected one called last_hidden_state, token_embeddings, "
        "sentence_embedding or logits, or one of the shape [batch, sequence, hidden] or [batch, hidden]"
    )


def _check_inputs(graph: OnnxGraph) -> None:
    unknown = {name: sizes for name, sizes in graph.inputs.items() if name not in _INPUTS}
    if unknown or not graph.inputs:
        cached = "; it was exported with a cache for generation, which an encoder has not" * any(
            name.startswith("past_key") for name in unknown
        )
        raise UnsupportedError(
            f"{graph.file} takes {_listed(unknown)}, expected {', '.join(sorted(_INPUTS))} and no more{cached}"
        )
    for name, sizes in graph.inputs.items():
        free = sizes[:1] if name == "pixel_values" else sizes
        if any(size is not None for size in free):
            raise UnsupportedError(
                f"{graph.file} takes {name} of the fixed size {list(sizes)}; expected a graph exported with free batch "
                "and sequence sizes (dynamic axes)"
            )


def _listed(values: Mapping[str, tuple[int | None, ...]]) -> str:
    """Names with their shapes, the first few."""
    some = [
        f"{shown(name)} [{', '.join('?' if size is None else str(size) for size in sizes[:8])}]"
        for name, sizes in list(values.items())[:4]
    ]
    return ", ".join(some) + (f" and {len(values) - len(some)} more" if len(values) > len(some) else "") or "nothing"


def loaded_states(
    graph: OnnxGraph, output: tuple[str, Given], config: PretrainedConfig, device: torch.device | str
) -> OnnxStates:
    """Start onnxruntime on a graph of somebody else; what it says of one that it cannot run becomes one line."""
    try:
        states = OnnxStates(graph.file, graph.digest(), config, device, output)
    except Exception as error:  # onnxruntime's own, one for each of its codes
        raise UnsupportedError(f"onnxruntime cannot run {graph.file}: {first_line(error)[:400]}") from error
    states.to(_place(device)[0])
    return states


def use_as_it_is(model: Any) -> None:
    """Let a SentenceTransformer end with its transformer, which gives finished embeddings."""
    first: Any = model[0]
    for name in list(model._modules)[1:]:
        del model._modules[name]
    first.modality_config = {
        name: {**how, "method_output_name": "sentence_embedding"} for name, how in first.modality_config.items()
    }
    first.module_output_name = "sentence_embedding"


# --- what a run records ---------------------------------------------------------------------------


def graph_kernels(states: OnnxStates, graph: OnnxGraph) -> dict[str, int]:
    """The operators that stand for the quantized layers, and how often."""
    count = Counter(layer.operator for layer in graph.packed)
    return {f"{operator} by {states.provider}": n for operator, n in sorted(count.items())}


def graph_facts(states: OnnxStates, graph: OnnxGraph | None) -> dict[str, Any]:
    """Who computes, and how a graph of somebody else is quantized, as JSON values."""
    facts: dict[str, Any] = {"provider": states.provider, "threads": states.threads}
    if graph is not None:
        described = graph.describe()
        facts |= {"dtype": graph.dtype, "nominal_bits": described.get("bits"), "graph": described}
    return facts
