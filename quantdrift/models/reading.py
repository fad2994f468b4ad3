"""How a model reads its input: tokenizer and settings, which weights and texts do not tell."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

__all__ = ["reading_digest", "tokenizer_digest"]

_STATE = ("truncation", "padding")
"""Of a tokenizer's JSON: what the last call left behind."""
_VOLATILE = ("_name_or_path", "transformers_version", "_commit_hash")
"""Of a model's settings: where it came from, not what it does."""


def reading_digest(holders: Sequence[object], modules: Sequence[nn.Module]) -> str:
    """A digest of tokenizers and transformers settings, 32 hex digits.

    Args:
        holders: objects that may have a `tokenizer`.
        modules: the torch modules; settings of those that have a `config` count.
    """
    tokenizers = {id(one): one for holder in holders for one in _tokenizers(holder)}
    parts = [tokenizer_digest(one) for one in tokenizers.values()]
    configs: dict[int, Any] = {}
    for root in modules:
        for module in root.modules():
            config: Any = getattr(module, "config", None)
            if hasattr(config, "to_dict"):
                configs[id(config)] = config
    for config in configs.values():
        said: dict[str, Any] = config.to_dict()
        settings = {k: v for k, v in said.items() if k not in _VOLATILE}
        parts.append(json.dumps(settings, sort_keys=True, default=str))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of a tokenizer: vocabulary, rules and what it pads and cuts, 32 hex digits."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        content: Any = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else repr(tokenizer)
    else:
        content = json.loads(fast.to_str())
        for name in _STATE:
            content.pop(name, None)
    names = ("padding_side", "truncation_side")
    sides = [getattr(tokenizer, name, None) for name in names]
    text = json.dumps([content, *sides], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _tokenizers(holder: object) -> Iterator[Any]:
    try:
        tokenizer = getattr(holder, "tokenizer", None)
    except (AttributeError, RuntimeError, NotImplementedError):  # a property of a model without one
        return
    if hasattr(tokenizer, "get_vocab"):
        yield tokenizer
