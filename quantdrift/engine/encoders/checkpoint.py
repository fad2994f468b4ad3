"""A checkpoint as an embedding model that can stand beside the reference."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer

from quantdrift.base.errors import UnsupportedError
from quantdrift.base.extras import version_of
from quantdrift.checkpoints.checkpoint import NEEDED, Checkpoint, refuse_missing
from quantdrift.checkpoints.named import ModelSource
from quantdrift.checkpoints.onnx_graph import OnnxGraph, graphs_in, read_graph
from quantdrift.checkpoints.saved import check_weights, read_record
from quantdrift.engine.bits import BitsReport
from quantdrift.engine.encoders.classifier import Classifier, load_classifier
from quantdrift.engine.encoders.loading import loading
from quantdrift.engine.encoders.onnx import (
    OnnxStates,
    around,
    graph_facts,
    graph_kernels,
    loaded_states,
    signature,
    use_as_it_is,
    with_transformer,
)
from quantdrift.engine.encoders.sentence import (
    SentenceEncoder,
    differences,
    encoder_of,
    encoder_parts,
    floating_dtype,
    load_encoder,
    reading_digest,
)
from quantdrift.engine.encoders.stored import StoredLayers, stored_gguf, stored_layers, stored_tensors
from quantdrift.engine.quantizers.libraries import import_gptqmodel, silenced
from quantdrift.engine.weights import add_tensor, weights_fingerprint

_TAKEN = "pooling, normalization, prompts and length limit"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model")
_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_BLOCK = re.compile(r"(.+?)\.\d+\.(.+)")


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredCandidate(SentenceEncoder):
    """A checkpoint that is loaded, as one side of a comparison; its `layers` are those that are packed.

    Attributes:
        checkpoint: where it came from.
        stored_bits: what it costs in bits per weight, counted in its files.
        graph: of a candidate that somebody else exported to ONNX.
    """

    checkpoint: Checkpoint
    stored_bits: BitsReport
    graph: OnnxGraph | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all that decides its embeddings: weights as loaded, settings of the transformer, tokenizer,
        prompts, pooling, format, kernels and libraries.
        """
        if self.checkpoint.method == "quantdrift" and self._onnx is None:
            # what the run of its scheme calls it: its settings are those of the model, as scheme.json sees to
            return weights_fingerprint(self.modules)
        digest = hashlib.blake2b(digest_size=16)
        parts = {
            **encoder_parts(self),
            "format": self.checkpoint.method,
            "quantization": self.checkpoint.quantization,
            **self._libraries(),
            "kernels": self._kernels(),
            "settings": reading_digest([], self.modules),
        }
        digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            add_tensor(digest, name, tensor)
        return digest.hexdigest()

    def bits(self) -> BitsReport:
        """Bits per weight, counted from what is stored."""
        return self.stored_bits

    def identify(self) -> dict[str, Any]:
        """What a run records of where it came from, as JSON values."""
        return {**self.checkpoint.identify(), "fingerprint": self.fingerprint}

    def describe(self) -> dict[str, Any]:
        """What a run records of how it is quantized, as JSON values."""
        return {
            **self.checkpoint.describe(),
            "dtype": str(floating_dtype(self)),
            **({} if self._onnx is None else graph_facts(self._onnx, self.graph)),
            "kernels": self._kernels(),
            "libraries": self._libraries(),
            "notes": list(self.notes),
        }

    @property
    def _onnx(self) -> OnnxStates | None:
        """The graph that onnxruntime runs for the candidate; None if torch computes it."""
        body = self.model[0].auto_model
        return body if isinstance(body, OnnxStates) else None

    def _kernels(self) -> dict[str, int]:
        """The classes that stand for the packed layers, and how often."""
        if self._onnx is not None and self.graph is not None:
            return graph_kernels(self._onnx, self.graph)
        if self._onnx is not None:
            record = read_record(self.checkpoint.folder)
            packed = [one for one in record["layers"] if one["stored"].startswith("MatMulNBits")]
            return {f"MatMulNBits by {self._onnx.provider}": len(packed)}
        found: dict[str, int] = {}
        modules = {_in_body(name): module for name, module in self.module.named_modules()}
        for module in (modules[name] for name in self.layers or () if name in modules):
            weight = getattr(module, "weight", None)
            special = isinstance(weight, Tensor) and type(weight) not in {Tensor, nn.Parameter}
            kind = type(module).__name__ + (f" of {type(weight).__name__}" if special else "")
            found[kind] = found.get(kind, 0) + 1
        return found

    def _libraries(self) -> dict[str, str]:
        if self._onnx is not None:
            return {"onnxruntime": str(self._onnx.version)}
        packages, _ = NEEDED.get(self.checkpoint.method, ((), ""))
        return {package: version_of(package) or "not installed" for package in packages}


def _in_body(name: str) -> str:
    """A layer's name below its module of sentence-transformers, which keep theirs in 0.model."""
    return name.split(".", 2)[-1]


# --- loading --------------------------------------------------------------------------------------


def load_checkpoint(
    checkpoint: Checkpoint, reference: SentenceEncoder | None, *, device: torch.device
) -> StoredCandidate:
    """Load a checkpoint as the candidate of a reference.

    A folder that does not say how tokens become an embedding (no modules.json), and a GGUF file, take pooling,
    normalization, prompts and length limit from the reference; what has no tokenizer takes that, too.
    """
    refuse_missing(checkpoint)
    if reference is None and not checkpoint.has_modules:
        raise UnsupportedError(
            f"{checkpoint.name} says nothing of {_TAKEN}, and a server cannot lend them; expected "
            "a folder with modules.json, as SentenceTransformer.save_pretrained writes it"
        )
    source = candidate_source(checkpoint)
    said: tuple[str, ...] = ()
    what = f"checkpoint (format {checkpoint.method})"
    with loading(source, what) as told, _process_undisturbed(checkpoint):
        graph = None
        if checkpoint.onnx is not None:
            graph, model, said = _from_graph(checkpoint, reference, device)
            stored = graph_layers(graph)
        elif checkpoint.method == "quantdrift":
            model, stored, said = _own(checkpoint, source, device)
        elif checkpoint.gguf is not None:
            body = _gguf_body(checkpoint)
            stored = stored_gguf(checkpoint.folder / checkpoint.gguf, body)
            model = _dressed(checkpoint, reference, body, device)
        else:
            model, stored = _from_folder(checkpoint, reference, device)
    encoder = encoder_of(model.eval(), source)
    apart = [] if reference is None else differences(reference, encoder)
    if graph is not None and len(model) == 1:  # what the graph does behind its states cannot be seen
        apart = [note for note in apart if "differ in pooling" not in note]
    notes = [*told.notes, *said, *([] if reference is None else _notes(checkpoint, reference)), *apart]
    return StoredCandidate(
        model=model,
        source=source,
        similarity=encoder.similarity,
        notes=tuple(notes),
        layers=stored.packed,
        checkpoint=checkpoint,
        stored_bits=stored.bits,
        graph=graph,
    )


def candidate_source(checkpoint: Checkpoint) -> ModelSource:
    """Where it lies, as loaders take it: what was on a hub is here now."""
    return ModelSource(
        name=checkpoint.name, canonical=checkpoint.canonical, kind="local", location=str(checkpoint.folder)
    )


@contextmanager
def _process_undisturbed(checkpoint: Checkpoint) -> Iterator[None]:
    """Undo what libraries do to the process, so that the reference computes as in any other run.

    Some greet on standard output, where a record may be expected, and some set the precision of products in float32.
    """
    precision = torch.get_float32_matmul_precision()
    try:
        with ExitStack() as stack:
            stack.enter_context(redirect_stdout(io.StringIO()))
            if "gptqmodel" in NEEDED.get(checkpoint.method, ((), ""))[0]:
                stack.enter_context(silenced(import_gptqmodel()[1]))
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def _own(
    checkpoint: Checkpoint, source: ModelSource, device: torch.device
) -> tuple[Any, StoredLayers, tuple[str, ...]]:
    """What `quantdrift quantize` wrote, in either of its formats."""
    record = read_record(checkpoint.folder)
    check_weights(checkpoint.folder, record)
    names = tuple(_in_body(layer["name"]) for layer in record["layers"])
    bits = BitsReport(**checkpoint.quantization["bits_per_weight"])
    stored = StoredLayers(packed=names, plain=(), missing=(), bits=bits)
    loaded = load_encoder(source, device=device, dtype="auto")
    return loaded.model, stored, loaded.notes


def _from_graph(
    checkpoint: Checkpoint, reference: SentenceEncoder | None, device: torch.device
) -> tuple[OnnxGraph, Any, tuple[str, ...]]:
    """The model around a graph that somebody else wrote, and what a run says of it."""
    graph = read_graph(checkpoint.folder / str(checkpoint.onnx))
    how = signature(graph)

    def states(config: Any) -> OnnxStates:
        return loaded_states(graph, how.output, config, device)

    if checkpoint.has_modules:
        model: Any = around(states, checkpoint.folder, device)
    else:
        config = AutoConfig.from_pretrained(checkpoint.body, trust_remote_code=False)
        model = _dressed(checkpoint, reference, states(config), device)
    if how.output[1] == "sentence_embedding":
        use_as_it_is(model)
    return graph, model, how.notes


def graph_layers(graph: OnnxGraph) -> StoredLayers:
    """The layers of a graph, by how it stores them."""
    return StoredLayers(
        packed=tuple(layer.name for layer in graph.packed),
        plain=tuple(layer.name for layer in graph.layers if not layer.how),
        missing=(),
        bits=BitsReport(**graph.bits()),
    )


def _from_folder(
    checkpoint: Checkpoint, reference: SentenceEncoder | None, device: torch.device
) -> tuple[Any, StoredLayers]:
    """The model of a folder that transformers reads, and how it is stored."""
    empty, tensors = _empty_body(checkpoint), stored_tensors(checkpoint.body)
    stored = stored_layers(tensors, empty)
    quantization = completed(checkpoint, stored)
    config = AutoConfig.from_pretrained(checkpoint.body, trust_remote_code=False)
    if quantization:
        config.quantization_config = quantization

    def load(usual: Callable[..., Any], *args: Any, **kwargs: Any) -> nn.Module:
        body: nn.Module = usual(*args, **kwargs)
        return body

    on_kernels = checkpoint.method != "none" and device.type != "cpu"
    kwargs: dict[str, Any] = {"dtype": "auto", **({"device_map": str(device)} if on_kernels else {})}
    if checkpoint.has_modules:
        model = with_transformer(
            load,
            checkpoint.folder,
            device=None if on_kernels else str(device),  # kernels are chosen while it is loaded
            model_kwargs=kwargs,
            config_kwargs={"quantization_config": quantization} if quantization else {},
        )
        stored = stored_layers(tensors, empty, others=list(model.children())[1:])
    else:
        usual = partial(AutoModel.from_pretrained, checkpoint.folder, config=config, trust_remote_code=False)
        model = _dressed(checkpoint, reference, load(usual, **kwargs), device)
    return model, stored


def _empty_body(checkpoint: Checkpoint) -> nn.Module:
    """The transformer without weights and unquantized: names and shapes of its layers."""
    config = AutoConfig.from_pretrained(checkpoint.body, trust_remote_code=False)
    architecture = next(iter(getattr(config, "architectures", None) or []), "")
    if architecture.endswith(_HEADS):
        raise UnsupportedError(
            f"{checkpoint.name} is a {architecture}, not an embedding model: its scores are not made of embeddings"
        )
    with torch.device("meta"):
        body: nn.Module = AutoModel.from_config(config)  # type: ignore[no-untyped-call]  # untyped
    return body


def completed(checkpoint: Checkpoint, stored: StoredLayers) -> dict[str, Any]:
    """The quantization_config that transformers needs to load what is stored."""
    quantization = dict(checkpoint.quantization)
    if bool(stored.packed) != (checkpoint.method != "none"):
        says = (
            f"a quantization_config ({checkpoint.method}), but no packed linear layer"
            if quantization
            else f"packed layers ({stored.packed[0]} ...), but no quantization_config"
        )
        raise UnsupportedError(
            f"{checkpoint.body} holds {says}; expected a folder that save_pretrained of "
            "transformers wrote, or a config.json that says how the weights are packed"
        )
    if checkpoint.method == "awq":
        quantization["modules_to_not_convert"] = [*stored.plain, *stored.missing] or None
    if checkpoint.method == "gptq" and not quantization.get("block_name_to_quantize"):
        found = [_BLOCK.fullmatch(name) for name in stored.packed]
        blocks = {match[1] for match in found if match}
        if len(blocks) != 1 or not all(found):
            raise UnsupportedError(
                f"{checkpoint.name} packs layers outside of one list of blocks; optimum loads GPTQ within one only"
            )
        inside = dict.fromkeys(match[2] for match in found if match)
        quantization |= {
            "block_name_to_quantize": blocks.pop(),
            "modules_in_block_to_quantize": [[name] for name in inside],
        }
    return quantization


def _gguf_body(checkpoint: Checkpoint) -> nn.Module:
    """The transformer of a GGUF file, its weights dequantized."""
    import transformers  # noqa: PLC0415 -- takes seconds to import

    place: dict[str, Any] = {"pretrained_model_name_or_path": checkpoint.folder, "gguf_file": checkpoint.gguf}
    # Blocks are unpacked by the names that weights have below a language model's head.
    with_head = type(AutoConfig.from_pretrained(**place)) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if hasattr(transformers, "GgufConfig"):  # not in every version that is allowed
        place["quantization_config"] = transformers.GgufConfig(dequantize=True)
    loader: Any = transformers.AutoModelForCausalLM if with_head else AutoModel
    model = loader.from_pretrained(**place, dtype="auto")
    body: nn.Module = model.base_model if with_head else model
    return body


# --- classifiers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredClassifier(Classifier):
    """A classifier that somebody else made, as one side of a comparison."""

    checkpoint: Checkpoint
    stored_bits: BitsReport
    graph: OnnxGraph | None = None

    @property
    def fingerprint(self) -> str:
        """Digest of all that decides its logits: weights, settings, tokenizer, and what runs a graph."""
        parts = [weights_fingerprint(self.modules), self.description, *self.classes]
        if isinstance(self.module, OnnxStates):
            parts += [self.module.version, self.module.provider]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def bits(self) -> BitsReport:
        """Bits per weight, counted from what is stored."""
        return self.stored_bits

    def identify(self) -> dict[str, Any]:
        """What a run records of where it came from, as JSON values."""
        return {**self.checkpoint.identify(), "fingerprint": self.fingerprint}

    def describe(self) -> dict[str, Any]:
        """What a run records of how it is quantized, as JSON values."""
        described = {**self.checkpoint.describe(), "notes": list(self.notes)}
        if isinstance(self.module, OnnxStates) and self.graph is not None:
            described |= graph_facts(self.module, self.graph)
            described |= {
                "kernels": graph_kernels(self.module, self.graph),
                "libraries": {"onnxruntime": self.module.version},
            }
        return described


def load_stored_classifier(checkpoint: Checkpoint, *, device: torch.device) -> StoredClassifier:
    """Load a classifier as the candidate of another: an ONNX graph with logits, or one that is not quantized."""
    source, graph = candidate_source(checkpoint), None
    notes: tuple[str, ...] = ()
    if checkpoint.onnx is not None:
        graph = read_graph(checkpoint.folder / checkpoint.onnx)
        how = signature(graph, classifies=True)
        notes, packed = how.notes, graph_layers(graph)
        found = load_classifier(
            source, device=device, graph=lambda config: loaded_states(graph, how.output, config, device)
        )
    elif checkpoint.method == "none":
        found = load_classifier(source, device=device, dtype="auto")
        packed = stored_layers(stored_tensors(checkpoint.body), found.module)
    else:
        raise UnsupportedError(
            f"{checkpoint.name} is a classifier quantized by {checkpoint.method}; expected an ONNX model with logits, "
            "or weights that are not quantized"
        )
    parts = {field.name: getattr(found, field.name) for field in fields(Classifier)}
    return StoredClassifier(
        **{**parts, "notes": (*found.notes, *notes), "layers": packed.packed},
        checkpoint=checkpoint,
        stored_bits=packed.bits,
        graph=graph,
    )


# --- what a candidate takes from its reference, and in what else they differ ----------------------


def _dressed(checkpoint: Checkpoint, reference: SentenceEncoder | None, body: Any, device: torch.device) -> Any:
    """The reference's modules, which stay as they are, around another transformer."""
    assert reference is not None  # one that can lend nothing was refused
    original: Any = _body_of(reference.model)
    here, there = (
        {
            "kind": one.config.model_type if isinstance(body, OnnxStates) else type(one).__name__,
            **{key: getattr(one.config, key, None) for key in ("hidden_size", "vocab_size")},
        }
        for one in (original, body)
    )
    if here != there:
        raise UnsupportedError(
            f"{checkpoint.name} does not say how tokens become an embedding (no modules.json), and the reference's "
            f"modules do not fit: {there} instead of {here}. Save it by SentenceTransformer.save_pretrained, or name "
            "the model it was made of"
        )
    model = copy.deepcopy(reference.model, {id(original): body})  # a copy that has the other in its place
    if (folder := _tokenizer_folder(checkpoint)) is not None:
        holder = "processor" if hasattr(model[0], "processor") else "tokenizer"
        setattr(model[0], holder, AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
        model.max_seq_length = reference.model.max_seq_length
    return model.to(device)


def _tokenizer_folder(checkpoint: Checkpoint) -> Path | None:
    """Where a checkpoint's own tokenizer lies; None if it has none."""
    own = any((checkpoint.folder / name).is_file() for name in _TOKENIZERS)
    return checkpoint.folder if own and checkpoint.gguf is None else None


def _body_of(model: Any) -> nn.Module:
    """The transformer of a SentenceTransformer."""
    body = getattr(model[0], "auto_model", None)
    if not isinstance(body, nn.Module):
        raise UnsupportedError(
            f"expected an embedding model whose first module is a transformer; got {type(model[0]).__name__}"
        )
    return body


def _notes(checkpoint: Checkpoint, reference: SentenceEncoder) -> Iterator[str]:
    """What a run says of a candidate that differs from its reference in more than its weights."""
    if not checkpoint.has_modules:
        taken = _TAKEN if _tokenizer_folder(checkpoint) is not None else f"tokenizer, {_TAKEN}"
        yield f"{checkpoint.name} says nothing of {taken}: taken from the reference"
    if checkpoint.onnx is None and checkpoint.gguf is None and checkpoint.method == "none":
        graphs = graphs_in(checkpoint.folder)
        if graphs:
            yield (
                f"{checkpoint.name} holds weights of torch, which were run, and ONNX models, which were not: "
                f"to run one, name it, such as {checkpoint.name}/{graphs[0]}"
            )
    if checkpoint.method == "quantdrift":
        base = read_record(checkpoint.folder).get("base_model", {}).get("canonical")
        if base not in {None, reference.source.canonical}:
            yield (
                f"{checkpoint.name} was made of {base}, not of {reference.source.canonical}: what changes is not from "
                "quantization alone"
            )
