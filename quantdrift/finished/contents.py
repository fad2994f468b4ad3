"""What the files of a finished run hold, whoever wrote them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

from quantdrift import records
from quantdrift.errors import DataError
from quantdrift.finished.rankings import Qrels, Rankings

# --- What the files of a finished run hold, whoever wrote them ------------------------------------

Format = Literal["trec", "json", "mteb", "lm-eval", "run"]

FORMATS: dict[str, str] = {
    "trec": "a TREC run file (query Q0 document rank score tag)",
    "json": "rankings as JSON, query to document to score (what beir's search returns)",
    "mteb": "predictions of mteb (TASK_predictions.json, or a folder of them)",
    "lm-eval": "samples of lm-eval (samples_TASK_DATE.jsonl, or the folder --log_samples filled)",
    "run": "a run folder of quantdrift",
}
"""Format to what it is."""

Arm = Literal["candidate", "reference"]
ARMS: tuple[str, ...] = get_args(Arm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Rankings of inputs.

    Attributes:
        rankings: input to item to score.
        depth: how many of the first ranks are surely the first; None for all of them. Below it,
            items are missing between those that are there.
        complete: whether every input's list holds all its items.
        qrels: relevance labels, where the run has them.
        numbered: whether inputs have no names and are counted from 0.
    """

    rankings: Rankings
    depth: int | None = None
    complete: bool = False
    qrels: Qrels | None = None
    numbered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One answer per input, without a score.

    Attributes:
        answers: input to answer.
        qrels: input to answer to grade, right if greater than 0, where the run has it.
        numbered: whether inputs have no names and are counted from 0.
    """

    answers: Mapping[str, str]
    qrels: Qrels | None = None
    numbered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Samples of one task of lm-eval.

    Attributes:
        task: its name.
        samples: as they were logged, one per document and filter.
    """

    task: str
    samples: Sequence[Mapping[str, Any]]


Part = Ranked | Labelled | Sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished run.

    Attributes:
        path: what was read.
        format: what wrote it.
        name: of the model, or else of the file.
        digest: of the content.
        parts: what is compared apart from the rest, by name: a subset and split, a task. One part
            of no name where there is only one.
        settings: what must be the same in the other run, if it has the format of this one: by name
            of the part, and of no name for all of them.
        data: what it is a run on, where that is known.
        data_by: of a run folder, the program whose queries and documents these are.
        reference: digest of the reference model of a run folder.
        notes: what to know; one sentence each, without a full stop.
    """

    path: Path
    format: Format
    name: str
    digest: str
    parts: Mapping[str, Part]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: str | None = None
    data_by: str | None = None
    reference: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The name as a pair can hold it: on one line, without the word between two models."""
        return " ".join(self.name.split()).replace(" vs ", "-vs-") or self.format


# --- Reading files whole, gzipped or not, and JSON from them --------------------------------------

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
            f"{path}, line {line}: expected UTF-8, got byte 0x{raw[error.start]:02x}; save the file as UTF-8"
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
            f"{where}: expected JSON; {error.msg} at line {error.lineno}, column {error.colno}; is the file whole?"
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
