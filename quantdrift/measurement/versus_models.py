"""Two models that are ready to be compared, and what is loaded the same way for every kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quantdrift.errors import UnsupportedError
from quantdrift.measurement.inputs import Inputs
from quantdrift.measurement.pair import Pair
from quantdrift.measurement.readers import refuse_classifier
from quantdrift.models.checkpoint import Checkpoint, find_checkpoint
from quantdrift.models.resolve import ModelSource
from quantdrift.models.sentence_encoder import SentenceEncoder, load_encoder
from quantdrift.scoring import Similarity

__all__ = ["OpenedVersus", "load_reference", "refuse_reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedVersus:
    """Two models, and the data as they take it.

    Attributes:
        pair: the models; the reference is in place.
        queries: what is searched for.
        documents: what is searched.
        similarity: how embeddings become scores.
        model: what run.json says of the two, beside names and fingerprints.
        notes: in what beside weights they differ, and what else whoever reads the run should know.
    """

    pair: Pair
    queries: Inputs
    documents: Inputs
    similarity: Similarity
    model: Mapping[str, Any]
    notes: tuple[str, ...]


def refuse_reference(source: ModelSource, checkpoint: Checkpoint | None) -> None:
    """Refuse what can be refused before anything is loaded.

    Args:
        source: the reference.
        checkpoint: the candidate, where it lies here.

    Raises:
        UnsupportedError: both are one model, or the reference embeds nothing (a cross-encoder, a
            classifier) or is quantized itself.
    """
    if checkpoint is not None and checkpoint.gguf is None and _same(source, checkpoint):
        raise UnsupportedError(
            f"{source.name} and {checkpoint.name} are one model ({checkpoint.canonical}); expected "
            "a reference and another model. Its own noise is measured in every run (noise floor)"
        )
    refuse_classifier(source)
    if source.kind == "local":
        method = find_checkpoint(source.name).method
        if method != "none":
            raise UnsupportedError(_quantized(source.name, method))


def load_reference(
    source: ModelSource, *, device: torch.device, revision: str | None
) -> SentenceEncoder:
    """Load a reference, and refuse one on the hub that turns out to be quantized.

    Args:
        source: where it lies.
        device: where it runs.
        revision: of a hub model.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
        UnsupportedError: it cannot be loaded, or is quantized.
    """
    reference = load_encoder(source, device=device, revision=revision)
    config = getattr(getattr(reference.model[0], "auto_model", None), "config", None)
    if getattr(config, "quantization_config", None):
        raise UnsupportedError(_quantized(source.name, "see its config.json"))
    return reference


def _same(source: ModelSource, checkpoint: Checkpoint) -> bool:
    if source.kind == checkpoint.kind == "hub":
        return source.canonical == checkpoint.canonical
    return source.kind != "hub" and Path(source.location).resolve() == checkpoint.folder


def _quantized(name: str, method: str) -> str:
    return (
        f"the reference {name} is quantized itself ({method}); expected a model at full precision "
        "first and the quantized one after vs"
    )
