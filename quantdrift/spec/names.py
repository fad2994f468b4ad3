"""Short names of models, and the prefixes that a name may have."""

from collections.abc import Mapping

ALIASES: Mapping[str, str] = {
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
"""Short name to hub id; case does not matter."""

READ_AS = {"mean:": "by the mean of its tokens' states", "sparse:": "by the term weights of its head"}
"""Prefix of the name of a model whose files leave open how tokens become an embedding, to how they then do."""


def short_name(name: str) -> str:
    """The short name that a name is but for its case; any other name as it is.

    >>> short_name("MiniLM"), short_name("mean:BGE-M3"), short_name("./MiniLM")
    ('minilm', 'mean:bge-m3', './MiniLM')
    """
    way = next((way for way in READ_AS if name.startswith(way)), "")
    return way + next((alias for alias in ALIASES if alias.lower() == name[len(way) :].lower()), name[len(way) :])
