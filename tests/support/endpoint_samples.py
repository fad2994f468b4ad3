"""Runs of two models of which some are on servers, without waiting and with little data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantdrift.base.progress import Progress, Silent
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.models.inputs import Settings
from quantdrift.models.server import Servers
from quantdrift.models.server_client import RetryPolicy
from quantdrift.models.store import EmbeddingStore
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import Versus
from support.versus_samples import DATASET, run_any


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
    say: Callable[[str], None] = lambda _line: None,
    **options: Any,
) -> Run:
    return run_any(
        Versus(reference=reference, candidate=candidate),
        out,
        dataset=dataset,
        settings=Settings(k=8, batch_size=batch_size, noise_floor=noise_floor),
        store=EmbeddingStore(cache),
        progress=progress or Silent(),
        servers=Servers(retry_policy=RetryPolicy(sleep=lambda _seconds: None, say=say), **options),
    )


ASKED = {"q0": "an eagle over a dune", "q1": "bricks and gloves", "q2": "cloudy fjord"}


def sentences(n: int) -> dict[str, str]:
    """A corpus of n sentences that differ in letters."""
    words = ("apple", "brick", "cloud", "dune", "eagle", "fjord", "glove")
    return {f"d{i}": f"{words[i % 7]} {words[i // 7 % 7]} {words[i // 49 % 7]} {'x' * (i % 5)} {i}" for i in range(n)}
