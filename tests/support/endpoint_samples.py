"""Runs of two models of which some are on servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine.encoders.server import Servers
from quantdrift.engine.encoders.server_client import Patience
from quantdrift.engine.inputs import Settings
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import EmbeddingStore
from quantdrift.progress import Progress, Silent
from quantdrift.runs import Run
from quantdrift.spec import Versus
from support.versus_samples import DATASET


def run_servers(
    reference: str,
    candidate: str,
    out: Path,
    *,
    dataset: RetrievalDataset = DATASET,
    cache: Path | None = None,
    noise_floor: bool = False,
    batch_size: int = 8,
    progress: Progress | None = None,
    timeout: float = 60.0,
    say: Callable[[str], None] = lambda _line: None,
    **options: Any,
) -> Run:
    patience = Patience(sleep=lambda _seconds: None, timeout=timeout, say=say)
    return run_pair(
        Versus(reference=reference, candidate=candidate),
        dataset,
        out=out,
        settings=Settings(k=8, batch_size=batch_size, noise_floor=noise_floor),
        store=EmbeddingStore(cache),
        progress=progress or Silent(),
        device="cpu",
        servers=Servers(patience=patience, **options),
    )


def many(n: int) -> RetrievalDataset:
    """A corpus of n sentences that differ in letters, and three queries."""
    words = ("apple", "brick", "cloud", "dune", "eagle", "fjord", "glove")
    documents = tuple(f"{words[i % 7]} {words[i // 7 % 7]} {words[i // 49 % 7]} {'x' * (i % 5)} {i}" for i in range(n))
    return RetrievalDataset(
        name="many",
        query_ids=("q0", "q1", "q2"),
        queries=("an eagle over a dune", "bricks and gloves", "cloudy fjord"),
        document_ids=tuple(f"d{i}" for i in range(n)),
        documents=documents,
        qrels={},
        split="test",
    )
