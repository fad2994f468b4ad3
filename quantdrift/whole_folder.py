"""A folder that is there in full or not at all, whatever goes wrong while it is written."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantdrift.errors import RunError

__all__ = ["whole_folder"]


@contextmanager
def whole_folder(path: Path, *, what: str) -> Iterator[Path]:
    """An empty folder to fill; when the block ends it is at `path`, in place of what was there.

    It lies beside its place until it is complete and is moved there in one step. After an error,
    Ctrl-C too, nothing is left of it and the place is as it was. After a kill, hidden folders may
    be left beside the place; nothing in them looks finished, as the record is written last.

    Args:
        path: folder to make or to replace. Whether what is there may go has to be checked before. A
            link to a folder stays one: what it leads to is replaced.
        what: is written, for messages: "the run".

    Raises:
        RunError: no space, no permission.
    """
    with _complaints(path, what):
        place = Path(os.path.realpath(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        # mkdtemp makes folders private; one inside is as readable as anything else made here. A
        # model library that is asked to save also names its folder in what it writes or logs.
        partial = Path(tempfile.mkdtemp(prefix=f".{place.name}.partial-", dir=place.parent))
        try:
            inside = partial / place.name
            inside.mkdir()
            yield inside
            _move(inside, place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _move(inside: Path, place: Path) -> None:
    """Put `inside` in its place; what was there stays whole until the last step."""
    if place.is_dir() and any(place.iterdir()):
        earlier = Path(tempfile.mkdtemp(prefix=f".{place.name}.earlier-", dir=place.parent))
        try:
            os.replace(place, earlier / place.name)
            os.replace(inside, place)
        except BaseException:  # Ctrl-C too
            if not place.exists():
                os.replace(earlier / place.name, place)
            raise
        finally:
            shutil.rmtree(earlier, ignore_errors=True)
        return
    if place.is_dir():
        place.rmdir()
    os.replace(inside, place)


@contextmanager
def _complaints(path: Path, what: str) -> Iterator[None]:
    """Turn what the disk says into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise RunError(
                f"no space left to write {what} to {path}; nothing was left behind. Free some "
                "space or choose another disk with --out"
            ) from error
        raise RunError(f"{what} cannot be written to {path}: {error}") from error
