"""Room on disk, asked for before it is written to."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["reserve"]


def reserve(path: Path, n_bytes: int) -> None:
    """Make sure that a file has its whole size on disk.

    A file that is mapped into memory and has holes ends the process without a word when the disk is
    full at the moment of writing; asked for beforehand, the same is an error that can be reported.

    Args:
        path: the file; made if it is not there, never shortened.
        n_bytes: its size.

    Raises:
        OSError: with errno ENOSPC, there is not enough room.
    """
    with path.open("ab") as file:
        if n_bytes > 0 and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        elif file.tell() < n_bytes:  # elsewhere, write the zeros
            block = bytes(1 << 20)
            for at in range(file.tell(), n_bytes, len(block)):
                file.write(block[: n_bytes - at])
