"""The candidate as an ONNX model with real low-bit weights, which is run before it is believed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.errors import UnsupportedError
from quantdrift.models.fingerprint import weights_fingerprint
from quantdrift.models.layers import find_linears
from quantdrift.models.reach import WeightUse
from quantdrift.progress import Progress
from quantdrift.saving.candidate import Candidate, in_place
from quantdrift.saving.folder import ONNX_MODEL
from quantdrift.saving.matmul_nbits import PackedWeight, pack
from quantdrift.saving.onnx_export import (
    OUTPUT,
    export_graph,
    model_inputs,
    need_exporter,
    save_graph,
    transformer_of,
)
from quantdrift.saving.safetensors_folder import save_model_files

__all__ = ["AGREEMENT", "save_onnx"]

AGREEMENT = 1e-4
"""Relative difference to torch above which nothing is written."""
_TEXTS = (
    "How does the boundary layer of a wing change with the angle of attack?",
    "no",
    "A quantized model can keep its mean score and still give different answers to many of its "
    "users, which only shows when inputs are looked at one by one. " * 4,
)
"""Of different lengths, so that padding is looked at too."""


def save_onnx(candidate: Candidate, folder: Path, progress: Progress) -> dict[str, Any]:
    """Write the model for onnxruntime, with the candidate's codes as packed weights.

    The graph computes in float32, whatever the model's dtype is. Quantized layers behind the
    transformers model (dense layers of sentence-transformers) keep the grid's values as floats.

    Args:
        candidate: a SentenceTransformer and its codes.
        folder: an empty folder.
        progress: where progress is shown.

    Returns:
        What `scheme.json` says of it.

    Raises:
        UnsupportedError: the model cannot be exported, a layer has no place in the graph, or the
            written model and torch differ by more than `AGREEMENT`.
        MissingExtraError: onnxscript or onnxruntime is not installed.
    """
    need_exporter()
    transformer = transformer_of(candidate.model)
    with in_place(candidate, dtype=torch.float32), torch.no_grad():
        with progress.stage("exporting to ONNX", 1) as tell:
            inputs = model_inputs(candidate.model, transformer, _TEXTS[:2])
            graph = export_graph(transformer, inputs)
            tell(1)
        stored = _put_codes(candidate, transformer, graph, progress)
        save_graph(graph, folder / ONNX_MODEL)
        del graph
        _save_settings(candidate.model, transformer, folder)
        with progress.stage("running it beside torch", 1) as tell:
            checked = _check(candidate, transformer, folder)
            tell(1)
    return {"dtype": "float32", **checked, "stored": stored}


def _put_codes(
    candidate: Candidate, transformer: nn.Module, model: Any, progress: Progress
) -> dict[str, str]:
    """Replace the products of all layers; how each is stored, by name."""
    from quantdrift.saving.onnx_graph import GraphLayer, replace_products  # noqa: PLC0415 -- needs onnx_ir

    linears = {layer.name: layer for layer in find_linears([candidate.module])}
    names: dict[int, list[str]] = {}
    for name, parameter in transformer.named_parameters(remove_duplicate=False):
        names.setdefault(parameter.data_ptr(), []).append(f"model.{name}")
    used = _used(candidate, transformer)
    stored: dict[str, str] = {}
    failed: dict[str, str] = {}
    with progress.stage("packing codes", len(candidate.layers)) as tell:
        for layer in candidate.layers:
            linear = linears[layer.name]
            parameters = names.get(linear.parameter.data_ptr(), [])
            if not parameters:
                stored[layer.name] = "float values of the grid"
            elif layer.name not in used:
                stored[layer.name] = "left out: unused layer (does not affect embeddings)"
            elif linear.parameter.dim() != 2:  # noqa: PLR2004 -- a matrix
                failed[layer.name] = "it is one of several matrices in one parameter"
            elif not any(name in model.graph.initializers for name in parameters):
                failed[layer.name] = "the exported graph has no weight of that name"
            else:
                packed = pack(layer.quantized)
                failed |= replace_products(
                    model.graph,
                    [
                        GraphLayer(
                            name=layer.name,
                            parameters=parameters,
                            transposed=linear.transposed,
                            packed=packed,
                        )
                    ],
                )
                stored[layer.name] = _described(packed)
            tell(1)
    if failed:
        first = [f"{name} ({reason})" for name, reason in list(failed.items())[:3]]
        raise UnsupportedError(
            f"{len(failed)} of {len(candidate.layers)} quantized layers have no matrix product of "
            f"their own in the ONNX graph, and would be stored in float: {'; '.join(first)}. "
            "Use --format safetensors"
        )
    return stored


def _used(candidate: Candidate, transformer: nn.Module) -> frozenset[str]:
    inputs = model_inputs(candidate.model, transformer, _TEXTS[:2])
    use = WeightUse(find_linears([candidate.module]))
    with use:
        states: Tensor = transformer(**inputs)[OUTPUT]
        states.sum()  # what the output depends on is what the last operation does
    return use.used


def _described(packed: PackedWeight) -> str:
    parts = [f"MatMulNBits, {packed.bits} bits, blocks of {packed.block_size}"]
    if packed.permutation is not None:
        parts.append("input reordered")
    if packed.input_scaling is not None:
        parts.append("input divided")
    if packed.correction is not None:
        parts.append("fractions of zero points beside it")
    return ", ".join(parts)


def _save_settings(model: Any, transformer: nn.Module, folder: Path) -> None:
    """Everything of the model but the transformer's weights, which the graph holds."""

    def settings_only(folder: str, **_: object) -> None:
        config: Any = copy.copy(transformer.config)
        config.architectures = [type(transformer).__name__]
        config.save_pretrained(folder)

    transformer.__dict__["save_pretrained"] = settings_only  # shadows the method, for this object
    try:
        save_model_files(model, folder)
    finally:
        del transformer.__dict__["save_pretrained"]


def _check(candidate: Candidate, transformer: nn.Module, folder: Path) -> dict[str, Any]:
    """Load what was written and compare it with torch, where the candidate is in place.

    Raises:
        UnsupportedError: they differ.
    """
    from quantdrift.models.onnx_encoder import file_digest, load_onnx  # noqa: PLC0415 -- needs onnxruntime

    written: Any = load_onnx(folder)
    inputs = model_inputs(candidate.model, transformer, _TEXTS)
    tokens = inputs["attention_mask"].bool() if "attention_mask" in inputs else ...
    ours = written[0].auto_model(**inputs)[OUTPUT]
    theirs = transformer(**inputs)[OUTPUT].to(ours.device)
    found = {
        # as one vector: a single token can be at the edge of a LayerNorm, in torch as well
        "states": _difference(ours[tokens].flatten(), theirs[tokens].flatten()),
        "embeddings": _difference(_encode(written), _encode(candidate.model)),
    }
    worst = max(found.values())
    if not all(value <= AGREEMENT for value in found.values()):  # NaN is not
        raise UnsupportedError(
            f"onnxruntime and torch give different results for this model: {worst:.1e} relative, "
            f"expected at most {AGREEMENT:.0e}; nothing was written. Use --format safetensors, and "
            "please report the model"
        )
    return {
        "candidate_fingerprint": weights_fingerprint([written]),
        "onnx": {"digest": file_digest(folder).hex(), "difference_to_torch": found},
    }


def _encode(model: Any) -> Tensor:
    texts = list(_TEXTS)
    embeddings: Tensor = model.encode(texts, show_progress_bar=False, convert_to_tensor=True)
    return embeddings.cpu()


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest ||a - b|| / ||b|| of all vectors; NaN if there is one."""
    apart = (ours.double() - theirs.double()).norm(dim=-1) / theirs.double().norm(dim=-1)
    return float(apart.max())
