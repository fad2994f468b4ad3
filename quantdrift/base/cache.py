"""Cached files: each ends in a checksum, which is checked when the file is read.

The cache holds embeddings, quantized layers, sensitivities, probes and models seen on servers, each in a common format
with one line appended. A file that does not match its checksum is removed with a warning, and the caller makes it
again. Files are not synced to the disk: a file that a power cut truncated does not match its checksum either.
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
"""Bytes appended to a file's content: a mark, the digest of everything before it, a line end."""

Kept = TypeVar("Kept")


# --- writing ----------------------------------------------------------------------------------


@contextmanager
def cache_file(path: Path) -> Iterator[Path]:
    """Give a place to write to; when the block ends, the file is at `path`, with its checksum."""
    with whole_file(path, sync=False) as partial:
        yield partial
        add_checksum(partial)


def add_checksum(path: Path) -> None:
    """Append its checksum to a file."""
    line = _MARK + file_digest(path).encode() + b"\n"
    with path.open("ab") as file:
        file.write(line)


# --- reading ----------------------------------------------------------------------------------


def read_cache(path: Path, decode: Callable[[memoryview], Kept], *, mapped: bool = False) -> Kept | None:
    """Read and decode a cached file; None if it is missing or damaged. A damaged one is removed with a warning."""
    try:
        with open_file(path) as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()
        return decode(_without_checksum(memoryview(whole)))
    except FileNotFoundError:
        return None
    except MemoryError:  # nothing is wrong with the file
        raise
    except OSError as error:  # the file may be fine
        complain(clean(f"{path} cannot be read ({error.strerror}): made again"))
        return None
    except Exception as error:  # numpy, zipfile and safetensors have errors of their own
        complain(clean(f"{path} is damaged, or of an earlier version ({error}): removed, and made again"))
        with suppress(OSError):
            path.unlink(missing_ok=True)
        return None


def _without_checksum(whole: memoryview) -> memoryview:
    content = whole[:-CHECKSUM]
    if whole[-CHECKSUM:] != _MARK + bytes_digest(content).encode() + b"\n":
        raise ValueError("its digest is missing, or of something else")
    return content


# --- arrays -----------------------------------------------------------------------------------


def array_in(content: memoryview) -> NDArray[Any]:
    """Return the array of an .npy file as a read-only view of the content.

    Nothing is unpickled, and an array that the header makes larger than the content is refused.
    """
    try:
        return _array(content)
    except Exception as error:  # numpy evaluates the header, and lets every error of Python through
        raise ValueError(f"no array: {error}") from error


def _array(content: memoryview) -> NDArray[Any]:
    format_: Any = np.lib.format  # has no types in older numpy
    file = io.BytesIO(content[: 1 << 14])  # numpy reads no longer header
    if format_.read_magic(file) != (1, 0):
        raise ValueError("of another version than 1.0")
    shape, by_column, dtype = format_.read_array_header_1_0(file)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"{dtype} of shape {shape} in {len(content):,} bytes")
    return np.ndarray(shape, dtype, content, file.tell(), order="F" if by_column else "C")


def arrays_in(content: memoryview) -> dict[str, NDArray[Any]]:
    """Return the arrays of an uncompressed .npz file by name."""
    try:
        return dict(_named_arrays(content))
    except Exception as error:  # zipfile and numpy raise a dozen kinds
        raise ValueError(f"no arrays: {error}") from error


def _named_arrays(content: memoryview) -> Iterator[tuple[str, NDArray[Any]]]:
    with zipfile.ZipFile(io.BytesIO(content)) as parts:
        for part in parts.infolist():
            if part.compress_type != zipfile.ZIP_STORED:
                raise ValueError("it is compressed, so that its size is not known")
            yield part.filename.removesuffix(".npy"), array_in(memoryview(parts.read(part))).copy()
