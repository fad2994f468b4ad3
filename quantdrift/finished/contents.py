"""Contents of the files of a finished run, whoever wrote them."""

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

_PART = 1 << 20

Arm = Literal["candidate", "reference"]
ARMS: tuple[str, ...] = get_args(Arm)

Kind = Literal["rankings", "answers", "samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a run that is compared apart from the rest: a subset and split, a task.

    Attributes:
        kind: what it holds.
        content: input to what it got: of rankings item to score, of answers the answer, of samples those that lm-eval
            logged of the document, one per filter.
        depth: how many of the first ranks are surely the first; None for all of them.
        complete: whether every input's list holds all its items.
        qrels: relevance labels, where the run has them; of answers only those given are graded.
    """

    kind: Kind
    content: Mapping[Any, Any]
    depth: int | None = None
    complete: bool = False
    qrels: Qrels | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished run.

    Attributes:
        path: what was read.
        format: what wrote it.
        name: of the model, or else of the file.
        digest: of the content.
        parts: by name; one of no name where there is only one.
        identity: of a run folder, its data, and how answers were read from scores.
        data: what it is a run on, where that is known.
        data_by: of a run folder, the harness that the data are of; a digest of them says nothing to another.
        notes: what to know; one sentence each, without a full stop.
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
        """The run as a record has it."""
        return {"path": str(self.path), "format": self.format, "name": self.name, "digest": self.digest}

    @property
    def model(self) -> str:
        """The name as a pair can hold it: on one line, without the word between two models."""
        return " ".join(self.name.split()).replace(" vs ", "-vs-") or self.format


def read_text(path: Path) -> str:
    """The text of a file; what is gzipped is known by its first bytes, whatever its name."""
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
    """Unpack a gzip file a part at a time, so that it cannot fill the memory."""
    parts, made = [], 0
    with gzip.open(io.BytesIO(raw)) as stream:
        while part := stream.read(_PART):
            made += len(part)
            records.refuse_bomb(made, len(raw))
            parts.append(part)
    return b"".join(parts)


def parse_json(text: str, where: object) -> Any:
    """The JSON value in the text of a file or of one line."""
    try:
        return records.parse_json(text)
    except ValueError as error:
        raise DataError(f"{where}: expected JSON; {error}; is the file whole?") from error


def number(value: object) -> bool:
    """Whether a JSON value is a number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def digest(*parts: str, size: int = 8) -> str:
    """A digest of texts in their order, of so many bytes, as hexadecimal digits."""
    return records.texts_digest(parts, size=size)
