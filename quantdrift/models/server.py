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
from quantdrift.base.keys import OPENAI, find_key
from quantdrift.base.records import bytes_digest
from quantdrift.data.sentences import SENTENCES
from quantdrift.models.server_client import EndpointClient, OneInputError, RetryPolicy, TooMuchError
from quantdrift.models.store import keeping
from quantdrift.spec.grammar import Endpoint

Vectors = NDArray[np.float32]
Result = TypeVar("Result")

LEAST_TOLERANCE, OF_NOISE = 1e-3, 3.0
"""What another model differs by at least, relative to an embedding's length, and in units of the difference between
two answers of one run. Of MiniLM, float32 in other batches changes 1e-6, float16 in place of float32 1.4e-3 and 8-bit
weights 2.8e-2; two answers in float16 differ by 1.2e-3, in bfloat16 by 8e-3."""


# --- many inputs as requests ----------------------------------------------------------------------


def in_halves(embed: Callable[[Sequence[str]], Vectors], texts: Sequence[str], part: range) -> Vectors:
    """The embeddings of the texts in `part`; where they are too much for a request, of either half."""
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
    """The results of calls in their order, of which `width` run at a time.

    After an error, or Ctrl-C, nobody waits for the calls behind it.
    """
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPool(max(1, min(width, len(calls)))) as pool:
        return list(pool.imap(lambda call: call(), calls))


# --- which model is behind a name: a server may put another there, and the name stays -------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The model that answers to a name now.

    Attributes:
        fingerprint: digest of it; that of an earlier run if it is the same model still.
        dimensions: of its embeddings.
        noise: largest relative difference between two answers to the same canary.
        tolerance: largest relative difference to earlier answers that is not another model.
        distance: to the earlier answers that are nearest; None if there are none.
        first_seen: when this model first answered to the name, ISO 8601.
        changed_since: when another last did, if it was another the last time; else None.
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
    """A model that answered: its canaries, when it did first, and (in seconds) when it last did."""

    fingerprint: str
    when: str
    vectors: Vectors
    last: float = inf


def identify(embed: Callable[[Sequence[str]], Vectors], endpoint: Endpoint, root: Path | None) -> Identity:
    """Ask for the canaries, twice and in other company, and look whether they are known."""
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
    """The models that are kept, the one that answered last first; what is damaged is removed."""

    def read(file: Path, content: memoryview) -> _Seen:
        arrays = arrays_in(content)
        vectors = np.asarray(arrays["vectors"], dtype=np.float32)
        return _Seen(fingerprint=file.stem, when=str(arrays["when"]), vectors=vectors, last=file.stat().st_mtime)

    models = [read_cache(file, partial(read, file)) for file in sorted(folder.glob("*.npz"))]
    return sorted(filter(None, models), key=lambda model: -model.last)


def apart(before: Vectors, now: Vectors) -> float:
    """The largest distance of two embeddings of a text, over the length of the first; infinite of other lengths."""
    if before.shape != now.shape:
        return inf
    first, second = before.astype(np.float64), now.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(first, axis=1), 1e-30)
    return float((np.linalg.norm(first - second, axis=1) / lengths).max())


def _fingerprint(vectors: Vectors, taken: set[str]) -> str:
    """A digest that the last bits leave as it is: of the canaries' cosines, to three decimals.

    So it is mostly the same where nothing was kept, in another place or on another machine. A model that differs in
    less than that from one that is known gets a digest of every bit.
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
        concurrency: requests under way at a time, to each.
        prefixes: what is put before every text of a role; for roles that are not in it what the other model puts
            there, nothing if that is a server's, too.
        retry_policy: how long is waited, and for what.
    """

    concurrency: int = 4
    prefixes: Mapping[str, str] = field(default_factory=dict)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(slots=True, kw_only=True, eq=False)
class ServerModel:
    """A model on a server, which embeds texts with what belongs before them; `reach` makes one.

    Attributes:
        client: asks.
        concurrency: requests under way at a time.
        prefixes: role to what is put before every text; nothing unless it is set.
        notes: what a run says of it, one sentence each.
    """

    client: EndpointClient
    concurrency: int = 4
    prefixes: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    modules: ClassVar[Sequence[Any]] = ()

    @property
    def endpoint(self) -> Endpoint:
        """Its name."""
        return self.client.endpoint

    def learn(self, lent: Mapping[str, str], asked: Mapping[str, str]) -> None:
        """Put before texts what the other model puts there, or what the user asked for; say so."""
        self.prefixes = {**lent, **asked}
        why = {**dict.fromkeys(lent, "the other model does"), **dict.fromkeys(asked, "asked for")}
        self.notes += tuple(
            f"{self.endpoint} gets {prefix!r} before every {role}, as {why[role]}"
            for role, prefix in self.prefixes.items()
            if prefix
        )

    def prompt(self, role: str) -> str:
        """Return what is put before every text of a role."""
        return self.prefixes.get(role, "")

    def encode(self, texts: Sequence[str], role: str, batch_size: int) -> Vectors:
        """Embed texts in the role they have, float32 [n, dim]."""
        sent = [self.prompt(role) + text for text in texts]
        parts = [range(at, min(at + batch_size, len(sent))) for at in range(0, len(sent), batch_size)]
        calls = [partial(in_halves, self.client.embed, sent, part) for part in parts]
        return np.concatenate(side_by_side(calls, self.concurrency))


@dataclass(slots=True, kw_only=True, eq=False)
class EndpointEncoder(ServerModel):
    """A model on a server as one side of a comparison; `open_endpoint` makes one.

    Attributes:
        identity: which model it is now.
    """

    identity: Identity
    similarity: ClassVar[None] = None
    layers: ClassVar[Sequence[str] | None] = None
    by_batch: ClassVar[bool] = True

    @property
    def fingerprint(self) -> str:
        """Digest of what it answers to fixed texts; the server's last bits do not change it."""
        return self.identity.fingerprint

    @property
    def runtime(self) -> dict[str, str]:
        """Empty: nothing that is installed here decides anything."""
        return {}

    def bits(self) -> None:
        """Unknown for a model on a server: returns None."""

    def identify(self) -> dict[str, Any]:
        """Return what a run records of where it is, as JSON values."""
        named = {"name": str(self.endpoint), "canonical": self.endpoint.model, "kind": "server", "revision": None}
        server = {
            "url": self.endpoint.url,
            "model": self.endpoint.model,
            "prefixes": {role: self.prompt(role) for role in ("query", "document")},
            "identity": asdict(self.identity),
        }
        return {**named, "format": None, "fingerprint": self.fingerprint, "server": server}

    def describe(self) -> dict[str, Any]:
        """Return what a run records of how it is quantized: it is not known."""
        return {"quantizer": None, "nominal_bits": None}

    def key(self, role: str) -> dict[str, Any]:
        """Return what decides embeddings beside the texts and the model, as JSON values."""
        return {"server": self.endpoint.url, "model": self.endpoint.model, "prefix": self.prompt(role)}


def reach(endpoint: Endpoint, retry_policy: RetryPolicy) -> ServerModel:
    """A model on a server with the key of its host; nothing is sent yet."""
    key = find_key(OPENAI, endpoint.url)
    return ServerModel(client=EndpointClient(endpoint, key=key, retry_policy=retry_policy))


def open_endpoint(endpoint: Endpoint, servers: Servers, *, root: Path | None) -> EndpointEncoder:
    """Reach a server and see which model answers."""
    client = reach(endpoint, servers.retry_policy).client
    try:
        identity = identify(lambda texts: in_halves(client.embed, texts, range(len(texts))), endpoint, root)
    except OneInputError as error:
        raise ServerError(f"{error.where}: asked for {SENTENCES[error.number]!r}, {error.reason}") from error
    since = identity.changed_since
    changed = (
        ()
        if since is None
        else (f"another model answers to {endpoint} than on {since}: embeddings of then are not used",)
    )
    return EndpointEncoder(client=client, identity=identity, concurrency=servers.concurrency, notes=changed)
