"""A checkpoint as an embedding model that can stand beside the reference."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from quantdrift.bits import BitsReport
from quantdrift.errors import QuantDriftError, UnsupportedError
from quantdrift.models.checkpoint import NEEDED, Checkpoint, refuse_missing
from quantdrift.models.checkpoint_body import (
    check_packed,
    completed,
    empty_body,
    gguf_body,
    load_body,
    load_kwargs,
)
from quantdrift.models.encoder_parts import differences
from quantdrift.models.hqq_checkpoint import unpacked
from quantdrift.models.lent_modules import body_of, dressed
from quantdrift.models.resolve import ModelSource
from quantdrift.models.sentence_encoder import SentenceEncoder, load_encoder
from quantdrift.models.stored import StoredLayers, stored_layers, stored_tensors
from quantdrift.models.stored_gguf import stored_gguf
from quantdrift.quantizers.quiet_imports import import_gptqmodel, silenced
from quantdrift.saving.folder import read_record
from quantdrift.scoring import Similarity

__all__ = ["LoadedCheckpoint", "load_checkpoint"]

_TAKEN = "pooling, normalization, prompts and length limit"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "tokenizer.model")
_SHOWN = 3


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
    checkpoint: Checkpoint, reference: SentenceEncoder, *, device: torch.device
) -> LoadedCheckpoint:
    """Load a checkpoint as the candidate of a reference.

    A folder that does not say how tokens become an embedding (no modules.json), and a GGUF file,
    take pooling, normalization, prompts and length limit from the reference; what has no tokenizer
    takes that, too.

    Args:
        checkpoint: what to load.
        reference: what it will be compared with.
        device: where it runs.

    Raises:
        MissingExtraError: a library that reads the format is not installed.
        UnsupportedError: transformers cannot load it, it holds something else than its config.json
            says, or it needs a part that the reference cannot lend.
        RunError: no room to unpack it.
    """
    refuse_missing(checkpoint)
    with _one_line_errors(checkpoint), _process_undisturbed(checkpoint):
        if checkpoint.gguf is not None:
            body = gguf_body(checkpoint)
            stored = stored_gguf(checkpoint.folder / checkpoint.gguf, body)
            model, taken = dressed(checkpoint, reference, body, None, device), ["tokenizer"]
        else:
            model, stored, taken = _from_folder(checkpoint, reference, device)
    model.eval()
    notes = []
    if not checkpoint.has_modules:
        named = ", ".join([*taken, _TAKEN])
        notes.append(f"{checkpoint.name} says nothing of {named}: taken from the reference")
    random = [name for name in stored.missing if "pooler" not in name]
    if random:
        named = ", ".join(random[:_SHOWN]) + (" ..." if len(random) > _SHOWN else "")
        notes.append(f"{checkpoint.name} stores no weights for {len(random)} layers ({named})")
    encoder = SentenceEncoder(
        model=model,
        source=_source(checkpoint),
        similarity=_same_similarity(checkpoint, model, reference),
    )
    return LoadedCheckpoint(
        checkpoint=checkpoint,
        encoder=encoder,
        stored=stored,
        notes=(*notes, *differences(reference, encoder)),
    )


def _from_folder(
    checkpoint: Checkpoint, reference: SentenceEncoder, device: torch.device
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
            own = any((folder / name).is_file() for name in _TOKENIZERS)
            model = dressed(checkpoint, reference, body, folder if own else None, device)
            return model, stored, [] if own else ["tokenizer"]
        model = _sentence_transformer(checkpoint, folder, quantization, device)
    check_packed(checkpoint, stored, body_of(model))
    others = list(model.children())[1:]
    return model, stored_layers(tensors, empty, others=others), []


def _own(checkpoint: Checkpoint, device: torch.device) -> tuple[Any, StoredLayers, list[str]]:
    """What `quantdrift quantize` wrote, in either of its formats."""
    names = [layer["name"] for layer in read_record(checkpoint.folder)["layers"]]
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


def _sentence_transformer(
    checkpoint: Checkpoint, folder: Path, quantization: Mapping[str, Any], device: torch.device
) -> Any:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 -- takes seconds to import

    amended = quantization != checkpoint.quantization
    kwargs = load_kwargs(checkpoint, device)
    return SentenceTransformer(
        str(folder),
        device=None if "device_map" in kwargs else str(device),
        model_kwargs=kwargs,
        config_kwargs={"quantization_config": dict(quantization)} if amended else None,
    )


def _same_similarity(checkpoint: Checkpoint, model: Any, reference: SentenceEncoder) -> Similarity:
    name = str(model.similarity_fn_name or "cosine")
    if name != str(reference.similarity):
        raise UnsupportedError(
            f"{checkpoint.name} compares embeddings by {name!r}, {reference.source.name} by "
            f"{str(reference.similarity)!r}: their scores have no common scale. Set "
            "similarity_fn_name in config_sentence_transformers.json of one of them"
        )
    return reference.similarity


@contextlib.contextmanager
def _process_undisturbed(checkpoint: Checkpoint) -> Iterator[None]:
    """Undo what libraries do to the process, so that the reference computes as in any other run.

    Some greet on standard output, where a record may be expected, and some set the precision of
    products in float32.
    """
    precision = torch.get_float32_matmul_precision()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            if "gptqmodel" in NEEDED.get(checkpoint.method, ((), ""))[0]:
                stack.enter_context(silenced(import_gptqmodel()[1]))
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


@contextlib.contextmanager
def _one_line_errors(checkpoint: Checkpoint) -> Iterator[None]:
    """What goes wrong in the libraries that load, as one line that names the checkpoint."""
    try:
        yield
    except QuantDriftError:
        raise
    except Exception as error:  # a dozen libraries read these formats, each with its own errors
        lines = str(error).strip().splitlines()
        first = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise UnsupportedError(
            f"the checkpoint {checkpoint.name} (format {checkpoint.method}) cannot be loaded from "
            f"{checkpoint.folder}: {first}"
        ) from error
