"""Two models of which at least one is on a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.errors import UnsupportedError
from quantdrift.measurement.inputs import Inputs
from quantdrift.measurement.server_inputs import server_inputs
from quantdrift.measurement.text_inputs import text_inputs
from quantdrift.measurement.versus_models import OpenedVersus, load_reference, refuse_reference
from quantdrift.models.checkpoint import find_checkpoint, refuse_missing
from quantdrift.models.checkpoint_loading import load_checkpoint
from quantdrift.models.endpoint.address import is_endpoint, read_endpoint
from quantdrift.models.endpoint.encoder import EndpointEncoder, Servers, open_endpoint
from quantdrift.models.resolve import resolve
from quantdrift.models.sentence_encoder import SentenceEncoder
from quantdrift.models.stored_candidate import StoredCandidate
from quantdrift.models.two_sides import LocalReference, ServerSide, Side, TwoSides
from quantdrift.scoring import Similarity
from quantdrift.versus import Versus

__all__ = ["open_server"]

Encoder = SentenceEncoder | EndpointEncoder

NOISY = 0.01
"""Of an embedding's length, that two answers differ by: bfloat16 changes less, and three times this
is what 8-bit weights change, so those would not be noticed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """One of the two models: what embeds, what a pair asks of it, and what a run records."""

    encoder: Encoder
    side: Side
    identity: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def open_server(
    versus: Versus,
    dataset: RetrievalDataset,
    *,
    servers: Servers,
    root: Path | None,
    device: torch.device,
    revision: str | None,
) -> OpenedVersus:
    """Load what is here, reach what is not, and see which models answer.

    What a model that is loaded here puts before a text, a query's prompt for instance, is put
    before the texts that a server gets, too: servers add nothing of themselves.

    Args:
        versus: reference and candidate.
        dataset: what they will embed.
        servers: how servers are asked.
        root: of the cache, None if nothing is kept.
        device: where models run that are loaded here.
        revision: of a reference on the hub.

    Raises:
        QuantDriftError: one of them cannot be used, or not beside the other.
    """
    _refuse(versus, revision)
    names = [name for name in (versus.reference, versus.candidate) if is_endpoint(name)]
    hosts = sorted({read_endpoint(name).host for name in names})
    encoders = {  # before anything large is loaded: one of them may not be there
        name: open_endpoint(read_endpoint(name), servers, hosts=hosts, root=root) for name in names
    }
    local = _load_local(versus, device, revision)
    prompts: dict[str, str] = {}
    if local is not None and isinstance(local.encoder, SentenceEncoder):
        prompts = {role: local.encoder.prompt(role) for role in ("query", "document")}
    reached = {}
    for name, encoder in encoders.items():
        encoder.prefixes = {**prompts, **servers.prefixes}
        reached[name] = _reached(name, encoder, servers)
    reference = reached.get(versus.reference) or local
    candidate = reached.get(versus.candidate) or local
    assert reference is not None  # what is on no server was loaded
    assert candidate is not None
    similarity = Similarity.COSINE
    if local is not None and isinstance(local.encoder, SentenceEncoder):
        similarity = local.encoder.similarity
    return OpenedVersus(
        pair=TwoSides(reference.side, candidate.side, device=device),
        queries=_both(reference, candidate, dataset.query_ids, dataset.queries, "query"),
        documents=_both(reference, candidate, dataset.document_ids, dataset.documents, "document"),
        similarity=similarity,
        model={**reference.identity, "candidate": candidate.identity},
        notes=(*reference.notes, *candidate.notes),
    )


def _refuse(versus: Versus, revision: str | None) -> None:
    if not is_endpoint(versus.reference):
        refuse_reference(resolve(versus.reference), None)
        return
    if revision is not None:
        raise UnsupportedError(
            f"--revision is of a reference on the hub; {versus.reference} is on a server"
        )
    if versus.reference == versus.candidate:
        raise UnsupportedError(
            f"both are {versus.reference}; expected a reference and another model. Its own noise "
            "is measured in every run (noise floor)"
        )


def _load_local(versus: Versus, device: torch.device, revision: str | None) -> _Loaded | None:
    """The model that is no server's; None if both are."""
    if not is_endpoint(versus.reference):
        source = resolve(versus.reference)
        encoder = load_reference(source, device=device, revision=revision)
        identity = {"canonical": source.canonical, "kind": source.kind, "revision": revision}
        return _Loaded(encoder=encoder, side=LocalReference(encoder), identity=identity)
    if is_endpoint(versus.candidate):
        return None
    checkpoint = find_checkpoint(versus.candidate)
    refuse_missing(checkpoint)
    candidate = StoredCandidate(load_checkpoint(checkpoint, None, device=device))
    return _Loaded(
        encoder=candidate.encoder,
        side=candidate,
        identity=candidate.identify(),
        notes=candidate.notes,
    )


def _reached(name: str, encoder: EndpointEncoder, servers: Servers) -> _Loaded:
    identity = encoder.identity
    notes = []
    if identity.changed_since is not None:
        notes.append(
            f"another model answers to {name} than on {identity.changed_since}: embeddings of then "
            "are not used"
        )
    if identity.noise > NOISY:
        notes.append(
            f"{name} answered the same texts twice and differently, by {identity.noise:.1%} of an "
            f"embedding's length; another model there is noticed from {identity.tolerance:.1%} on"
        )
    for role, prefix in encoder.prefixes.items():
        if prefix:
            whose = "as asked for" if role in servers.prefixes else "as the other model does"
            notes.append(f"{name} gets {prefix!r} before every {role}, {whose}")
    return _Loaded(
        encoder=encoder,
        side=ServerSide(encoder),
        identity={
            "name": name,
            "canonical": encoder.endpoint.model,
            "kind": "server",
            "revision": None,
            "format": None,
            "fingerprint": identity.fingerprint,
            "server": encoder.describe(),
        },
        notes=tuple(notes),
    )


def _both(
    reference: _Loaded, candidate: _Loaded, ids: tuple[str, ...], texts: tuple[str, ...], role: Any
) -> Inputs:
    first, second = (_inputs(one.encoder, ids, texts, role) for one in (reference, candidate))
    return replace(first, candidate=second)


def _inputs(encoder: Encoder, ids: tuple[str, ...], texts: tuple[str, ...], role: Any) -> Inputs:
    if isinstance(encoder, SentenceEncoder):
        return text_inputs(encoder, texts, role=role, ids=ids)
    return server_inputs(encoder, texts, role=role, ids=ids)
