"""Reading files whole, gzipped or not, and JSON from them."""

from __future__ import annotations

import gzip
import json
import zlib
from hashlib import blake2b
from pathlib import Path
from typing import Any

from quantdrift import records
from quantdrift.errors import DataError

__all__ = ["digest", "number", "parse_json", "read_text"]

_GZIP = b"\x1f\x8b"


def read_text(path: Path) -> str:
    """The text of a file; what is gzipped is known by its first bytes, whatever its name.

    Raises:
        DataError: it cannot be read, or is not text.
    """
    try:
        raw = path.read_bytes()
        if raw.startswith(_GZIP):
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; copy it here again") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: expected UTF-8, got byte 0x{raw[error.start]:02x}; save the "
            "file as UTF-8"
        ) from error


def parse_json(text: str, where: object) -> Any:
    """The JSON value in a text.

    Args:
        text: of a file or of one line.
        where: the file, for the message.

    Raises:
        DataError: it is not JSON.
    """
    try:
        return records.parse_json(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: expected JSON; {error.msg} at line {error.lineno}, column {error.colno}; "
            "is the file whole?"
        ) from error
    except ValueError as error:  # a huge integer, or very deep nesting
        raise DataError(f"{where}: expected JSON; {error}") from error


def number(value: object) -> bool:
    """Whether a JSON value is a number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def digest(*parts: str | bytes) -> str:
    """A digest of texts in their order, 16 hexadecimal digits."""
    found = blake2b(digest_size=8)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        found.update(len(raw).to_bytes(8, "little"))
        found.update(raw)
    return found.hexdigest()
