"""A model on a server as one side of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import ServerError
from quantdrift.models.endpoint.address import Endpoint
from quantdrift.models.endpoint.answers import OneInputError
from quantdrift.models.endpoint.batches import Limit, batches, in_halves, side_by_side
from quantdrift.models.endpoint.client import EndpointClient
from quantdrift.models.endpoint.identity import CANARIES, Identity, identify
from quantdrift.models.endpoint.key import find_key
from quantdrift.models.endpoint.retries import Patience

__all__ = ["EndpointEncoder", "Servers", "open_endpoint"]

Vectors = NDArray[np.float32]
Role = Literal["query", "document"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """How servers are asked.

    Attributes:
        concurrency: requests under way at a time, to each.
        prefixes: what is put before every text of a role; for roles that are not in it what the
            other model puts there, nothing if that is a server's, too.
        patience: how long is waited, and for what.
    """

    concurrency: int = 4
    prefixes: Mapping[str, str] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)


class EndpointEncoder:
    """A model on a server, which embeds texts with what belongs before them.

    Attributes:
        endpoint: its name.
        identity: which model it is now.
        prefixes: role to what is put before every text; nothing unless it is set.
        listed: what the server lists of it, if it does.
    """

    def __init__(
        self,
        client: EndpointClient,
        *,
        identity: Identity,
        concurrency: int,
        limit: Limit,
        listed: Mapping[str, Any] | None,
    ) -> None:
        """Use `open_endpoint`, which finds the parts.

        Args:
            client: asks.
            identity: which model it is.
            concurrency: requests under way at a time.
            limit: what is known of how many texts a request may have.
            listed: what the server lists of it.
        """
        self.endpoint = client.endpoint
        self.identity = identity
        self.prefixes: Mapping[str, str] = {}
        self.listed = listed
        self._client, self._concurrency = client, concurrency
        self._limit = limit

    def encode(self, texts: Sequence[str], role: Role, batch_size: int) -> Vectors:
        """Embed texts in the role they have, float32 [n, dim].

        Args:
            texts: without what belongs before them.
            role: what they are.
            batch_size: texts of a request, at most.

        Raises:
            OneInputError: the server refuses a text, or gives no embedding of it.
            ServerError: it cannot be reached, refuses, or answers something else.
        """
        sent = [self.prefixes.get(role, "") + text for text in texts]
        parts = batches([len(text) for text in sent], count=batch_size)
        calls = [partial(in_halves, self._client.embed, sent, part, self._limit) for part in parts]
        try:
            return np.concatenate(side_by_side(calls, self._concurrency))
        except BaseException:
            self._client.stop()
            raise

    def key(self, role: Role) -> dict[str, Any]:
        """What decides embeddings beside the texts and the model, as JSON values."""
        prefix = self.prefixes.get(role, "")
        return {"server": self.endpoint.url, "model": self.endpoint.model, "prefix": prefix}

    def describe(self) -> dict[str, Any]:
        """What a run records of it, as JSON values."""
        return {
            "url": self.endpoint.url,
            "model": self.endpoint.model,
            "listed": self.listed,
            "prefixes": {role: self.prefixes.get(role, "") for role in ("query", "document")},
            "identity": self.identity.to_json(),
        }


def open_endpoint(
    endpoint: Endpoint,
    servers: Servers,
    *,
    hosts: Sequence[str],
    root: Path | None,
) -> EndpointEncoder:
    """Reach a server and see which model answers.

    Args:
        endpoint: the name.
        servers: how it is asked.
        hosts: all that the run asks: one key is not sent to two.
        root: of the cache; None keeps nothing.

    Raises:
        MissingExtraError: httpx or tenacity is not installed.
        UnsupportedError: the key is none.
        ServerError: it cannot be reached, refuses, or answers something else.
        RunError: the cache cannot be written.
    """
    key = find_key(endpoint.host, hosts)
    client = EndpointClient(endpoint, key=key, patience=servers.patience, hosts=hosts)
    limit = Limit()

    def embed(texts: Sequence[str]) -> Vectors:
        return in_halves(client.embed, texts, range(len(texts)), limit)

    try:
        identity = identify(embed, endpoint, root)
    except OneInputError as error:
        raise ServerError(
            f"{endpoint.embeddings}: asked for {CANARIES[error.number]!r}, {error.reason}"
            + client.other_models()
        ) from error
    listed = client.listed() or {}
    return EndpointEncoder(
        client,
        identity=identity,
        concurrency=servers.concurrency,
        limit=limit,
        listed=listed.get(endpoint.model),
    )
