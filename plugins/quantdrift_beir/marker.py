"""Whose embeddings lie in a folder: a file beside them says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from quantdrift.calibration.sample import calibration_texts
from quantdrift.display import shown
from quantdrift.errors import RunError
from quantdrift.measurement.embeddings import digest_of, key_of
from quantdrift.measurement.retrieval import Settings
from quantdrift.records import read_json
from quantdrift_beir.inputs import description_of, digest_of_data
from quantdrift_beir.pairs import QuantizedPair
from quantdrift_beir.record import Made

__all__ = [
    "MARKER",
    "REFERENCE",
    "Marker",
    "files_in",
    "named_files",
    "read_marker",
    "told_of",
    "whose_of",
    "write_marker",
]

MARKER = "quantdrift.json"
"""Name of the file."""

REFERENCE = "reference"
"""Folder of the reference's embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What is known of the embeddings in a folder.

    Attributes:
        whose: what decides them, from `whose_of`.
        shards: names of the documents' files, in the order of the corpus.
        kept: ids of the queries that no layer was measured on.
        made: how they were made.
    """

    whose: Mapping[str, Any]
    shards: Sequence[str]
    kept: Sequence[str]
    made: Made


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _or_null(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


_MARKER = {"whose": _is_object, "shards": _are_texts, "kept": _are_texts, "made": _is_object}
_WHOSE = dict.fromkeys(("spec", "scheme", "reference", "named", "data"), _is_text)
_MADE = {
    "spec": _is_text,
    "model": _is_text,
    "fingerprint": _or_null(_is_text),
    "layers": _are_texts,
    "never_reached": _are_texts,
    "bits": _or_null(_is_object),
    "quantization": _or_null(_is_object),
    "runtime": _is_object,
    "candidate_fingerprint": _or_null(_is_text),
    "settings": _is_object,
    "reading": _is_object,
    "data": _is_object,
    "left_out": lambda value: type(value) is int,
    "started": _is_text,
    "seconds": _is_object,
}
"""What belongs in the fields that are read."""


def whose_of(
    pair: QuantizedPair, corpus: Any, queries: Any, given: Mapping[str, Any]
) -> dict[str, Any]:
    """What decides the embeddings, and in which files they lie.

    Args:
        pair: the model.
        corpus: id to document.
        queries: id to text.
        given: names of the files.
    """
    return {
        "spec": str(pair.spec),
        "scheme": str(pair.spec.scheme),
        "reference": pair.pair.fingerprint,
        "named": named_files(pair),
        "model": description_of(pair.base),
        "data": digest_of_data(queries, corpus),
        "files": [given["query_filename"], given["corpus_filename"]],
    }


def named_files(pair: QuantizedPair) -> str:
    """A digest of what the files hold that a scheme names; they can be written anew.

    Args:
        pair: the model.
    """
    stored = None if pair.pair.needs_widths else pair.pair.allocation
    texts = calibration_texts(pair.spec.scheme)
    return key_of(
        allocation=None if stored is None else [dict(stored.width_of), list(stored.input_ids)],
        calibration=None if texts is None else digest_of(texts),
    )


def files_in(folder: Path, query_filename: str, pattern: str) -> list[Path]:
    """What lies where embeddings would be written or searched for.

    Args:
        folder: of the candidate's files.
        query_filename: of the queries' embeddings.
        pattern: of the documents'.
    """
    return [
        file
        for place in (folder, folder / REFERENCE)
        for name in (query_filename, pattern)
        for file in sorted(place.glob(name))
    ]


def write_marker(folder: Path, marker: Marker) -> None:
    """Say whose embeddings lie in a folder.

    Args:
        folder: of the candidate's files.
        marker: what is known of them.

    Raises:
        RunError: it cannot be written.
    """
    content = {
        "whose": dict(marker.whose),
        "shards": list(marker.shards),
        "kept": list(marker.kept),
        "made": marker.made.to_json(),
    }
    try:
        (folder / MARKER).write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{folder / MARKER} cannot be written: {error.strerror}") from error


def read_marker(folder: Path) -> Marker | None:
    """What is known of the embeddings in a folder.

    Args:
        folder: of the candidate's files.

    Returns:
        None if nothing is: there is no file, or one that was not written here.
    """
    try:
        content = read_json(folder / MARKER)
    except (OSError, ValueError):
        return None
    if not _fits(content, _MARKER):
        return None
    whose, made = content["whose"], content["made"]
    if not (_fits(whose, _WHOSE) and _fits(made, _MADE) and made.keys() == _MADE.keys()):
        return None
    if not made["settings"].keys() <= {field.name for field in fields(Settings)}:
        return None
    return Marker(whose=whose, shards=content["shards"], kept=content["kept"], made=Made(**made))


def told_of(folder: Path) -> str:
    """Whose embeddings lie in a folder, for a message.

    Args:
        folder: of the candidate's files.
    """
    marker = read_marker(folder)
    if marker is not None:
        return f"of {shown(marker.whose['spec'])}"
    why = f"its {MARKER} cannot be read" if (folder / MARKER).exists() else f"there is no {MARKER}"
    return f"{why}, so whose they are is not known"


def _fits(content: Any, parts: Mapping[str, Callable[[object], bool]]) -> bool:
    return isinstance(content, dict) and all(
        name in content and fits(content[name]) for name, fits in parts.items()
    )
