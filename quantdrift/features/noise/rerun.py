"""A server's own noise: the same texts asked of it once more, in other company."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from quantdrift.base.progress import Progress
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.engine.encoders.server import Servers, open_endpoint
from quantdrift.engine.inputs import Settings
from quantdrift.engine.measure import measure
from quantdrift.engine.opening import search_of
from quantdrift.engine.pair import TwoModels
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.store import EmbeddingStore
from quantdrift.evidence.record import Evidence
from quantdrift.spec.grammar import read_endpoint

CONFIGURATIONS = ((1, 32), (4, 32), (16, 32), (4, 1))
"""Requests under way at a time, and inputs in each; the first is what the others are compared with, also by itself."""


def server_noise(name: str, dataset: RetrievalDataset, *, k: int, progress: Progress) -> Iterator[tuple[str, Evidence]]:
    """The label and evidence of each configuration, against one request of 32 texts at a time; no cache is read."""
    endpoint = read_endpoint(name)
    encoder = open_endpoint(endpoint, Servers(concurrency=1), hosts=[endpoint.host], root=None)
    reading = search_of(dataset, Similarity.COSINE)
    for concurrency, batch in CONFIGURATIONS:
        pair = TwoModels(encoder, replace(encoder, concurrency=concurrency), device=torch.device("cpu"))
        pair.batch_size = batch
        settings = Settings(k=k, batch_size=CONFIGURATIONS[0][1], noise_floor=False)
        measured = measure(pair, reading, settings=settings, store=EmbeddingStore(None), progress=progress)
        yield f"{concurrency} requests of {batch}" if concurrency > 1 else f"1 request of {batch}", measured.evidence
