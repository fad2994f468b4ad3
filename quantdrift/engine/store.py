"""Embeddings on disk, keyed by everything that decides them.

They are computed in chunks and each finished chunk is recorded, so a run that was killed goes on where it stopped,
every scheme shares the reference's, and a corpus larger than memory is read back through a memory map.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.cache import array_in, read_kept, say, seal
from quantdrift.errors import MissingExtraError, RunError, ScoreError
from quantdrift.paths import CACHE_VARIABLE, cache_dir
from quantdrift.records import bytes_digest, open_file

# --- Room on disk, asked for before it is written to ----------------------------------------------


def reserve(path: Path, n_bytes: int) -> None:
    """Make sure that a file has its whole size on disk.

    A file that is mapped into memory and has holes ends the process without a word when the disk is full at the
    moment of writing; asked for beforehand, the same is an error that can be reported.
    """
    with path.open("ab") as file:
        if n_bytes > 0 and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        elif file.tell() < n_bytes:  # elsewhere, write the zeros
            block = bytes(1 << 20)
            for at in range(file.tell(), n_bytes, len(block)):
                file.write(block[: n_bytes - at])


# --- Embeddings on disk, keyed by everything that decides them ------------------------------------

CHUNK = 1024
"""Inputs per chunk: what is lost at most when a run is killed."""
CHUNK_ELSEWHERE = 256
"""Of inputs that a server embeds, where it may cost money or an hour of somebody's rate limit."""

Encode = Callable[[NDArray[np.int64]], NDArray[np.float32]]


def key_of(**parts: object) -> str:
    """A digest of named parts, 40 hex digits; any change of a part changes it."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def digest_of(parts: Iterable[str] | NDArray[np.int64]) -> str:
    """A digest of many strings or numbers in their order, 40 hex digits; nothing large is built."""
    digest = hashlib.blake2b(digest_size=20)
    if isinstance(parts, np.ndarray):
        digest.update(np.ascontiguousarray(parts, dtype="<i8").data)
    else:
        for part in parts:
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
    return digest.hexdigest()


class EmbeddingStore:
    """Where embeddings are kept between runs.

    Args:
        root: folder to keep them in; None keeps nothing and holds them in memory.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root

    def get(
        self,
        key: str,
        *,
        order: NDArray[np.int64],
        encode: Encode,
        progress: Callable[[int], None] | None = None,
        chunk: int | None = None,
    ) -> NDArray[np.float32]:
        """The embeddings of a key, computed as far as they are not there yet."""
        tell = progress or (lambda _: None)
        size = chunk or CHUNK
        chunks = [order[at : at + size] for at in range(0, len(order), size)]
        root = self.root
        try:
            if root is None:
                return _in_memory(len(order), chunks, encode, tell)
            folder = root / "embeddings" / key[:2]
            folder.mkdir(parents=True, exist_ok=True)
            with _lock(folder / f"{key}.lock"):
                return _on_disk(folder / key, len(order), chunks, encode, tell)
        except _EncodingError as error:  # the model's own trouble, not the disk's
            raise error.cause from None
        except OSError as error:
            raise _complaint(error, root or Path()) from error


def default_store() -> EmbeddingStore:
    """Where embeddings are kept unless told otherwise: the cache folder, or nowhere.

    `QUANTDRIFT_CACHE=off` keeps nothing.
    """
    off = os.environ.get(CACHE_VARIABLE, "").strip().lower() == "off"
    return EmbeddingStore(None if off else cache_dir())


def _in_memory(
    n: int, chunks: Sequence[NDArray[np.int64]], encode: Encode, tell: Callable[[int], None]
) -> NDArray[np.float32]:
    embeddings: NDArray[np.float32] | None = None
    for chunk in chunks:
        part = _encoded(encode, chunk)
        if embeddings is None:
            embeddings = np.empty((n, part.shape[1]), dtype=np.float32)
        embeddings[chunk] = part
        tell(len(chunk))
    assert embeddings is not None  # there is at least one chunk: datasets are not empty
    return embeddings


def _on_disk(
    stem: Path, n: int, chunks: Sequence[NDArray[np.int64]], encode: Encode, tell: Callable[[int], None]
) -> NDArray[np.float32]:
    finished, partial, done_file = (stem.with_suffix(suffix) for suffix in (".npy", ".partial.npy", ".done"))
    embeddings = read_kept(finished, lambda content: _matrix(content, n), mapped=True)
    if embeddings is not None:
        tell(n)
        return embeddings
    target, done = _resumed(partial, done_file, n, chunks)
    tell(sum(len(chunk) for chunk in chunks[:done]))
    for number, chunk in enumerate(chunks[done:], start=done):
        part = _encoded(encode, chunk)
        if number == 0:
            target = _allocated(partial, n, part.shape[1])
        assert target is not None  # of an earlier run, or of the first chunk
        target[chunk] = part
        with done_file.open("ab") as digests:
            digests.write(_line(part))
        tell(len(chunk))
    del target  # closes the file, which Windows needs before renaming it
    seal(partial)
    os.replace(partial, finished)
    kept: NDArray[np.float32] = np.load(finished, mmap_mode="r")
    done_file.unlink(missing_ok=True)
    return kept


def _matrix(content: memoryview, n: int) -> NDArray[np.float32]:
    array = array_in(content)
    if array.ndim != 2 or len(array) != n or array.dtype != np.float32:  # noqa: PLR2004 -- a matrix
        raise ValueError(f"{array.dtype} of shape {array.shape}")
    return array


def _resumed(
    partial: Path, done_file: Path, n: int, chunks: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.float32] | None, int]:
    """What an earlier run left, and how many of its chunks are as it wrote them.

    Beside the array lies a digest for each chunk, a line each.
    """
    try:
        lines = done_file.read_bytes().splitlines(keepends=True)
        with open_file(partial) as file:
            dim = (os.fstat(file.fileno()).st_size - len(_header(n, 1))) // (4 * n)
            header = _header(n, max(dim, 0))
            intact = file.read(len(header)) == header
    except (OSError, ValueError):
        intact, lines = False, []
    target, done = None, 0
    if intact:
        os.truncate(partial, len(header) + 4 * n * dim)  # it may have been sealed
        target = np.memmap(partial, np.float32, "r+", len(header), (n, dim))
        for chunk, line in zip(chunks, lines, strict=False):
            if line != _line(target[chunk]):
                break
            done += 1
    if done < len(lines):
        say(
            f"{partial} is damaged, or of an earlier version: of {len(lines)} chunks {done} are "
            "used, the others computed again"
        )
    if done:
        os.truncate(done_file, done * _LINE)
        return target, done
    done_file.unlink(missing_ok=True)
    return None, 0


def _line(part: NDArray[np.float32]) -> bytes:
    return bytes_digest(np.ascontiguousarray(part).data.cast("B")).encode() + b"\n"


_LINE = 41
"""Bytes of a chunk's line."""


def _header(n: int, dim: int) -> bytes:
    """How an .npy file of float32 [n, dim] starts."""
    start = io.BytesIO()
    facts = {"descr": "<f4", "fortran_order": False, "shape": (n, dim)}
    format_: Any = np.lib.format  # has no types in older numpy
    format_.write_array_header_1_0(start, facts)
    return start.getvalue()


def _encoded(encode: Encode, chunk: NDArray[np.int64]) -> NDArray[np.float32]:
    try:
        part = np.asarray(encode(chunk), dtype=np.float32)
    except OSError as error:
        raise _EncodingError(error) from error
    if part.ndim != 2 or len(part) != len(chunk):  # noqa: PLR2004 -- one vector per input
        raise ScoreError(
            f"expected the model to return one vector per input, shape ({len(chunk)}, dim); got "
            f"shape {part.shape}. Models with one vector per token cannot be paired this way."
        )
    return part


class _EncodingError(Exception):
    """Carries an OSError of the model past the handling of the disk's."""

    def __init__(self, cause: OSError) -> None:
        self.cause = cause


def _allocated(path: Path, n: int, dim: int) -> NDArray[np.float32]:
    """An array file whose space is really there."""
    header = _header(n, dim)
    path.write_bytes(header)
    reserve(path, len(header) + 4 * n * dim)
    return np.memmap(path, np.float32, "r+", len(header), (n, dim))


def _lock(path: Path) -> Any:
    """So that two runs that want the same embeddings compute them once."""
    try:
        from filelock import FileLock  # noqa: PLC0415 -- only needed when something is encoded
    except ImportError as error:
        raise MissingExtraError("filelock", "models", needed_for="keeping embeddings") from error
    return FileLock(path)


def _complaint(error: OSError, root: Path) -> RunError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return RunError(
            f"no space left for embeddings in {root}. Free some space (quantdrift cache --clear "
            "empties it), set QUANTDRIFT_CACHE to a folder on another disk, or use --no-cache"
        )
    return RunError(
        f"embeddings cannot be kept in {root}: {error}. Set QUANTDRIFT_CACHE to a folder that can "
        "be written, or use --no-cache"
    )
