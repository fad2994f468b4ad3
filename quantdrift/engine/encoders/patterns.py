"""Strings of a model's files that a library compiles as regular expressions: held against a bound before it does.

peft, compressed-tensors, GPTQModel, torchao and transformers' own quantizers match such strings against the names of a
model's layers, and a pattern of twenty characters can take longer than anybody lives. A pattern is taken where the
number of ways in which it can be laid over a name is small: `re:.*(gate|up)_proj` is, `(\\w+)+!` is not. What a
tokenizer.json says is run by a library that gives up by itself.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantdrift.base.display import shown
from quantdrift.base.errors import UnsupportedError

ADAPTERS = frozenset({"target_modules", "exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern"})
PATTERNS = ADAPTERS | {"compression_config", "quantization_config"}
"""Settings below which any string, or key, may be a pattern."""
TEXTS = frozenset({"dataset", "tokenizer"})
"""Entries of a quantization_config that are none: what was calibrated on."""
_PREFIX = re.compile(r"^(re|[-+]):")
"""What compressed-tensors, torchao and GPTQModel put before a pattern."""
_PLAIN = re.compile(r"[\w.:/ -]*", re.ASCII)
_ASCII = 128
_LONGEST, _CHARACTERS = 64, 1_000
"""Characters of a layer's name that are reckoned with, and of a pattern at most."""
_STRINGS, _WAYS = 2_000, 2e7
"""Patterns of a file at most, and ways of all of them together; a million take a library some milliseconds a name."""


def check_patterns(value: Any, where: str) -> None:
    """Refuse patterns that a library could match without end, or that are none.

    Raises:
        UnsupportedError: a pattern repeats what repeats, or there are too many.
    """
    if isinstance(value, Mapping):
        value = {key: part for key, part in value.items() if key not in TEXTS}
    patterns = set(_strings(value))
    ways = {pattern: 1.0 if _PLAIN.fullmatch(pattern) else _ways_of(pattern) for pattern in patterns}
    if len(patterns) > _STRINGS or sum(ways.values()) > _WAYS:
        worst = max(ways, key=lambda pattern: ways[pattern])
        raise UnsupportedError(
            f"{where} names layers by {shown(worst)} (of {len(patterns):,} names and patterns), which a library could "
            f"match without end; expected at most {_STRINGS:,}, of three wildcards each, as in .*(query|value)"
        )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value:
            yield from _strings(part)
        yield from _strings(list(value.values())) if isinstance(value, Mapping) else ()


def _ways_of(pattern: str) -> float:
    """In how many ways a pattern can be laid over a name at most; infinite for what is none."""
    if len(pattern) > _CHARACTERS or not pattern.isascii():
        return float("inf")
    try:
        return _ways(importlib.import_module("re._parser").parse(_PREFIX.sub("", pattern)))
    except (re.error, RecursionError, OverflowError):
        return float("inf")


def _ways(parsed: Any) -> float:
    """The product of the ways of a sequence's parts, as Python's own parser gives them."""
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
