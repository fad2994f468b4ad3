"""Finds a model by its name: on a server, in a folder, a file or on the hub. A server needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from quantdrift.models.server import ServerModel, reach
from quantdrift.models.server_client import RetryPolicy
from quantdrift.spec.grammar import Endpoint, is_endpoint, read_endpoint

if TYPE_CHECKING:
    from quantdrift.builtin.sentence.work import SentenceEncoder
    from quantdrift.models.files.checkpoint import Checkpoint
    from quantdrift.models.model import EmbeddingModel


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model that was found and is not loaded yet."""

    name: str
    place: Endpoint | Checkpoint

    @property
    def on_server(self) -> bool:
        """Whether the model is on a server."""
        return isinstance(self.place, Endpoint)

    def load(
        self,
        *,
        like: SentenceEncoder | None = None,
        device: str | None = None,
        prefixes: Mapping[str, str] = MappingProxyType({}),
        timeout: float | None = None,
    ) -> EmbeddingModel | ServerModel:
        """Load the model; a server is not contacted until the first text is embedded.

        Args:
            like: model whose settings fill those that a checkpoint lacks, and whose prompts a server gets.
            device: device that a local model runs on.
            prefixes: role to the text that a server gets before every text.
            timeout: seconds that a request to a server may take, failed attempts included.
        """
        if isinstance(self.place, Endpoint):
            prompts = {} if like is None else {role: like.prompt(role) for role in ("query", "document")}
            policy = RetryPolicy() if timeout is None else RetryPolicy(timeout=timeout, total=timeout)
            server = reach(self.place, policy)
            server.learn(prompts, prefixes)
            return server
        from quantdrift.asking.opening import load_searching  # noqa: PLC0415
        from quantdrift.builtin.sentence.work import pick_device  # noqa: PLC0415
        from quantdrift.candidate.checkpoint import StoredCandidate, load_checkpoint  # noqa: PLC0415 -- torch, as the next ones
        from quantdrift.models.model import check_vectors  # noqa: PLC0415

        if like is not None or self.place.method != "none":
            candidate = load_checkpoint(self.place, like, device=pick_device(device))
            assert isinstance(candidate, StoredCandidate)  # `like` is no reranker
            return candidate
        model = load_searching(self.name, device=device)
        check_vectors(model, f"{self.name}: a model is told again")
        return model


def find_model(name: str) -> FoundModel:
    """Find the server, folder, file or hub model of a name; a wrong name is refused before torch is loaded."""
    if is_endpoint(name):
        return FoundModel(name=name, place=read_endpoint(name))
    from quantdrift.models.files.checkpoint import find_checkpoint  # noqa: PLC0415 -- no server needs it

    return FoundModel(name=name, place=find_checkpoint(name))
