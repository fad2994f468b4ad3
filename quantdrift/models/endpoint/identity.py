"""Which model is behind a name: a server may put another there, and the name stays.

Some fixed texts, the canaries, are embedded at the start of every run and compared with what was
answered before. Servers do not repeat themselves to the last bit, so close answers are one model;
how close is measured, by asking for the canaries twice.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.cache import arrays_in, kept_file, read_kept
from quantdrift.errors import RunError
from quantdrift.models.endpoint.address import Endpoint

__all__ = ["CANARIES", "Identity", "identify"]

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

Vectors = NDArray[np.float32]


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


def identify(
    embed: Callable[[Sequence[str]], Vectors], endpoint: Endpoint, root: Path | None
) -> Identity:
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
