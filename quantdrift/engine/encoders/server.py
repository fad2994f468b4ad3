"""A model on a server as one side of a comparison."""

from __future__ import annotations

import datetime
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from quantdrift.cache import arrays_in, kept_file, read_kept
from quantdrift.engine.encoders.server_client import EndpointClient, OneInputError, Patience, TooMuchError, find_key
from quantdrift.errors import RunError, ServerError
from quantdrift.spec import Endpoint

# --- Many inputs as requests: how many in each, and several at a time -----------------------------

Result = TypeVar("Result")

CHARACTERS = 200_000
"""Of one request at most: in any script less than the megabyte that web servers let through."""


def batches(lengths: Sequence[int], *, count: int, characters: int = CHARACTERS) -> list[range]:
    """Inputs in a row cut into requests that are small enough; a long input has one to itself.

    >>> batches([5, 5, 5, 90, 1], count=2, characters=50)
    [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]

    Args:
        lengths: characters of each input.
        count: inputs of a request, at most.
        characters: of a request, at most.
    """
    found = []
    start = total = 0
    for at, length in enumerate(lengths):
        if at > start and (at - start >= count or total + length > characters):
            found.append(range(start, at))
            start, total = at, 0
        total += length
    if len(lengths) > start:
        found.append(range(start, len(lengths)))
    return found


@dataclass(slots=True)
class Limit:
    """How many inputs a server takes in a request, as far as it has been found out.

    Attributes:
        most: inputs, at most.
    """

    most: float = inf

    def learn(self, n: int) -> None:
        """Note that a number was not too much after a larger one was."""
        self.most = min(self.most, n)


def in_halves(embed: Callable[[Sequence[str]], Vectors], texts: Sequence[str], part: range, limit: Limit) -> Vectors:
    """The embeddings of some texts; where they are too much for a request, of either half.

    Args:
        embed: embeds texts in one request.
        texts: of which `part` is embedded.
        part: positions in them.
        limit: what is known of the server, and is learned here.

    Raises:
        OneInputError: a text is refused by itself, or there is no embedding of it.
        ServerError: the server cannot be reached, refuses, or answers something else.
    """
    half = (len(part) + 1) // 2
    halves = (part[:half], part[half:])
    if len(part) > limit.most:
        return np.concatenate([in_halves(embed, texts, one, limit) for one in halves])
    try:
        return embed([texts[at] for at in part])
    except OneInputError as error:
        raise OneInputError(part[error.number], error.reason) from error
    except TooMuchError as error:
        if len(part) == 1:
            raise OneInputError(part[0], f"the server {error.reason}") from error
        both = [in_halves(embed, texts, one, limit) for one in halves]
        limit.learn(half)
        return np.concatenate(both)


def side_by_side(calls: Sequence[Callable[[], Result]], width: int) -> list[Result]:
    """The results of calls in their order, some of which run at the same time.

    The first error, or Ctrl-C, is raised at once: no further call begins, and nobody waits for
    those under way, as their threads do not keep the process alive.

    Args:
        calls: what is called.
        width: how many at a time.
    """
    if width == 1 or len(calls) == 1:
        return [call() for call in calls]
    done: queue.Queue[tuple[int, Result | None, BaseException | None]] = queue.Queue()
    stopped = threading.Event()
    numbers = iter(range(len(calls)))
    lock = threading.Lock()

    def work() -> None:
        for number in _shared(numbers, lock):
            if stopped.is_set():
                return
            try:
                done.put((number, calls[number](), None))
            except BaseException as error:  # raised again where it is waited for
                done.put((number, None, error))
                return

    for _ in range(min(width, len(calls))):
        threading.Thread(target=work, daemon=True).start()
    results: dict[int, Result | None] = {}
    try:
        while len(results) < len(calls):
            number, result, error = done.get()
            if error is not None:
                raise error
            results[number] = result
    finally:
        stopped.set()
    return [results[number] for number in range(len(calls))]  # type: ignore[misc] # none is missing


def _shared(numbers: Iterator[int], lock: threading.Lock) -> Iterator[int]:
    """What several threads take from, each number once."""
    while True:
        with lock:
            number = next(numbers, None)
        if number is None:
            return
        yield number


# --- Which model is behind a name: a server may put another there, and the name stays -------------

CANARIES = (
    "The ferry to the island leaves twice a day.",
    "How do I return an item that I bought online?",
    "def mean(values): return sum(values) / len(values)",
    "Der Vertrag verlängert sich um ein Jahr, wenn er nicht gekündigt wird.",
    "Patients with a rash should stop taking the tablets and see a doctor.",
    "7 + 5 = 12, 9 - 4 = 5, 6 * 3 = 18",
    "salt",
    "El museo cierra los lunes; los demás días abre a las diez de la mañana.",
)
FOLDER = "servers"
"""In the cache."""
LEAST_TOLERANCE = 1e-3
"""Of MiniLM, float32 in other batches changes 1e-6, float16 in place of float32 1.4e-3, 8-bit
weights 2.8e-2 of an embedding's length.
"""
OF_NOISE = 3.0
"""Largest difference in units of that between two answers of one run: of MiniLM 1.2e-3 in float16
and 8e-3 in bfloat16.
"""
_ROUNDED = 1000


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

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def identify(embed: Callable[[Sequence[str]], Vectors], endpoint: Endpoint, root: Path | None) -> Identity:
    """Ask for the canaries, twice and in other company, and look whether they are known.

    Args:
        embed: embeds texts in one request.
        endpoint: the name.
        root: of the cache, where models that were seen are kept; None knows none and keeps none.

    Raises:
        ServerError: the server cannot be reached, refuses, or answers something else.
        RunError: the cache cannot be written.
    """
    now = embed(CANARIES)
    half = len(CANARIES) // 2 - 1
    again = np.concatenate([embed(CANARIES[half:]), embed(CANARIES[:half])])
    noise = _distance(now, np.roll(again, half, axis=0))
    tolerance = max(LEAST_TOLERANCE, OF_NOISE * noise)
    folder = None if root is None else root / FOLDER / _digest(str(endpoint).encode())
    known = [] if folder is None else _known(folder)
    distances = [_distance(one.vectors, now) for one in known]
    nearest = int(np.argmin(distances)) if known else None
    distance = None if nearest is None else distances[nearest]
    if nearest is not None and distance is not None and distance <= tolerance:
        seen = known[nearest]
    else:
        seen = _Seen(
            fingerprint=_fingerprint(now, {one.fingerprint for one in known}),
            when=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            vectors=now,
        )
    if folder is not None:
        _keep(folder, seen, known)
    another = bool(known) and seen.fingerprint != known[0].fingerprint
    return Identity(
        fingerprint=seen.fingerprint,
        dimensions=now.shape[1],
        noise=noise,
        tolerance=tolerance,
        distance=None if distance is None or not np.isfinite(distance) else distance,
        first_seen=seen.when,
        changed_since=known[0].last if another else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Seen:
    """A model that answered: its canaries and when it did first, and when it last did."""

    fingerprint: str
    when: str
    vectors: Vectors
    last: str = ""


def _known(folder: Path) -> list[_Seen]:
    """Those that are kept, the one that answered last first; what is damaged is removed."""
    files = sorted(folder.glob("*.npz"))
    found = [one for file in files if (one := read_kept(file, partial(_read, file))) is not None]
    return [seen for _, seen in sorted(found, key=lambda one: -one[0])]


def _read(file: Path, content: memoryview) -> tuple[float, _Seen]:
    arrays, at = arrays_in(content), file.stat().st_mtime
    last = datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds")
    vectors = np.asarray(arrays["vectors"], dtype=np.float32)
    return at, _Seen(fingerprint=file.stem, when=str(arrays["when"]), vectors=vectors, last=last)


def _keep(folder: Path, seen: _Seen, known: Sequence[_Seen]) -> None:
    file = folder / f"{seen.fingerprint}.npz"
    try:
        if seen in known:
            os.utime(file)  # it answered last
            return
        with kept_file(file) as unfinished, unfinished.open("wb") as stream:
            np.savez(stream, vectors=seen.vectors, when=np.array(seen.when))
    except OSError as error:
        raise RunError(
            f"the models seen on servers cannot be kept in {folder}: {error}. Set QUANTDRIFT_CACHE "
            "to a folder that can be written, or use --no-cache"
        ) from error


def _distance(one: Vectors, other: Vectors) -> float:
    """Largest difference of two answers to one canary, over the length of the first."""
    if one.shape != other.shape:
        return float("inf")
    first, second = one.astype(np.float64), other.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(first, axis=1), 1e-30)
    return float((np.linalg.norm(first - second, axis=1) / lengths).max())


def _fingerprint(vectors: Vectors, taken: set[str]) -> str:
    """A digest that the last bits leave as it is: of the canaries' cosines, to three decimals.

    So it is mostly the same where nothing was kept, in another place or on another machine. A model
    that differs in less than that from one that is known gets a digest of every bit.
    """
    unit = vectors.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-30)
    cosines = np.rint(_ROUNDED * (unit @ unit.T)).astype("<i8")
    rounded = _digest(np.array(vectors.shape[1], dtype="<i8").tobytes() + cosines.tobytes())
    return rounded if rounded not in taken else _digest(vectors.astype("<f4").tobytes())


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


# --- A model on a server as one side of a comparison ----------------------------------------------

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


def open_endpoint(endpoint: Endpoint, servers: Servers, *, hosts: Sequence[str], root: Path | None) -> EndpointEncoder:
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
            f"{endpoint.embeddings}: asked for {CANARIES[error.number]!r}, {error.reason}" + client.other_models()
        ) from error
    listed = client.listed() or {}
    return EndpointEncoder(
        client, identity=identity, concurrency=servers.concurrency, limit=limit, listed=listed.get(endpoint.model)
    )
