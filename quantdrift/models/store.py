"""Embeddings on disk, keyed by everything that decides them.

They are computed in chunks, and each chunk is kept at once: a run that was killed goes on where it stopped. All schemes
share the embeddings of the reference, and a corpus larger than memory is read back through a memory map.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.cache import array_in, cache_file, read_cache
from quantdrift.base.errors import ScoreError
from quantdrift.base.extras import extras_named
from quantdrift.base.paths import cache_dir, cache_is_off
from quantdrift.base.records import bytes_digest, parse_json, refusals, texts_digest
from quantdrift.scoring.ragged import Ragged

# --- Room on disk, reserved before it is written to ----------------------------------------------


def reserve(path: Path, n_bytes: int) -> None:
    """Make sure that a file has its whole size on disk.

    On a full disk, writing to a mapped file that has holes ends the process without a word. Reserving the size first
    gives an error instead.
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
"""Inputs per chunk: at most so many are encoded again after a run was killed."""
CHUNK_ELSEWHERE = 256
"""Inputs per chunk of a server: fewer, as encoding again may cost money or use up a rate limit."""

Outputs = NDArray[np.float32] | Ragged
"""Outputs of a model: one vector per input, [n, dim], or one matrix per input."""
Encode = Callable[[NDArray[np.int64]], Outputs]


def key_of(**parts: object) -> str:
    """The digest of named parts, 40 hex digits; it changes with any part."""
    return bytes_digest(json.dumps(parts, sort_keys=True, default=str).encode())


def digest_of(parts: Iterable[str] | NDArray[np.int64]) -> str:
    """The digest of many strings or numbers in their order, 40 hex digits, computed without joining them."""
    if isinstance(parts, np.ndarray):
        return bytes_digest(np.ascontiguousarray(parts, dtype="<i8").data)
    return texts_digest(parts)


class EmbeddingStore:
    """Embeddings kept between runs.

    Args:
        root: the folder to keep them in; None holds them in memory alone.
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
        """Return the embeddings of a key and compute those that are missing; without a key nothing is kept."""
        chunks = [order[at : at + chunk] for at in range(0, len(order), chunk)]
        if self.root is None or key is None:
            return _in_memory(order, chunks, encode, progress)
        stem = self.root / "embeddings" / key[:2] / key
        with ExitStack() as held:
            with keeping(self.root):
                stem.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(_lock(stem.with_suffix(".lock")))
            return _on_disk(stem, order, chunks, encode, progress)


def store_for(store: EmbeddingStore, *, trusted: bool) -> EmbeddingStore:
    """The store, or one that keeps nothing for a model with code of its own, which no key describes."""
    return EmbeddingStore(None) if trusted else store


def default_store() -> EmbeddingStore:
    """The store in the cache folder; `QUANTDRIFT_CACHE=off` keeps nothing."""
    return EmbeddingStore(None if cache_is_off() else cache_dir())


def keeping(folder: Path) -> AbstractContextManager[None]:
    """Turn errors of the disk into one line while something is written to a folder of the cache."""
    then = (
        ". Free some space (quantdrift cache --clear empties the cache), set QUANTDRIFT_CACHE to a folder on another "
        "disk, or use --no-cache"
    )
    return refusals(f"nothing can be kept in {folder}", then)


def keep_tensors(path: Path, tensors: Any, facts: object) -> None:
    """Keep tensors by name, and facts as JSON, in a file of the cache; RunError if the disk is full."""
    from safetensors.torch import save_file  # noqa: PLC0415 -- comes with transformers

    with keeping(path.parent), cache_file(path) as partial:
        save_file(tensors, partial, metadata={"facts": json.dumps(facts)})


def tensors_in(content: memoryview) -> tuple[dict[str, Any], Any]:
    """Return the tensors and the facts that `keep_tensors` wrote."""
    from safetensors.torch import load  # noqa: PLC0415 -- as above

    header: Any = parse_json(bytes(content[8 : 8 + int.from_bytes(content[:8], "little")]))
    return load(bytes(content)), parse_json(header["__metadata__"]["facts"])


def _in_memory(
    order: NDArray[np.int64], chunks: Sequence[NDArray[np.int64]], encode: Encode, tell: Callable[[int], None]
) -> Outputs:
    vectors, matrices = np.empty((len(order), 0), dtype=np.float32), list[Ragged]()
    for rows in chunks:
        part = _encoded(encode, rows)
        if isinstance(part, Ragged):
            matrices.append(part)
        else:
            vectors = vectors if vectors.shape[1] else np.empty((len(order), part.shape[1]), dtype=np.float32)
            vectors[rows] = part
        tell(len(rows))
    if not matrices:
        return vectors
    lengths = np.concatenate([part.lengths for part in matrices])
    return _by_input(Ragged.joined(np.concatenate([part.flat() for part in matrices]), lengths), order)


def _on_disk(
    stem: Path,
    order: NDArray[np.int64],
    chunks: Sequence[NDArray[np.int64]],
    encode: Encode,
    tell: Callable[[int], None],
) -> Outputs:
    """Keep a file for each chunk while they are computed, and one file of them all in the end, mapped into memory."""
    finished = stem.with_suffix(".npy")
    paths = [stem.with_suffix(f".{number}.npy") for number in range(len(chunks))]
    read_finished = partial(read_cache, finished, partial(_outputs_in, n=len(order)), mapped=True)
    if (kept := read_finished()) is not None:
        tell(len(order))
    else:
        for path, rows in zip(paths, chunks, strict=True):
            if read_cache(path, partial(_outputs_in, n=len(rows))) is None:
                part = _encoded(encode, rows)  # its errors are the model's own trouble, not the disk's
                with keeping(path.parent), cache_file(path) as place, place.open("wb") as file:
                    for array in (part.lengths, part.flat()) if isinstance(part, Ragged) else (part,):
                        np.save(file, array)
            tell(len(rows))
        with keeping(stem.parent), cache_file(finished) as place:
            _join(place, paths, chunks)
        if (kept := read_finished()) is None:
            raise ScoreError(f"{finished} was written and is damaged; run the command again")
    with keeping(stem.parent):
        for path in paths:  # also those of a run that was killed while it removed them
            path.unlink(missing_ok=True)
    return _by_input(kept, order)


def _join(place: Path, paths: Sequence[Path], chunks: Sequence[NDArray[np.int64]]) -> None:
    """Write the outputs of all chunks into one file, with one chunk in memory at a time.

    Vectors stand in the order of the inputs; matrices in the order of the chunks, behind their numbers of rows.
    """

    def chunk(number: int) -> Outputs:
        kept = read_cache(paths[number], partial(_outputs_in, n=len(chunks[number])))
        if kept is None:
            raise ScoreError(f"{paths[number]} was whole and is not any more; run the command again")
        return kept

    format_: Any = np.lib.format  # has no types in older numpy
    first, numbers = chunk(0), range(len(chunks))
    if not isinstance(first, Ragged):
        target = format_.open_memmap(place, mode="w+", dtype=np.float32, shape=(sum(map(len, chunks)), first.shape[1]))
        reserve(place, target.offset + target.nbytes)
        for number in numbers:
            target[chunks[number]] = chunk(number)
        return
    lengths = np.concatenate([_matrices(chunk(number)).lengths for number in numbers])
    with place.open("wb") as file:
        np.save(file, lengths)
        shape = (int(lengths.sum()), first.shape[1])
        format_.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for number in numbers:
            file.write(np.ascontiguousarray(_matrices(chunk(number)).flat()).data)


def _matrices(outputs: Outputs) -> Ragged:
    if not isinstance(outputs, Ragged):
        raise ScoreError("the model gave a matrix for each input, and then one vector")
    return outputs


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


def _by_input(outputs: Outputs, order: NDArray[np.int64]) -> Outputs:
    """Find matrices, which lie in the order in which inputs were encoded, by the positions of the inputs."""
    if not isinstance(outputs, Ragged):
        return outputs
    places = np.empty_like(outputs.places)
    places[order] = outputs.places
    return Ragged(outputs.block, places)


_HEADER = 128
"""Bytes before the numbers of a short array's file."""


def _outputs_in(content: memoryview, n: int) -> Outputs:
    """Read the vectors of `n` inputs, or the numbers of rows of their matrices and then all rows."""
    lengths, at = None, 0
    if b"'<i8'" in bytes(content[:_HEADER]):
        at = _HEADER + 8 * n
        lengths = array_in(content[:at])
    rows = array_in(content[at:])
    # a length above the number of rows could make the sum wrap around
    if lengths is not None and (lengths.shape != (n,) or not ((lengths >= 0) & (lengths <= len(rows))).all()):
        raise ValueError(f"lengths of shape {lengths.shape}")
    if rows.dtype != np.float32 or rows.ndim != 2 or len(rows) != (n if lengths is None else lengths.sum()):  # noqa: PLR2004 -- a matrix
        raise ValueError(f"{rows.dtype} of shape {rows.shape}")
    return rows if lengths is None else Ragged.joined(rows, lengths)


def _lock(path: Path) -> Any:
    """Return a lock, so that two runs that need the same embeddings compute them once."""
    with extras_named(needed_for="keeping embeddings"):
        from filelock import FileLock  # noqa: PLC0415 -- only needed when something is encoded
    return FileLock(path)
