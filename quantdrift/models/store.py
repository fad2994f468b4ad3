"""Embeddings on disk, keyed by everything that decides them.

They are computed in chunks and each finished chunk is recorded, so a run that was killed goes on where it stopped,
every scheme shares the reference's, and a corpus larger than memory is read back through a memory map.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.cache import add_checksum, array_in, cache_file, read_cache, say
from quantdrift.base.errors import ScoreError
from quantdrift.base.extras import extras_named
from quantdrift.base.paths import CACHE_VARIABLE, cache_dir
from quantdrift.base.records import bytes_digest, refusals, texts_digest
from quantdrift.scoring.ragged import Matrix, Ragged

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
"""Inputs per chunk of a server: few, as a lost chunk may cost money, or an hour of somebody's rate limit."""

Outputs = NDArray[np.float32] | Ragged
"""What a model puts out for inputs: a vector each, [n, dim], or a matrix each."""
Encode = Callable[[NDArray[np.int64]], Outputs]


def key_of(**parts: object) -> str:
    """A digest of named parts, 40 hex digits; any change of a part changes it."""
    return bytes_digest(json.dumps(parts, sort_keys=True, default=str).encode())


def digest_of(parts: Iterable[str] | NDArray[np.int64]) -> str:
    """A digest of many strings or numbers in their order, 40 hex digits; nothing large is built."""
    if isinstance(parts, np.ndarray):
        return bytes_digest(np.ascontiguousarray(parts, dtype="<i8").data)
    return texts_digest(parts)


class EmbeddingStore:
    """A store that keeps embeddings between runs.

    Args:
        root: folder to keep them in; None keeps nothing and holds them in memory.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root

    def get(
        self,
        key: str | None,
        *,
        order: NDArray[np.int64],
        encode: Encode,
        progress: Callable[[int], None] = lambda _: None,
        chunk: int = CHUNK,
    ) -> Any:
        """The embeddings of a key, computed as far as they are not there yet; None keeps nothing."""
        chunks = [order[at : at + chunk] for at in range(0, len(order), chunk)]
        if self.root is None or key is None:
            return _in_memory(len(order), chunks, encode, progress)
        stem = self.root / "embeddings" / key[:2] / key
        with ExitStack() as held:
            with keeping(self.root):
                stem.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(_lock(stem.with_suffix(".lock")))
            return _on_disk(stem, len(order), chunks, encode, progress)


def store_for(store: EmbeddingStore, *, trusted: bool) -> EmbeddingStore:
    """The store, or one that keeps nothing: what code that comes with a model does stands in no key."""
    return EmbeddingStore(None) if trusted else store


def default_store() -> EmbeddingStore:
    """The store that is used unless another is given: the cache folder, or nowhere.

    `QUANTDRIFT_CACHE=off` keeps nothing.
    """
    off = os.environ.get(CACHE_VARIABLE, "").strip().lower() == "off"
    return EmbeddingStore(None if off else cache_dir())


def keeping(folder: Path) -> AbstractContextManager[None]:
    """Inside, something is written to a folder of the cache; what the disk refuses is told in one line."""
    then = (
        ". Free some space (quantdrift cache --clear empties the cache), set QUANTDRIFT_CACHE to a folder on another "
        "disk, or use --no-cache"
    )
    return refusals(f"nothing can be kept in {folder}", then)


def _in_memory(n: int, chunks: Sequence[NDArray[np.int64]], encode: Encode, tell: Callable[[int], None]) -> Outputs:
    embeddings = np.empty((n, 0), dtype=np.float32)
    for chunk in chunks:
        part = _encoded(encode, chunk)
        if isinstance(part, Ragged):
            tell(len(chunk))
            return _matrices(n, chunks, encode, tell, first=part)
        if not embeddings.shape[1]:
            embeddings = np.empty((n, part.shape[1]), dtype=np.float32)
        embeddings[chunk] = part
        tell(len(chunk))
    return embeddings


def _on_disk(
    stem: Path, n: int, chunks: Sequence[NDArray[np.int64]], encode: Encode, tell: Callable[[int], None]
) -> Outputs:
    if _finished(stem).exists() or _chunk_file(stem, 0).exists():
        return _matrices(n, chunks, encode, tell, stem=stem)
    finished, begun, done_file = (stem.with_suffix(suffix) for suffix in (".npy", ".partial.npy", ".done"))
    embeddings = read_cache(finished, lambda content: _matrix(array_in(content), n), mapped=True)
    if embeddings is not None:
        tell(n)
        return embeddings
    with keeping(stem.parent):
        target, done = _resumed(begun, done_file, n, chunks)
    tell(sum(len(chunk) for chunk in chunks[:done]))
    for number, chunk in enumerate(chunks[done:], start=done):
        part = _encoded(encode, chunk)  # its errors are the model's own trouble, not the disk's
        if isinstance(part, Ragged):
            tell(len(chunk))
            return _matrices(n, chunks, encode, tell, stem=stem, first=part)
        with keeping(stem.parent):
            if number == 0:
                target = _allocated(begun, n, part.shape[1])
            assert target is not None  # of an earlier run, or of the first chunk
            target[chunk] = part
            with done_file.open("ab") as digests:
                digests.write(_line(part))
        tell(len(chunk))
    del target  # closes the file, which Windows needs before renaming it
    with keeping(stem.parent):
        add_checksum(begun)
        os.replace(begun, finished)
        done_file.unlink(missing_ok=True)
    kept: NDArray[np.float32] = np.load(finished, mmap_mode="r")
    return kept


def _matrix(array: NDArray[Any], n: int) -> NDArray[np.float32]:
    if array.ndim != 2 or len(array) != n or array.dtype != np.float32:  # noqa: PLR2004 -- a matrix
        raise ValueError(f"{array.dtype} of shape {array.shape}")
    return array


def _resumed(
    partial: Path, done_file: Path, n: int, chunks: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.float32] | None, int]:
    """Return the array that an earlier run left, and how many of its chunks are as it wrote them.

    Beside the array lies a digest for each chunk, a line each.
    """
    if not done_file.exists():
        return None, 0
    lines, done = done_file.read_bytes().splitlines(keepends=True), 0
    target: Any = None
    with suppress(Exception):  # numpy raises whatever Python does where a header is none
        _matrix(_mapped(partial, mode="r"), n)  # opened to write, a short file would grow
        target = _mapped(partial, mode="r+")
        os.truncate(partial, target.offset + target.nbytes)  # it may have its digest already
        while done < len(lines) and lines[done] == _line(target[chunks[done]]):
            done += 1
    if done < len(lines):
        say(f"{partial} is damaged, or of an earlier version: of {len(lines)} chunks {done} are used")
    done_file.write_bytes(b"".join(lines[:done]))
    return (target if done else None), done


def _mapped(path: Path, **how: Any) -> Any:
    """An .npy file in memory."""
    format_: Any = np.lib.format  # has no types in older numpy
    return format_.open_memmap(path, **how)


def _line(part: NDArray[np.float32]) -> bytes:
    return bytes_digest(np.ascontiguousarray(part).data.cast("B")).encode() + b"\n"


def _encoded(encode: Encode, chunk: NDArray[np.int64]) -> Outputs:
    part = encode(chunk)
    if not isinstance(part, Ragged):
        part = np.asarray(part, dtype=np.float32)
    if len(part.shape) != 2 or len(part) != len(chunk):  # noqa: PLR2004 -- one vector per input
        raise ScoreError(
            f"expected the model to return one vector per input, shape ({len(chunk)}, dim), or one matrix; got "
            f"shape {part.shape}"
        )
    return part


# --- A matrix for each input: a file a chunk while they are made, and one in the end, which is mapped into memory ---


def _matrices(
    n: int,
    chunks: Sequence[NDArray[np.int64]],
    encode: Encode,
    tell: Callable[[int], None],
    *,
    stem: Path | None = None,
    first: Ragged | None = None,
) -> Ragged:
    """Matrices of inputs, chunk by chunk; `first` is the first chunk's, which has been told."""
    order = np.concatenate(chunks)
    if stem is not None and (kept := read_cache(_finished(stem), partial(_chunk_in, n=n), mapped=True)) is not None:
        tell(n)
        return _in_order(*kept, order)
    made, lengths, width = list[Matrix](), list[NDArray[np.int64]](), 0
    for number, rows in enumerate(chunks):
        path = None if stem is None else _chunk_file(stem, number)
        part = None if path is None else read_cache(path, partial(_chunk_in, n=len(rows)))
        if part is None or part[0].shape[1] != (width or part[0].shape[1]):
            fresh = first if number == 0 and first is not None else _encoded(encode, rows)
            if not isinstance(fresh, Ragged):
                raise ScoreError("the model gave a matrix for each input, and then one vector")
            part = fresh.flat(), fresh.lengths
            if path is not None:
                with keeping(path.parent), cache_file(path) as place, place.open("wb") as file:
                    for array in (part[1], part[0]):
                        np.save(file, array)
        width = int(part[0].shape[1])
        lengths.append(np.array(part[1]))
        made += [part[0]] if path is None else []
        tell(0 if number == 0 and first is not None else len(rows))
    if stem is None:
        return _in_order(np.concatenate(made), np.concatenate(lengths), order)
    with keeping(stem.parent):
        _join(stem, lengths, width)
    kept = read_cache(_finished(stem), partial(_chunk_in, n=n), mapped=True)
    if kept is None:
        raise ScoreError(f"{_finished(stem)} was written and is damaged; run the command again")
    return _in_order(*kept, order)


def _in_order(rows: Matrix, lengths: NDArray[np.int64], order: NDArray[np.int64]) -> Ragged:
    """Matrices that lie in the order in which inputs were put through, by the positions of the inputs."""
    joined = Ragged.joined(rows, lengths)
    places = np.empty_like(joined.places)
    places[order] = joined.places
    return Ragged(joined.block, places)


def _join(stem: Path, lengths: Sequence[NDArray[np.int64]], width: int) -> None:
    """Put the chunks' files into one, a chunk in memory at a time; so one file is open while it is scored."""
    format_: Any = np.lib.format  # has no types in older numpy
    paths = [_chunk_file(stem, number) for number in range(len(lengths))]
    shape = (int(sum(part.sum() for part in lengths)), width)
    with cache_file(_finished(stem)) as place, place.open("wb") as file:
        np.save(file, np.concatenate(lengths))
        format_.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for path, part in zip(paths, lengths, strict=True):
            kept = read_cache(path, partial(_chunk_in, n=len(part)))
            if kept is None:
                raise ScoreError(f"{path} was whole and is not any more; run the command again")
            file.write(np.ascontiguousarray(kept[0]).data)
    for path in paths:
        path.unlink(missing_ok=True)


_HEADER = 128
"""Bytes before the numbers of a short array's file."""


def _chunk_file(stem: Path, number: int) -> Path:
    return stem.with_suffix(f".{number}.npy")


def _finished(stem: Path) -> Path:
    """The file of matrices that are all there."""
    return stem.with_suffix(".all.npy")


def _chunk_in(content: memoryview, n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The rows of a chunk's matrices, and how many each has."""
    at = _HEADER + 8 * n
    lengths, rows = array_in(content[:at]), array_in(content[at:])
    fits = lengths.shape == (n,) and lengths.dtype == np.int64 and len(rows.shape) == 2  # noqa: PLR2004 -- a matrix
    if not fits or int(lengths.min(initial=0)) < 0 or int(lengths.max(initial=0)) > len(rows):
        raise ValueError(f"{lengths.dtype} of shape {lengths.shape}")
    return _matrix(rows, int(lengths.sum())), lengths


def _allocated(path: Path, n: int, dim: int) -> NDArray[np.float32]:
    """An array file whose space is really there."""
    target: Any = _mapped(path, mode="w+", dtype=np.float32, shape=(n, dim))
    reserve(path, target.offset + target.nbytes)
    return np.asarray(target)


def _lock(path: Path) -> Any:
    """So that two runs that want the same embeddings compute them once."""
    with extras_named(needed_for="keeping embeddings"):
        from filelock import FileLock  # noqa: PLC0415 -- only needed when something is encoded
    return FileLock(path)
