"""Whose embeddings lie in a folder: a file beside them says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantdrift_beir.inputs import description_of, digest_of_data
from quantdrift_beir.pairs import QuantizedPair

__all__ = ["MARKER", "REFERENCE", "files_in", "read_marker", "told_of", "whose_of"]

MARKER = "quantdrift.json"
"""Name of the file."""

REFERENCE = "reference"
"""Folder of the reference's embeddings."""


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
        "model": description_of(pair.base),
        "data": digest_of_data(queries, corpus),
        "files": [given["query_filename"], given["corpus_filename"]],
    }


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


def read_marker(folder: Path) -> dict[str, Any]:
    """What is known of the embeddings in a folder; empty if nothing is."""
    try:
        content = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def told_of(folder: Path) -> str:
    """Whose embeddings lie in a folder, for a message."""
    spec = read_marker(folder).get("whose", {}).get("spec")
    return f"of {spec}" if spec else f"there is no {MARKER}, so whose they are is not known"
