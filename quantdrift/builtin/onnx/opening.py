"""Loads ONNX graphs that somebody else wrote, as encoders, cross-encoders and classifiers."""

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
from quantdrift.builtin.onnx.running import OnnxStates, around, place_of
from quantdrift.candidate.checkpoint import Loaded, Reference, candidate_source, dressed
from quantdrift.models import TEXT_BY_TEXT
from quantdrift.models.files.checkpoint import Checkpoint
from quantdrift.models.stored import StoredLayers

_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids", "pixel_values"})
_OUTPUTS = ("sentence_embedding", "last_hidden_state", "token_embeddings")
"""Outputs of encoders; the first that a graph has is read."""


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
    if output == "sentence_embedding":  # no module comes after it
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


def _starter(graph: OnnxGraph, output: str, device: torch.device) -> Callable[[PretrainedConfig], OnnxStates]:
    """Return a function that starts onnxruntime on a graph, with errors of one line."""

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


# --- inputs and outputs of a graph -----------------------------------------------------------------


def read_output(graph: OnnxGraph, *, logits: bool = False) -> tuple[str, list[str]]:
    """Return the name of the output to read, and what a run says of the graph, one sentence each."""
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
        return "logits", notes
    for name in _OUTPUTS:
        if name in graph.outputs:
            if name == "sentence_embedding":
                notes.append(f"{graph.file.name} pools by itself: its sentence_embedding is used as it is")
            return name, notes
    if "logits" in graph.outputs:
        raise UnsupportedError(
            f"{graph.file} gives logits, and these data take embeddings; expected last_hidden_state or "
            "sentence_embedding. A classifier takes classification data (a folder with test.jsonl), a reranker "
            "--shortlist RUN"
        )
    raise UnsupportedError(
        f"{graph.file} gives {_listed(graph.outputs)}; expected one called {', '.join(_OUTPUTS)} or logits: export the "
        "graph with that name"
    )


def _check_inputs(graph: OnnxGraph) -> None:
    unknown = {name: sizes for name, sizes in graph.inputs.items() if name not in _INPUTS}
    if unknown or not graph.inputs:
        raise UnsupportedError(
            f"{graph.file} takes {_listed(unknown)}, expected {', '.join(sorted(_INPUTS))} and no more"
        )
    for name, sizes in graph.inputs.items():
        free = sizes[:1] if name == "pixel_values" else sizes
        if any(size is not None for size in free):
            raise UnsupportedError(
                f"{graph.file} takes {name} of the fixed size {list(sizes)}; expected a graph exported with free batch "
                "and sequence sizes (dynamic axes)"
            )


def _listed(values: Mapping[str, tuple[int | None, ...]]) -> str:
    """Return the first few names with their shapes."""
    shapes = (
        f"{shown(name)} [{', '.join('?' if size is None else str(size) for size in sizes[:8])}]"
        for name, sizes in values.items()
    )
    return some(shapes) or "nothing"
