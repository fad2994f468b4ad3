"""A server's own noise: the same texts asked of it once more, in other company."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from quantdrift.asking.measure import measure
from quantdrift.asking.opening import search_of
from quantdrift.base.progress import Progress
from quantdrift.candidate.pair import TwoModels
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.evidence.record import Evidence
from quantdrift.models.inputs import Settings
from quantdrift.models.server import Servers, open_endpoint
from quantdrift.models.store import EmbeddingStore
from quantdrift.scoring.similarity import Similarity
from quantdrift.spec.grammar import read_endpoint

CONFIGURATIONS = ((1, 32, 1), (4, 32, 1), (16, 32, 1), (4, 1, 1), (4, 2, 2))
"""Requests under way at a time, inputs in each, and how often each text is among them.

The first is what the others are compared with, also by itself. A text beside itself is a batch of one length, which
nothing is padded in: runtimes left out a mask there that other batches get.
"""


def server_noise(name: str, dataset: RetrievalDataset, *, k: int, progress: Progress) -> Iterator[tuple[str, Evidence]]:
    """The label and evidence of each configuration, against one request of 32 texts at a time; no cache is read."""
    endpoint = read_endpoint(name)
    encoder = open_endpoint(endpoint, Servers(concurrency=1), root=None)
    reading = search_of(dataset, Similarity.COSINE)
    for concurrency, batch, copies in CONFIGURATIONS:
        other = replace(encoder, concurrency=concurrency, copies=copies)
        pair = TwoModels(encoder, other, device=torch.device("cpu"))
        pair.batch_size = batch
        settings = Settings(k=k, batch_size=CONFIGURATIONS[0][1], noise_floor=False)
        measured = measure(pair, reading, settings=settings, store=EmbeddingStore(None), progress=progress)
        requests = f"{concurrency} requests" if concurrency > 1 else "1 request"
        yield f"{requests} of {'a text twice' if copies > 1 else batch}", measured.evidence
