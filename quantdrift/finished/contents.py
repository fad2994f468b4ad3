"""The contents of a finished run, whichever program wrote its files."""

import gzip
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from quantdrift.base import records
from quantdrift.base.errors import DataError
from quantdrift.finished.rankings import Qrels
from quantdrift.runs.identity import Identity

Arm = Literal["candidate", "reference"]
ARMS: tuple[str, ...] = get_args(Arm)

Kind = Literal["rankings", "answers", "samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a run that is compared by itself: a subset and split, or a task.

    Attributes:
        kind: the kind of content.
        content: for each input its ranking (item to score), its answer, or the samples that lm-eval logged of the
            document, one per filter.
        depth: the number of ranks that are known to be the first ones; None for all.
        complete: whether the list of every input holds all its items.
        ordered: whether the items of rankings are in their order, ties included.
        scored: whether rankings have scores; those without have NaN.
        qrels: relevance labels, if the run has them; for answers, only the answers given are graded.
    """

    kind: Kind
    content: Mapping[Any, Any]
    depth: int | None = None
    complete: bool = False
    ordered: bool = False
    scored: bool = True
    qrels: Qrels | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished run.

    Attributes:
        path: the file or folder.
        format: the name of its format.
        name: name of the model, or else of the file.
        digest: digest of the content.
        parts: the parts by name; a single part may have an empty name.
        identity: for a run folder, its data and how answers were read from scores.
        data: name of the data, if known.
        data_by: for a run folder, the harness of the data, whose digest means nothing to other harnesses.
        notes: remarks, one sentence each, without a full stop.
    """

    path: Path
    format: str
    name: str
    digest: str
    parts: Mapping[str, Part]
    identity: Identity | None = None
    data: str | None = None
    data_by: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def about(self) -> dict[str, str]:
        """The description of the run in a record."""
        return {"path": str(self.path), "format": self.format, "name": self.name, "digest": self.digest}

    @property
    def model(self) -> str:
        """The name in a form that fits into a pair: one line, without " vs "."""
        return " ".join(self.name.split()).replace(" vs ", "-vs-") or self.format


def read_text(path: Path) -> str:
    """Read the text of a file; a gzipped file is recognized by its first bytes."""
    try:
        with records.open_file(path) as file:
            raw = file.read()
        if raw.startswith(b"\x1f\x8b"):
            raw = _unpacked(raw)
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: expected UTF-8, got byte 0x{raw[error.start]:02x}; save the file as UTF-8"
        ) from error
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}; copy it here again") from error


def _unpacked(raw: bytes) -> bytes:
    """Unpack a gzip file piece by piece, so that a bomb cannot fill the memory."""
    unpacked = bytearray()
    with gzip.open(io.BytesIO(raw)) as stream:
        while piece := stream.read(1 << 20):
            unpacked += piece
            records.refuse_bomb(len(unpacked), len(raw))
    return bytes(unpacked)


def parse_json(text: str, where: object) -> Any:
    """Parse the JSON text of a file or of one line."""
    try:
        return records.parse_json(text)
    except ValueError as error:
        raise DataError(f"{where}: expected JSON; {error}; is the file whole?") from error


def number(value: object) -> bool:
    """Whether a JSON value is a number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def digest(*parts: str, size: int = 8) -> str:
    """A digest of texts in their order, `size` bytes as hex digits."""
    return records.texts_digest(parts, size=size)
