"""A reference and a checkpoint that both run here."""

from __future__ import annotations

from dataclasses import replace

import torch

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.measurement.inputs import Inputs
from quantdrift.measurement.text_inputs import text_inputs
from quantdrift.measurement.versus_models import OpenedVersus, load_reference, refuse_reference
from quantdrift.models.checkpoint import find_checkpoint, refuse_missing
from quantdrift.models.checkpoint_loading import load_checkpoint
from quantdrift.models.resolve import resolve
from quantdrift.models.sentence_encoder import Role, SentenceEncoder
from quantdrift.models.stored_candidate import StoredCandidate
from quantdrift.models.two_models import LoadedCandidate, TwoModels
from quantdrift.versus import Versus

__all__ = ["open_checkpoint"]


def open_checkpoint(
    versus: Versus,
    dataset: RetrievalDataset,
    *,
    device: torch.device,
    revision: str | None,
    models: tuple[SentenceEncoder | None, SentenceEncoder | None] = (None, None),
) -> OpenedVersus:
    """Load both; everything that can be refused is refused before.

    The reference is embedded as in any other run of it, so its embeddings are shared.

    Args:
        versus: reference and candidate.
        dataset: what they will embed.
        device: where they run.
        revision: of a reference on the hub.
        models: reference and candidate, as far as they are loaded already.

    Raises:
        QuantDriftError: one of them cannot be used, or not beside the other.
    """
    reference, loaded = models
    checkpoint = None if loaded is not None else find_checkpoint(versus.candidate)
    if checkpoint is not None:
        refuse_missing(checkpoint)
    if reference is None:
        source = resolve(versus.reference)
        refuse_reference(source, checkpoint)
        reference = load_reference(source, device=device, revision=revision)
    candidate: StoredCandidate | LoadedCandidate
    if checkpoint is not None:
        candidate = StoredCandidate(load_checkpoint(checkpoint, reference, device=device))
    else:
        assert loaded is not None  # one of the two is there
        candidate = LoadedCandidate(loaded, reference)
    pair = TwoModels(reference, candidate)
    return OpenedVersus(
        pair=pair,
        queries=_inputs(pair, reference, "query", dataset.query_ids, dataset.queries),
        documents=_inputs(pair, reference, "document", dataset.document_ids, dataset.documents),
        similarity=reference.similarity,
        model={
            "canonical": reference.source.canonical,
            "kind": reference.source.kind,
            "revision": revision,
            "candidate": candidate.identify(),
        },
        notes=candidate.notes,
    )


def _inputs(
    models: TwoModels,
    reference: SentenceEncoder,
    role: Role,
    ids: tuple[str, ...],
    texts: tuple[str, ...],
) -> Inputs:
    """One side, by whichever model is in place; the key is the reference's, as in other runs."""
    return replace(
        text_inputs(reference, texts, role=role, ids=ids),
        encode=lambda rows, batch_size: models.encode(
            [texts[row] for row in rows.tolist()], role, batch_size
        ),
    )
