"""A model on a server as one side of a comparison."""

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.cache import arrays_in, cache_file, read_cache
from quantdrift.base.errors import ServerError
from quantdrift.base.keys import find_key
from quantdrift.base.records import bytes_digest
from quantdrift.data.sentences import SENTENCES
from quantdrift.models.server_client import EndpointClient, OneInputError, RetryPolicy, TooMuchError
from quantdrift.models.store import keeping
from quantdrift.spec.grammar import Endpoint

Vectors = NDArray[np.float32]
Result = TypeVar("Result")

LEAST_TOLERANCE, OF_NOISE = 1e-3, 3.0
"""Least difference that means another model: relative to an embedding's length, and as a multiple of the difference
between two answers of one run. With MiniLM, other batches in float32 change 1e-6, float16 in place of float32 1.4e-3,
and
8-bit weights 2.8e-2; two answers in float16 differ by 1.2e-3, in bfloat16 by 8e-3."""


# --- many inputs as requests ----------------------------------------------------------------------


def in_halves(embed: Callable[[Sequence[str]], Vectors], texts: Sequence[str], part: range) -> Vectors:
    """Embed the texts at the positions `part`; if they are too many for a request, half of them at a time."""
    try:
        return embed([texts[at] for at in part])
    except OneInputError as error:
        raise OneInputError(part[error.number], error.reason, error.where) from error
    except TooMuchError as error:
        if len(part) == 1:
            raise OneInputError(part[0], f"the server {error.reason}", error.where) from error
    half = (len(part) + 1) // 2
    return np.concatenate([in_halves(embed, texts, piece) for piece in (part[:half], part[half:])])


def side_by_side(calls: Sequence[Callable[[], Result]], width: int) -> list[Result]:
    """Run calls, `width` at a time, and return their results in order.

    After an error or Ctrl-C it does not wait for the remaining calls.
    """
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPool(max(1, min(width, len(calls)))) as pool:
        return list(pool.imap(lambda call: call(), calls))


# --- which model answers to a name, as a server may exchange it -----------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The model that answers to a name now, as recognized by its embeddings of fixed texts.

    Attributes:
        fingerprint: digest of the model; that of an earlier run if it is still the same model.
        dimensions: length of its embeddings.
        noise: largest relative difference between two answers to the same text.
        tolerance: largest relative difference to earlier answers at which it counts as the same model.
        distance: relative difference to the nearest earlier answers; None if there are none.
        first_seen: time of the first answer of this model, ISO 8601.
        changed_since: time of the last answer of another model, if the previous one came from another; else None.
    """

    fingerprint: str
    dimensions: int
    noise: float
    tolerance: float
    distance: float | None
    first_seen: str
    changed_since: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Seen:
    """A model that answered: its embeddings of the fixed texts, and the times of its first and last answers."""

    fingerprint: str
    when: str
    vectors: Vectors
    last: float = inf


def identify(embed: Callable[[Sequence[str]], Vectors], endpoint: Endpoint, root: Path | None) -> Identity:
    """Embed the fixed texts twice, in different batches, and compare the embeddings with those that are kept."""
    now = embed(SENTENCES)
    half = len(SENTENCES) // 2 - 1
    again = np.concatenate([embed(SENTENCES[half:]), embed(SENTENCES[:half])])
    noise = apart(now, np.roll(again, half, axis=0))
    tolerance = max(LEAST_TOLERANCE, OF_NOISE * noise)
    folder = None if root is None else root / "servers" / bytes_digest(str(endpoint).encode(), size=16)
    models = [] if folder is None else _kept_models(folder)
    distances = [apart(model.vectors, now) for model in models]
    distance = min(distances, default=inf)
    seen = models[distances.index(distance)] if models else None
    if seen is None or distance > tolerance:
        taken = {model.fingerprint for model in models}
        seen = _Seen(fingerprint=_fingerprint(now, taken), when=_iso(time.time()), vectors=now)
    if folder is not None:
        with keeping(folder):
            file = folder / f"{seen.fingerprint}.npz"
            if seen in models:
                os.utime(file)  # it answered last
            else:
                with cache_file(file) as unfinished, unfinished.open("wb") as stream:
                    np.savez(stream, vectors=seen.vectors, when=np.array(seen.when))
    return Identity(
        fingerprint=seen.fingerprint,
        dimensions=now.shape[1],
        noise=noise,
        tolerance=tolerance,
        distance=distance if np.isfinite(distance) else None,
        first_seen=seen.when,
        changed_since=_iso(models[0].last) if models and seen is not models[0] else None,
    )


def _kept_models(folder: Path) -> list[_Seen]:
    """Read the models that are kept, the one that answered last first; damaged files are removed."""

    def read(file: Path, content: memoryview) -> _Seen:
        arrays = arrays_in(content)
        vectors = np.asarray(arrays["vectors"], dtype=np.float32)
        return _Seen(fingerprint=file.stem, when=str(arrays["when"]), vectors=vectors, last=file.stat().st_mtime)

    models = [read_cache(file, partial(read, file)) for file in sorted(folder.glob("*.npz"))]
    return sorted(filter(None, models), key=lambda model: -model.last)


def apart(before: Vectors, now: Vectors) -> float:
    """Return the largest distance of two embeddings of a text, relative to the first; infinite for other shapes."""
    if before.shape != now.shape:
        return inf
    first, second = before.astype(np.float64), now.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(first, axis=1), 1e-30)
    return float((np.linalg.norm(first - second, axis=1) / lengths).max())


def _fingerprint(vectors: Vectors, taken: set[str]) -> str:
    """Compute a digest that does not depend on the last bits: of the cosines between the texts, to three decimals.

    So it is mostly the same on another machine, or where nothing was kept. If a kept model has that digest already, the
    digest is of all bits.
    """
    unit = vectors.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-30)
    cosines = np.rint(1000 * (unit @ unit.T)).astype("<i8")
    rounded = bytes_digest(np.array(vectors.shape[1], dtype="<i8").tobytes() + cosines.tobytes(), size=16)
    return rounded if rounded not in taken else bytes_digest(vectors.astype("<f4").tobytes(), size=16)


def _iso(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


# --- the encoder ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Settings of requests to servers.

    Attributes:
        concurrency: requests that run at the same time, per server.
        prefixes: role to the text put before every text; other roles get the prompts of the other model, and none if
            that is on a server, too.
        retry_policy: rules of waiting and of sending again.
    """

    concurrency: int = 4
    prefixes: Mapping[str, str] = field(default_factory=dict)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(slots=True, kw_only=True, eq=False)
class ServerModel:
    """A model on a server, which embeds texts with their prefixes; `reach` makes one.

    Attributes:
        client: sends the requests.
        concurrency: requests that run at the same time.
        prefixes: role to the text put before every text.
        notes: sentences about the model for the output of a run.
    """

    client: EndpointClient
    concurrency: int = 4
    prefixes: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    modules: ClassVar[Sequence[Any]] = ()

    @property
    def endpoint(self) -> Endpoint:
        """The name of the model: URL and model."""
        return self.client.endpoint

    def learn(self, lent: Mapping[str, str], asked: Mapping[str, str]) -> None:
        """Take the prefixes of the other model, and those that the user asks for in their place; add notes on them."""
        self.prefixes = {**lent, **asked}
        why = {**dict.fromkeys(lent, "the other model does"), **dict.fromkeys(asked, "asked for")}
        self.notes += tuple(
            f"{self.endpoint} gets {prefix!r} before every {role}, as {why[role]}"
            for role, prefix in self.prefixes.items()
            if prefix
        )

    def prompt(self, role: str) -> str:
        """Return the text put before every text of a role."""
        return self.prefixes.get(role, "")

    def encode(self, texts: Sequence[str], role: str, batch_size: int) -> Vectors:
        """Embed texts of a role, float32 [n, dim]."""
        sent = [self.prompt(role) + text for text in texts]
        parts = [range(at, min(at + batch_size, len(sent))) for at in range(0, len(sent), batch_size)]
        calls = [partial(in_halves, self.client.embed, sent, part) for part in parts]
        return np.concatenate(side_by_side(calls, self.concurrency))


@dataclass(slots=True, kw_only=True, eq=False)
class EndpointEncoder(ServerModel):
    """A model on a server as one side of a comparison; `open_endpoint` makes one.

    Attributes:
        identity: the model that answers now.
    """

    identity: Identity
    similarity: ClassVar[None] = None
    layers: ClassVar[Sequence[str] | None] = None
    by_batch: ClassVar[bool] = True
    runtime: ClassVar[dict[str, str]] = {}  # no library here decides the embeddings

    @property
    def fingerprint(self) -> str:
        """The digest of its embeddings of fixed texts; their last bits do not change it."""
        return self.identity.fingerprint

    def bits(self) -> None:
        """Return None: bits are unknown for a model on a server."""

    def identify(self) -> dict[str, Any]:
        """Return the address and the identity of the model for the record of a run, as JSON values."""
        named = {"name": str(self.endpoint), "canonical": self.endpoint.model, "kind": "server", "revision": None}
        server = {
            "url": self.endpoint.url,
            "model": self.endpoint.model,
            "prefixes": {role: self.prompt(role) for role in ("query", "document")},
            "identity": asdict(self.identity),
        }
        return {**named, "format": None, "fingerprint": self.fingerprint, "server": server}

    def describe(self) -> dict[str, Any]:
        """Return how it is quantized for the record of a run: unknown."""
        return {"quantizer": None, "nominal_bits": None}

    def key(self, role: str) -> dict[str, Any]:
        """Return all that decides embeddings beside the texts and the model, as JSON values."""
        return {"server": self.endpoint.url, "model": self.endpoint.model, "prefix": self.prompt(role)}


def reach(endpoint: Endpoint, retry_policy: RetryPolicy) -> ServerModel:
    """Return a model on a server, with the key of its host; nothing is sent yet."""
    key = find_key(endpoint.url)
    return ServerModel(client=EndpointClient(endpoint, key=key, retry_policy=retry_policy))


def open_endpoint(endpoint: Endpoint, servers: Servers, *, root: Path | None) -> EndpointEncoder:
    """Connect to a server and identify the model that answers."""
    client = reach(endpoint, servers.retry_policy).client
    try:
        identity = identify(lambda texts: in_halves(client.embed, texts, range(len(texts))), endpoint, root)
    except OneInputError as error:
        raise ServerError(f"{error.where}: asked for {SENTENCES[error.number]!r}, {error.reason}") from error
    model = EndpointEncoder(client=client, identity=identity, concurrency=servers.concurrency)
    if (since := identity.changed_since) is not None:
        note = f"another model answers to {endpoint} than on {since}; embeddings of the earlier model are not used"
        model.notes = (note,)
    return model
