"""A checkpoint as an embedding model that can stand beside the reference."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import torch

from quantdrift.bits import BitsReport
from quantdrift.errors import UnsupportedError
from quantdrift.models.checkpoint import Checkpoint, refuse_missing
from quantdrift.models.checkpoint_body import (
    check_packed,
    completed,
    empty_body,
    gguf_body,
    load_body,
)
from quantdrift.models.checkpoint_notes import of_another_model, other_settings
from quantdrift.models.encoder_parts import differences
from quantdrift.models.hqq_checkpoint import unpacked
from quantdrift.models.lent_modules import body_of, dressed
from quantdrift.models.loading_process import process_undisturbed
from quantdrift.models.resolve import ModelSource
from quantdrift.models.sentence_encoder import SentenceEncoder, load_encoder
from quantdrift.models.stored import StoredLayers, stored_layers, stored_tensors
from quantdrift.models.stored_gguf import stored_gguf
from quantdrift.models.vetting import loading, refuse_small_vocabulary
from quantdrift.saving.folder import check_weights, read_record
from quantdrift.scoring import Similarity

__all__ = ["LoadedCheckpoint", "load_checkpoint"]

_TAKEN = "pooling, normalization, prompts and length limit"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedCheckpoint:
    """A checkpoint that is loaded.

    Attributes:
        checkpoint: where it came from.
        encoder: the model.
        stored: its linear layers, as they lie on disk.
        notes: what was taken from the reference, and in what beside weights the two differ.
    """

    checkpoint: Checkpoint
    encoder: SentenceEncoder
    stored: StoredLayers
    notes: tuple[str, ...]


def load_checkpoint(
    checkpoint: Checkpoint, reference: SentenceEncoder | None, *, device: torch.device
) -> LoadedCheckpoint:
    """Load a checkpoint as the candidate of a reference.

    A folder that does not say how tokens become an embedding (no modules.json), and a GGUF file,
    take pooling, normalization, prompts and length limit from the reference; what has no tokenizer
    takes that, too.

    Args:
        checkpoint: what to load.
        reference: what it will be compared with; None for what is not here and can lend nothing.
        device: where it runs.

    Raises:
        MissingExtraError: a library that reads the format is not installed.
        UnsupportedError: transformers cannot load it, it holds something else than its config.json
            says, weights are missing, or it needs a part that the reference cannot lend.
        RunError: no room to unpack it, or a saved candidate's files were changed.
    """
    refuse_missing(checkpoint)
    if reference is None and not checkpoint.has_modules:
        raise UnsupportedError(
            f"{checkpoint.name} says nothing of {_TAKEN}, and a server cannot lend them; expected "
            "a folder with modules.json, as SentenceTransformer.save_pretrained writes it"
        )
    what = f"checkpoint (format {checkpoint.method})"
    with loading(_source(checkpoint), what, unpacks="hqq"), process_undisturbed(checkpoint):
        if checkpoint.gguf is not None:
            assert reference is not None  # a GGUF file has no modules.json
            body = gguf_body(checkpoint)
            stored = stored_gguf(checkpoint.folder / checkpoint.gguf, body)
            model, taken = dressed(checkpoint, reference, body, None, device), ["tokenizer"]
        else:
            model, stored, taken = _from_folder(checkpoint, reference, device)
    model.eval()
    refuse_small_vocabulary(model, checkpoint.name)
    notes = []
    if not checkpoint.has_modules:
        named = ", ".join([*taken, _TAKEN])
        notes.append(f"{checkpoint.name} says nothing of {named}: taken from the reference")
    encoder = SentenceEncoder(
        model=model,
        source=_source(checkpoint),
        similarity=_same_similarity(checkpoint, model, reference),
    )
    if reference is not None:
        notes.extend(of_another_model(checkpoint, reference))
        notes.extend(other_settings(reference.model, model))
        notes.extend(differences(reference, encoder))
    return LoadedCheckpoint(
        checkpoint=checkpoint, encoder=encoder, stored=stored, notes=tuple(notes)
    )


def _from_folder(
    checkpoint: Checkpoint, reference: SentenceEncoder | None, device: torch.device
) -> tuple[Any, StoredLayers, list[str]]:
    """The model of a folder, how it is stored, and what it took beside what is always taken."""
    if checkpoint.method == "quantdrift":
        return _own(checkpoint, device)
    empty = empty_body(checkpoint)
    tensors = stored_tensors(checkpoint.body)
    stored = stored_layers(tensors, empty)
    quantization = completed(checkpoint, stored)
    with contextlib.ExitStack() as stack:
        if checkpoint.method == "hqq":
            folder = stack.enter_context(unpacked(checkpoint))
            checkpoint = replace(checkpoint, method="none", quantization={})
            quantization = {}
        else:
            folder = checkpoint.folder
        if not checkpoint.has_modules:
            body = load_body(checkpoint, folder, quantization, device)
            check_packed(checkpoint, stored, body)
            assert reference is not None  # refused before
            own = any((folder / name).is_file() for name in _TOKENIZERS)
            model = dressed(checkpoint, reference, body, folder if own else None, device)
            return model, stored, [] if own else ["tokenizer"]
        from quantdrift.models.checkpoint_encoder import (  # noqa: PLC0415 -- takes seconds to import
            load_sentence_transformer,
        )

        model = load_sentence_transformer(checkpoint, folder, quantization, device)
    check_packed(checkpoint, stored, body_of(model))
    others = list(model.children())[1:]
    return model, stored_layers(tensors, empty, others=others), []


def _own(checkpoint: Checkpoint, device: torch.device) -> tuple[Any, StoredLayers, list[str]]:
    """What `quantdrift quantize` wrote, in either of its formats."""
    record = read_record(checkpoint.folder)
    check_weights(checkpoint.folder, record)
    names = [layer["name"] for layer in record["layers"]]
    bits = BitsReport(**checkpoint.quantization["bits_per_weight"])
    stored = StoredLayers(
        packed=tuple(name.split(".", 2)[-1] for name in names), plain=(), missing=(), bits=bits
    )
    return load_encoder(_source(checkpoint), device=device).model, stored, []


def _source(checkpoint: Checkpoint) -> ModelSource:
    return ModelSource(
        name=checkpoint.name,
        canonical=checkpoint.canonical,
        kind="local",
        location=str(checkpoint.folder),
    )


def _same_similarity(
    checkpoint: Checkpoint, model: Any, reference: SentenceEncoder | None
) -> Similarity:
    name = str(model.similarity_fn_name or "cosine")
    if reference is None:
        if name not in set(Similarity):
            raise UnsupportedError(
                f"{checkpoint.name} compares embeddings by {name!r}; expected one of "
                f"{', '.join(Similarity)}"
            )
        return Similarity(name)
    if name != str(reference.similarity):
        raise UnsupportedError(
            f"{checkpoint.name} compares embeddings by {name!r}, {reference.source.name} by "
            f"{str(reference.similarity)!r}: their scores have no common scale. Set "
            "similarity_fn_name in config_sentence_transformers.json of one of them"
        )
    return reference.similarity
