"""A model folder as mteb sees it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from mteb.models import CrossEncoderWrapper, MultiVectorWrapper, SentenceTransformerEncoderWrapper, SparseEncoderWrapper
from mteb.models.model_meta import ModelMeta

from quantdrift.records import read_json

_KINDS: dict[str, tuple[type[Any], str]] = {
    "SentenceTransformer": (SentenceTransformerEncoderWrapper, "dense"),
    "CrossEncoder": (CrossEncoderWrapper, "cross-encoder"),
    "SparseEncoder": (SparseEncoderWrapper, "sparse"),
    "MultiVectorEncoder": (MultiVectorWrapper, "late-interaction"),
}
"""What sentence-transformers calls a kind of model, and what mteb does."""


def local_meta(folder: Path, name: str) -> ModelMeta:
    """The metadata of a model that lies in a folder.

    Args:
        folder: with a config.json or modules.json.
        name: to give it, `ORG/NAME`.

    Returns:
        Metadata whose loader takes the folder, and whose revision changes when a file does.
    """
    loader, model_type = _KINDS[_kind(folder)]
    return ModelMeta.create_empty(
        {
            "name": name,
            "revision": f"local-{_digest(folder)}",
            "loader": loader,
            "framework": ["Sentence Transformers", "PyTorch"],
            "model_type": [model_type],
        }
    )


def _kind(folder: Path) -> str:
    """As the folder says; one saved by transformers alone says so by its architecture."""
    said = _read(folder / "config_sentence_transformers.json").get("model_type")
    if said == "ColBERT":  # as it was called at first
        said = "MultiVectorEncoder"
    if isinstance(said, str) and said in _KINDS:
        return said
    if (folder / "modules.json").is_file():
        return "SentenceTransformer"
    architectures = _read(folder / "config.json").get("architectures")
    is_classifier = "ForSequenceClassification" in str(architectures)
    return "CrossEncoder" if is_classifier else "SentenceTransformer"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError):  # loading the model complains about what is broken
        return {}
    return content if isinstance(content, dict) else {}


def _digest(folder: Path) -> str:
    """Changes when a file of the folder does, so that results of other weights are not reused."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            digest.update(f"{path.relative_to(folder)}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return digest.hexdigest()
