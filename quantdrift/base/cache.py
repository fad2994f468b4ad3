"""Files that are kept between runs: each ends in a digest, which is checked when it is read.

Embeddings, quantized layers, sensitivities, probes and models seen on servers lie in the cache, each in a common
format with one line behind it. A file that is not what its line was taken of is removed, and that is said; whoever
asked for it makes it again. Nothing here is forced onto the disk at once: what a power cut leaves of a file is found
out in the same way.
"""

import io
import math
import mmap
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.display import clean, complain
from quantdrift.base.records import bytes_digest, file_digest, open_file, whole_file

_MARK = b"\nquantdrift keeps "
CHECKSUM = len(_MARK) + 40 + 1
"""Bytes behind a file's content: a mark, the digest of all that stands before it, a line end."""

Kept = TypeVar("Kept")


# --- writing ----------------------------------------------------------------------------------


@contextmanager
def cache_file(path: Path) -> Iterator[Path]:
    """A place to write to; when the block ends the file is at `path`, with its digest."""
    with whole_file(path, sync=False) as partial:
        yield partial
        add_checksum(partial)


def add_checksum(path: Path) -> None:
    """Put the checksum of a file behind it."""
    line = _MARK + file_digest(path).encode() + b"\n"
    with path.open("ab") as file:
        file.write(line)


# --- reading ----------------------------------------------------------------------------------


def read_cache(path: Path, decode: Callable[[memoryview], Kept], *, mapped: bool = False) -> Kept | None:
    """Read the content of a file; None where there is none, or a damaged one, which is said and removed."""
    try:
        with open_file(path) as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()
        return decode(_without_checksum(memoryview(whole)))
    except FileNotFoundError:
        return None
    except MemoryError:  # nothing is wrong with the file
        raise
    except OSError as error:  # nor is it known here
        say(f"{path} cannot be read ({error.strerror}): made again")
        return None
    except Exception as error:  # numpy, zipfile and safetensors have errors of their own
        say(f"{path} is damaged, or of an earlier version ({error}): removed, and made again")
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return None


def _without_checksum(whole: memoryview) -> memoryview:
    content = whole[:-CHECKSUM]
    if whole[-CHECKSUM:] != _MARK + bytes_digest(content).encode() + b"\n":
        raise ValueError("its digest is missing, or of something else")
    return content


def say(what: str) -> None:
    """One line on standard error; a warning could be turned into an error by whoever runs us."""
    complain(clean(what))


# --- arrays -----------------------------------------------------------------------------------


def array_in(content: memoryview) -> NDArray[Any]:
    """The array of an .npy file, read-only, in the memory of the content.

    Nothing is unpickled, and the header is believed as far as the content goes.
    """
    try:
        return _array(content)
    except Exception as error:  # of a header that is no Python, numpy raises whatever Python does
        raise ValueError(f"no array: {error}") from error


def arrays_in(content: memoryview) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file that is not compressed, by name."""
    try:
        return dict(_named_arrays(content))
    except Exception as error:  # zipfile raises a dozen kinds
        raise ValueError(f"no arrays: {error}") from error


def _array(content: memoryview) -> NDArray[Any]:
    format_: Any = np.lib.format  # has no types in older numpy
    file = io.BytesIO(content[: 1 << 14])  # numpy reads no longer header
    if format_.read_magic(file) != (1, 0):
        raise ValueError("of another version than 1.0")
    shape, by_column, dtype = format_.read_array_header_1_0(file)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"{dtype} of shape {shape} in {len(content):,} bytes")
    return np.ndarray(shape, dtype, content, file.tell(), order="F" if by_column else "C")


def _named_arrays(content: memoryview) -> Iterator[tuple[str, NDArray[Any]]]:
    with zipfile.ZipFile(io.BytesIO(content)) as parts:
        for part in parts.infolist():
            if part.compress_type != zipfile.ZIP_STORED:
                raise ValueError("compressed, and of any size then")
            yield part.filename.removesuffix(".npy"), array_in(memoryview(parts.read(part))).copy()
