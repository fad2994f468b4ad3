"""A server that answers by a script, and a clock that sleeps at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from quantdrift.engine.encoders.server_client import EndpointClient, Key, Patience
from quantdrift.spec import read_endpoint

NAME = "openai:https://api.example.org/v1#m"
OK = {"data": [{"index": 0, "embedding": [1.0, 2.0]}]}


@dataclass
class Time:
    """A clock that sleeps at once."""

    at: float = 1000.0
    slept: list[float] = field(default_factory=list)
    meanwhile: Callable[[], object] = field(default=lambda: None)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.meanwhile()
        self.at += seconds

    def patience(self, **given: Any) -> Patience:
        return Patience(now=lambda: self.at, sleep=self.sleep, date=lambda: 1_800_000_000.0, **given)


@dataclass
class Script:
    """Answers requests one after the other; an exception is raised."""

    answers: list[Any]
    requests: list[Any] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    time: Time = field(default_factory=Time)
    told: list[str] = field(default_factory=list)
    listed: Any = None

    def __call__(self, request: Any) -> Any:
        if request.method == "GET":
            return httpx.Response(200, json=self.listed) if self.listed else httpx.Response(404)
        self.requests.append(request)
        self.starts.append(self.time.at)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return httpx.Response(answer, json={"error": {"message": f"says {answer}"}})
        return httpx.Response(200, json=answer) if isinstance(answer, dict) else answer

    def client(self, *, key: Key | None = None, per_minute: float | None = None) -> EndpointClient:
        patience = self.time.patience(
            requests_per_minute=per_minute, say=self.told.append, transport=httpx.MockTransport(self)
        )
        return EndpointClient(read_endpoint(NAME), key=key, patience=patience)
