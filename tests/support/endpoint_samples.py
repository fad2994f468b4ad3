"""Runs of two models of which some are on servers, and a server that answers by a script."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from quantdrift.base.progress import Progress, Silent
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.engine.encoders.server import Servers
from quantdrift.engine.encoders.server_client import EndpointClient, Key, RetryPolicy
from quantdrift.engine.inputs import Settings
from quantdrift.engine.run import run as run_pair
from quantdrift.engine.store import EmbeddingStore
from quantdrift.runs.folder import Run
from quantdrift.spec.grammar import Versus, read_endpoint
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
    retry_policy = RetryPolicy(sleep=lambda _seconds: None, timeout=timeout, say=say)
    return run_pair(
        Versus(reference=reference, candidate=candidate),
        dataset,
        out=out,
        settings=Settings(k=8, batch_size=batch_size, noise_floor=noise_floor),
        store=EmbeddingStore(cache),
        progress=progress or Silent(),
        device="cpu",
        servers=Servers(retry_policy=retry_policy, **options),
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


OK = {"data": [{"index": 0, "embedding": [1.0, 2.0]}]}


@dataclass
class Time:
    """A clock that sleeps at once."""

    at: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


@dataclass
class Script:
    """Answers requests one after the other; an exception is raised."""

    answers: list[Any]
    requests: list[Any] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    time: Time = field(default_factory=Time)
    told: list[str] = field(default_factory=list)

    def __call__(self, request: Any) -> Any:
        self.requests.append(request)
        self.starts.append(self.time.at)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return httpx.Response(answer, json={"error": {"message": f"says {answer}"}})
        return httpx.Response(200, json=answer) if isinstance(answer, dict) else answer

    def client(self, *, key: Key | None = None, per_minute: float | None = None) -> EndpointClient:
        retry_policy = RetryPolicy(
            now=lambda: self.time.at,
            sleep=self.time.sleep,
            requests_per_minute=per_minute,
            say=self.told.append,
            transport=httpx.MockTransport(self),
        )
        return EndpointClient(read_endpoint("openai:https://api.example.org/v1#m"), key=key, retry_policy=retry_policy)
