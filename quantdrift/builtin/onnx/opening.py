"""A graph that somebody else wrote, as a model: how it is fed and read, and what stands around it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoConfig, PretrainedConfig

from quantdrift.base.display import in_one_line, shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.text import some
from quantdrift.builtin.classifier import work as classifiers
from quantdrift.builtin.cross_encoder.work import CrossEncoderModel
from quantdrift.builtin.onnx.graph import OnnxGraph, read_graph
from quantdrift.builtin.onnx.running import Given, OnnxStates, around, place_of
from quantdrift.candidate.checkpoint import Loaded, Reference, candidate_source, dressed
from quantdrift.models import TEXT_BY_TEXT
from quantdrift.models.files.checkpoint import Checkpoint
from quantdrift.models.stored import StoredLayers

_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids", "pixel_values"})
_NAMES: Mapping[str, Given] = {
    "sentence_embedding": "sentence_embedding",
    "last_hidden_state": "last_hidden_state",
    "token_embeddings": "last_hidden_state",
}
"""Outputs of encoders by name; the first that a graph has is taken."""
Output = tuple[str, Given]
"""The name of an output, and what it is."""


def load_encoder(checkpoint: Checkpoint, reference: Reference | None, device: torch.device) -> Loaded:
    """Load the embedding model, or the cross-encoder, around a graph that somebody else wrote."""
    reranks = isinstance(reference, CrossEncoderModel)
    graph = read_graph(checkpoint.folder / str(checkpoint.file))
    output, notes = read_output(graph, logits=reranks)
    states = _starter(graph, output, device)
    if checkpoint.has_modules:
        model: Any = around(states, checkpoint.folder, device, CrossEncoder if reranks else SentenceTransformer)
    else:
        config = AutoConfig.from_pretrained(checkpoint.body, trust_remote_code=False)
        model = dressed(checkpoint, reference, states(config), device)
    if output[1] == "sentence_embedding":  # nothing comes behind it
        first = model[0]
        for name in list(model._modules)[1:]:
            del model._modules[name]
        first.modality_config = {
            name: {**how, "method_output_name": "sentence_embedding"} for name, how in first.modality_config.items()
        }
        first.module_output_name = "sentence_embedding"
    return Loaded(model=model, stored=_stored(graph), notes=tuple(notes))


def load_classifier(checkpoint: Checkpoint, device: torch.device) -> tuple[classifiers.Classifier, StoredLayers]:
    """Load a classifier whose logits a graph computes."""
    graph = read_graph(checkpoint.folder / str(checkpoint.file))
    output, notes = read_output(graph, logits=True)
    starter = _starter(graph, output, device)
    loaded = classifiers.load_classifier(candidate_source(checkpoint), device=device, graph=starter)
    return replace(loaded, notes=(*loaded.notes, *notes)), _stored(graph)


def _stored(graph: OnnxGraph) -> StoredLayers:
    return StoredLayers(
        packed=tuple(layer.name for layer in graph.packed),
        plain=tuple(layer.name for layer in graph.layers if not layer.how),
        bits=graph.bits,
    )


def _starter(graph: OnnxGraph, output: Output, device: torch.device) -> Callable[[PretrainedConfig], OnnxStates]:
    """Return a function that starts onnxruntime on a graph; its errors become one line."""

    def states(config: PretrainedConfig) -> OnnxStates:
        described = graph.describe()
        with in_one_line(f"onnxruntime cannot run {graph.file}"):
            made = OnnxStates(
                graph.file,
                graph.digest(),
                config,
                device,
                output,
                operators=dict(sorted(described["operators"].items())),
                facts={"dtype": graph.dtype, "nominal_bits": described.get("bits"), "graph": described},
            )
        return made.to(place_of(device)[0])

    return states


# --- how a graph is fed and read ------------------------------------------------------------------


def read_output(graph: OnnxGraph, *, logits: bool = False) -> tuple[Output, list[str]]:
    """Find the output that is read, by names, else by shapes, and what a run says of the graph, one sentence each."""
    _check_inputs(graph)
    notes = []
    if graph.bits is None:
        notes.append(
            f"bits per weight of {graph.file.name} are unknown: it holds codes whose scales, or whose number of "
            "weights, cannot be told"
        )
    if "position_ids" in graph.inputs:
        notes.append(f"{graph.file.name} asks for positions: they are counted from 0, padding left out")
    if any(layer.how == "dynamic" for layer in graph.packed):
        notes.append(
            f"{graph.file.name} quantizes its activations by the range of a whole batch: what else is in a batch "
            f"changes what a text gets. {TEXT_BY_TEXT}"
        )
    if logits:
        if "logits" not in graph.outputs:
            raise UnsupportedError(
                f"{graph.file} gives {_listed(graph.outputs)}; expected logits, as classifiers and rerankers do"
            )
        return ("logits", "logits"), notes
    for name, given in _NAMES.items():
        if name in graph.outputs:
            if given == "sentence_embedding":
                notes.append(f"{graph.file.name} pools by itself: its sentence_embedding is used as it is")
            return (name, given), notes
    if "logits" in graph.outputs:
        raise UnsupportedError(
            f"{graph.file} gives logits, and these data take embeddings; expected last_hidden_state or "
            "sentence_embedding. A classifier takes classification data (a folder with test.jsonl), a reranker "
            "--shortlist RUN"
        )
    ranks: tuple[tuple[int, Given, str], ...] = (
        (3, "last_hidden_state", "[batch, sequence, hidden]: the states of tokens"),
        (2, "sentence_embedding", "[batch, hidden]: an embedding, used as it is"),
    )
    for rank, given, meaning in ranks:
        candidates = [name for name, sizes in graph.outputs.items() if len(sizes) == rank]
        if len(candidates) == 1:
            notes.append(f"the output {shown(candidates[0])} of {graph.file.name} is read by its shape, {meaning}")
            return (candidates[0], given), notes
        if candidates:
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
    shapes = (
        f"{shown(name)} [{', '.join('?' if size is None else str(size) for size in sizes[:8])}]"
        for name, sizes in values.items()
    )
    return some(shapes) or "nothing"
