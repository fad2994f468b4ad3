"""Digests of files and folders by their content; what has not been touched is read once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from quantdrift.records import read_json, write_text

__all__ = ["content_digest", "digest_of_json", "looks"]


def digest_of_json(value: Any) -> str:
    """A digest of a JSON value, 32 hex digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def looks(place: Path, pattern: str = "*") -> list[tuple[str, int, int]]:
    """The files at a place as far as they are seen without reading them.

    Hidden files and folders do not count; caches and version control change without the content.

    Args:
        place: a file or a folder.
        pattern: of the names of files in a folder.

    Returns:
        Path below the place, size in bytes and time of the last change in ns, sorted.
    """
    files = [place] if place.is_file() else place.rglob(pattern)
    found = []
    for file in files:
        name = file.relative_to(place).as_posix()
        if not any(part.startswith(".") and part != "." for part in name.split("/")):
            seen = file.stat()
            if not file.is_dir():
                found.append((name, seen.st_size, seen.st_mtime_ns))
    return sorted(found)


def content_digest(place: Path, known: Path, pattern: str = "*") -> str:
    """A digest of the names and contents of the files at a place.

    Args:
        place: a file or a folder.
        known: folder that keeps digests; one is used again while size and time of all files are the
            same, so that gigabytes of weights are not read for every session.
        pattern: of the names of files in a folder.

    Returns:
        32 hex digits. Times and the place itself are no part of it: a copy has the same.

    Raises:
        OSError: a file cannot be read.
        RunError: the folder cannot be written.
    """
    found = looks(place, pattern)
    seen = [list(each) for each in found]  # as JSON gives it back
    note = known / f"{digest_of_json([str(place.resolve()), pattern])}.json"
    try:
        kept = read_json(note)
        if kept["seen"] == seen:
            return str(kept["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not kept yet, or damaged
    digest = digest_of_json([[name, _of_file(place / name)] for name, _, _ in found])
    write_text(note, json.dumps({"seen": seen, "digest": digest}), what="a digest")
    return digest


def _of_file(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "blake2b").hexdigest()
