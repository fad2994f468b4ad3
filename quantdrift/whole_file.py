"""A file that is there in full or not at all, whatever goes wrong while it is written."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from quantdrift.errors import QuantDriftError, RunError

__all__ = ["read_object", "refuse_other", "whole_file", "write_text"]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A place to write to; when the block ends the file is at `path`, in place of what was there.

    After an error nothing is left of it and the place is as it was. After a kill a hidden file may
    be left beside it.

    Args:
        path: the file; its folder is made if need be.

    Raises:
        OSError: the folder cannot be made, or the file not be moved.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{secrets.token_hex(4)}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def refuse_other(path: Path, format_: str, what: str) -> None:
    """Refuse a place that holds another kind of file, before hours go into one.

    Args:
        path: where a JSON file is to be written that tells its format.
        format_: that an earlier file there has to have.
        what: it is, for messages: "an allocation".

    Raises:
        RunError: it is a folder, or another kind of file.
    """
    if not path.exists():
        return
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        ours = isinstance(content, dict) and content.get("format") == format_
    except (OSError, ValueError):
        ours = False
    if not ours:
        noun = what.split(maxsplit=1)[1]
        raise RunError(
            f"{path} holds something that is not {what}; expected a new file or an earlier {noun} "
            "to replace. Choose another place."
        )


def read_object(
    path: Path, format_: str, version: int, *, what: str, make: str, error: type[QuantDriftError]
) -> dict[str, Any]:
    """The JSON object in a file that tells its format and version.

    Args:
        path: the file.
        format_: that it has to have.
        version: likewise.
        what: it is, for messages: "a router".
        make: the command that writes one.
        error: what to raise.

    Raises:
        QuantDriftError: an `error`: it is missing, damaged, something else, or of another version.
    """
    written = f"One is written by: {make}"
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise error(
            f"expected {what} in {path}, which cannot be read ({problem.strerror}). {written}"
        ) from problem
    except ValueError as problem:
        raise error(f"{path} is damaged, expected {what}: {problem}. {written}") from problem
    found = content.get("format") if isinstance(content, dict) else None
    if found != format_:
        held = f"a {found!r}" if isinstance(found, str) else "something else"
        raise error(f"expected {what}; {path} holds {held}. {written}")
    if content.get("format_version") != version:
        raise error(
            f"{path} is of format version {content.get('format_version')}; this quantdrift reads "
            f"version {version}"
        )
    return dict(content)


def write_text(path: Path, text: str, *, what: str) -> None:
    """Write a text file whole, replacing an earlier one.

    Args:
        path: the file.
        text: its content.
        what: is written, for messages: "the allocation".

    Raises:
        RunError: no space, no permission; nothing is left behind.
    """
    try:
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        why = "no space left" if full else f"it cannot be written ({error})"
        raise RunError(
            f"{what} was not written to {path}: {why}; nothing was left behind. Free some space or "
            "choose another place."
        ) from error
