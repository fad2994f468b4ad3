"""Bounds on patterns and tokenizer rules of a model's files, on which a library could work without end.

compressed-tensors, GPTQModel, torchao and transformers' own quantizers match strings of a file against the names
of a model's layers, as regular expressions, and a pattern of twenty characters can take years. A pattern is accepted if
it can match a name in few ways: `re:.*(gate|up)_proj` is, `(\\w+)+!` is not. Patterns of a tokenizer.json are matched
by a library that stops by itself; its other rules can turn one letter into gigabytes.
"""

import base64
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.records import entries

# --- patterns of layers' names --------------------------------------------------------------------

PATTERNS = frozenset({"compression_config", "quantization_config"})
"""Settings below which any string, or key, may be a pattern."""
TEXTS = frozenset({"dataset", "tokenizer"})
"""Entries of a quantization_config that are no patterns: they say what was calibrated on."""
_PREFIX = re.compile(r"^(re|[-+]):")
"""The marks that compressed-tensors, torchao and GPTQModel put before a pattern."""
_PLAIN = re.compile(r"[\w.:/ -]*", re.ASCII)
_ASCII = 128
_LONGEST, _CHARACTERS = 64, 1_000
"""Assumed length of a layer's name, and greatest length of a pattern, in characters."""
_STRINGS, _WAYS = 2_000, 2e7
"""Most patterns of a file, and most ways of matching for all of them; a million take some milliseconds per name."""


def check_patterns(value: Any, where: str) -> None:
    """Refuse patterns that a library could match without end, and strings that are no patterns.

    Raises:
        UnsupportedError: a pattern repeats what repeats, or there are too many.
    """
    if isinstance(value, Mapping):
        value = {key: part for key, part in value.items() if key not in TEXTS}
    patterns = {text for entry in entries(value) for text in entry if isinstance(text, str) and text}
    ways = {pattern: 1.0 if _PLAIN.fullmatch(pattern) else _ways_of(pattern) for pattern in patterns}
    if len(patterns) > _STRINGS or sum(ways.values()) > _WAYS:
        worst = max(ways, key=lambda pattern: ways[pattern])
        raise UnsupportedError(
            f"{where} names layers by {shown(worst)} (of {len(patterns):,} names and patterns), which a library could "
            f"match without end; expected at most {_STRINGS:,}, of three wildcards each, as in .*(query|value)"
        )


def _ways_of(pattern: str) -> float:
    """The most ways in which a pattern can match a name; infinite for a string that is no pattern."""
    if len(pattern) > _CHARACTERS or not pattern.isascii():
        return float("inf")
    try:
        return _ways(importlib.import_module("re._parser").parse(_PREFIX.sub("", pattern)))
    except (re.error, RecursionError, OverflowError):
        return float("inf")


def _ways(parsed: Any) -> float:
    """The most ways in which a pattern can match, as Python's parser read it: the product over its parts."""
    ways = 1.0
    for operation, value in parsed:
        match str(operation):
            case "BRANCH":  # alternatives that begin with other letters exclude each other
                by_first: dict[str, float] = {"": 0}
                for branch in value[1]:
                    kind, letter = branch[0] if len(branch) else ("", 0)
                    first = chr(letter).lower() if str(kind) == "LITERAL" and letter < _ASCII else ""
                    by_first[first] = by_first.get(first, 0) + _ways(branch)
                ways *= by_first.pop("") + max(by_first.values(), default=0)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                low, high, inner = value
                once = _ways(inner)
                if low == high:
                    ways *= once ** min(low, _LONGEST)
                elif high == 1:
                    ways *= 1 + once
                else:
                    ways *= min(high - low + 1, _LONGEST) if once == 1 else float("inf")
            case "SUBPATTERN" | "ASSERT" | "ASSERT_NOT":
                ways *= _ways(value[-1])
            case "ATOMIC_GROUP":
                ways *= _ways(value)
            case "GROUPREF_EXISTS":
                ways *= _ways(value[1]) + _ways(value[2] or ())
    return ways


# --- rules of a tokenizer -------------------------------------------------------------------------

TRIED = "The 2nd café: don't pay $3.50 for ﬁne ÀÉ,  Zürich's 東京\n x_y #1"
"""A text that different tokenizers split differently."""
_GROWTH, _LISTED, _REPLACED = 64, 256, 128
"""Most letters that rules may make of one, most entries of a list of rules, most bytes for a letter in a table."""
_INSERTED = {"content", "prepend", "replacement", "continuing_subword_prefix", "end_of_word_suffix"}
_WORDS = {"vocab", "merges", "added_tokens", "decoder", "pattern"}
"""Parts of a tokenizer.json that add no letters to a text."""


def check_rules(rules: Mapping[str, Any], where: str) -> None:
    """Refuse a tokenizer.json whose rules turn one letter into many letters or tokens.

    Each rule is bounded by itself; then a text, and every text that a rule inserts, goes through all of them.
    """
    parts = list(entries(rules, without=_WORDS))
    texts = [TRIED[:_GROWTH], *(part for key, part in parts if key in _INSERTED and isinstance(part, str))]
    if any(_grows(key, part) for key, part in parts) or _grow_together(rules.get("normalizer"), texts):
        raise UnsupportedError(
            f"the rules in {where} make more than {_GROWTH} letters or tokens of one, or are more than {_LISTED:,}; "
            "expected those that the model was trained with"
        )


def _grows(key: str, part: Any) -> bool:
    """Say whether a single rule turns one letter into many."""
    if key == "precompiled_charsmap" and isinstance(part, str):
        table = base64.b64decode(re.sub(r"\s", "", part))
        return max(map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0"))) > _REPLACED
    if isinstance(part, list):
        return len(part) > _LISTED
    return key in _INSERTED and isinstance(part, str) and len(part) > _GROWTH


def _grow_together(normalizer: Any, texts: list[str]) -> bool:
    """Say whether the rules one after another turn one letter into many."""
    from tokenizers import Tokenizer  # noqa: PLC0415 -- an optional package

    for rule in _in_order(normalizer):
        alone = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}, "normalizer": rule}
        made = Tokenizer.from_str(json.dumps(alone)).normalizer
        texts = [text if made is None else made.normalize_str(text) for text in texts]
        if any(len(text) > _GROWTH**2 for text in texts):
            return True
    return False


def _in_order(normalizer: Any) -> Iterator[Any]:
    """Yield the single rules of a normalizer, in order."""
    inner = normalizer.get("normalizers") if isinstance(normalizer, Mapping) else None
    if not isinstance(inner, list):
        yield normalizer
        return
    for rule in inner:
        yield from _in_order(rule)
