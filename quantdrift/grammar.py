"""Reading the words of a spec, with errors that point at the character.

The grammar stands in `quantdrift.spec`, which makes objects of what is read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

from quantdrift.errors import SpecError, nearest
from quantdrift.widths import FULL_BITS, MAX_BITS, MIN_BITS

__all__ = [
    "ALLOCATION_KEYS",
    "CRITERIA",
    "DEFAULT_GROUP_SIZE",
    "DEFAULT_QUANTIZER",
    "OPTION_KEYS",
    "QUANTIZERS",
    "error_at",
    "read_scheme",
    "read_widths",
    "split_spec",
    "split_versus",
    "stripped",
]

QUANTIZERS = ("rtn", "gptq", "gptq_ao", "awq", "hqq", "adaround")
_ACTIVATION = ("activation_error", "activation_salience", "activation_norm")
CRITERIA = ("gap", "gap_exact", "reconstruction", "sqnr", *_ACTIVATION, "depth", "random")
ALLOCATION_KEYS = ("allocation", "queries", "solver", "units", "widths")
"""Options that say how a criterion chooses widths."""
OPTION_KEYS = tuple(sorted((*ALLOCATION_KEYS, "backend", "calib", "grid", "head", "seed")))

DEFAULT_GROUP_SIZE = 128
DEFAULT_QUANTIZER = "rtn"

_WORDS: dict[str, tuple[str, Any]] = {
    "-channel": ("granularity", None),
    **{f"-{name}": ("quantizer", name) for name in QUANTIZERS},
    "+query": ("query", True),
    **{f"+{name}": ("criterion", name) for name in CRITERIA},
}
"""Sign and word to what it sets, and to what value."""
_NAMES = {word[1:]: word for word in _WORDS} | {key: f"+{key}=" for key in OPTION_KEYS}
_NUMBER = r"(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
# Good bits but for case or a missing W, to suggest nothing that is an error in turn.
_BITS_LIKE = re.compile(r"[wW]?(8|[2-7](?:\.[0-9]+)?|16(?=[aA]))(?:[aA]([4-8]))?")
_GLUED = re.compile(
    rf"(W(?:8|[2-7](?:\.[0-9]+)?)(?:A[4-8])?|W16A[4-8])_?(channel|g[1-9][0-9]*|{'|'.join(QUANTIZERS)})",
    re.IGNORECASE,
)
_CONTROL = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"  # line ends, and what UTF-8 cannot hold
_NOT_IN_MODEL = re.compile(rf"[{_CONTROL}]+|^\s+|(?<!\s)\s+\Z")
_NOT_IN_SCHEME = re.compile(rf"[\s{_CONTROL}]+|@")
_LIKE_THIS = "MODEL@SCHEME, e.g. minilm@W4-rtn"
_VERSUS = re.compile(r"(?:^|\s+)vs(?:\s+|$)")
_SCHEME_LIKE = re.compile(r"@W[0-9][^@]*\Z")
_VERSUS_LIKE_THIS = "MODEL vs MODEL, e.g. minilm vs ./minilm-gptq"
_PART = f"a granularity (channel, g128, ...) or a quantizer ({', '.join(QUANTIZERS)})"
_KEY = f"KEY=VALUE with KEY one of {', '.join(OPTION_KEYS)}"
_OPTION = f"query, a criterion ({', '.join(CRITERIA)}) or {_KEY}"


def error_at(
    text: str, start: int, end: int, problem: str, expected: str, *, meant: Collection[str] = ()
) -> SpecError:
    """The error about text[start:end]; where that is empty, something is missing there."""
    found = text[start:end]
    problem = f"{problem} {found!r}" if found else f"missing {problem.partition(' ')[2]}"
    shown = text if text.strip() and text.isprintable() else repr(text)  # a message has one line
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    message = f"{shown}: {problem} at character {start + 1}: expected {expected}{hint}"
    return SpecError(message, text=text, start=start, end=end)


def stripped(text: str) -> tuple[int, int]:
    """Where the text begins and ends without the whitespace around it."""
    end = len(text.rstrip())
    return min(len(text) - len(text.lstrip()), end), end


def split_spec(text: str, start: int, end: int) -> int:
    """Where the "@" is."""
    if versus := _find_versus(text, start, end):
        expected = (
            f"one model and a scheme ({_LIKE_THIS}): two models are compared by quantdrift run only"
        )
        raise error_at(text, versus[0], versus[1], "unexpected", expected)
    at = text.rfind("@", start, end)
    if at < 0:
        raise error_at(text, end, end, "unknown '@'", _LIKE_THIS)
    if at == start:
        raise error_at(text, at, at, "unknown model", _LIKE_THIS)
    if bad := _NOT_IN_MODEL.search(text, start, at):
        expected = "a model on one line, without spaces at its ends"
        raise error_at(text, *bad.span(), "unexpected", expected)
    return at


def split_versus(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Where the word "vs" begins and ends with the spaces around it; None if there is none.

    Raises:
        SpecError: the word is there, but no model on either side, or what is there is none.
    """
    versus = _find_versus(text, start, end)
    if versus is None:
        return None
    before, after = versus
    if again := _find_versus(text, after, end):
        raise error_at(text, *again, "second", f"two models, {_VERSUS_LIKE_THIS}")
    for side, (first, last) in {"reference": (start, before), "candidate": (after, end)}.items():
        if first >= last:
            raise error_at(text, first, first, f"unknown {side}", _VERSUS_LIKE_THIS)
        if bad := _NOT_IN_MODEL.search(text, first, last):
            expected = f"a {side} on one line, without spaces at its ends"
            raise error_at(text, *bad.span(), "unexpected", expected)
        if scheme := _SCHEME_LIKE.search(text, first, last):
            expected = f"a {side} as it is stored, without a scheme"
            raise error_at(text, scheme.start(), last, "unexpected", expected)
    return before, after


def _find_versus(text: str, start: int, end: int) -> tuple[int, int] | None:
    found = _VERSUS.search(text[start:end])  # a part, as "^" is the beginning of what is searched
    return None if found is None else (start + found.start(), start + found.end())


def read_scheme(text: str, start: int, end: int) -> dict[str, Any]:
    """The fields of the Scheme that text[start:end] spells."""
    if start == end:
        raise error_at(text, start, end, "unknown scheme", _LIKE_THIS)
    if bad := _NOT_IN_SCHEME.search(text, start, end):
        expected = "a scheme without spaces, control characters and '@'"
        raise error_at(text, *bad.span(), "unexpected", expected)
    head, *options = text[start:end].split("+")  # first, as a value may hold "-"
    bits, *parts = head.split("-")
    weight_bits, activation_bits = _read_bits(text, start, bits)
    at = start + len(bits)
    values: dict[str, Any] = {}
    for sign, word in [*(("-", part) for part in parts), *(("+", option) for option in options)]:
        at += 1
        what, value = _read_word(text, at, sign, word)
        if what in values:
            raise error_at(text, at, at + len(word), f"second {what}", f"at most one {what}")
        values[what] = value
        at += len(word)
    if not weight_bits.is_integer() and "criterion" not in values:
        width = bits.partition("A")[0]
        whole = int(weight_bits)
        expected = f"a criterion that says which layers get {whole} and which {whole + 1} bits"
        expected += f", e.g. {width}+gap"
        raise error_at(text, start, start + len(width), "no criterion for the width", expected)
    return {
        "weight_bits": weight_bits,
        "activation_bits": activation_bits,
        "group_size": values.get("granularity", DEFAULT_GROUP_SIZE),
        "quantizer": values.get("quantizer", DEFAULT_QUANTIZER),
        "query_only": values.get("query", False),
        "criterion": values.get("criterion"),
        "options": tuple((key, values[key]) for key in sorted(OPTION_KEYS) if key in values),
    }


def read_widths(scheme: str, bits: float, given: str | None) -> tuple[int, ...]:
    """The widths that a criterion chooses from, ascending.

    Args:
        scheme: the whole string, for messages.
        bits: what the layers' widths average to at most.
        given: as the scheme lists them; None for the whole numbers on both sides of `bits`.

    Raises:
        SpecError: they are no widths, or cannot average to `bits`.
    """
    start = scheme.find("+widths=") + len("+widths=") if given is not None else 0
    end = start + len(given) if given is not None else len(scheme)
    if given is None:
        if bits.is_integer():
            expected = "a fraction (W3.5), or the widths to choose from, e.g. +widths=2,3,4,8"
            raise error_at(scheme, 0, end, "nothing to choose between in", expected)
        return int(bits), int(bits) + 1
    if not re.fullmatch("[2-8](,[2-8])+", given):
        expected = "at least two whole numbers from 2 to 8 with commas between, e.g. 2,3,4,8"
        raise error_at(scheme, start, end, "malformed widths", expected)
    widths = tuple(sorted({int(width) for width in given.split(",")}))
    if not widths[0] <= bits <= widths[-1] or len(widths) == 1:
        expected = f"widths below and above the {bits:g} bits that they average to"
        raise error_at(scheme, start, end, "unsuitable widths", expected)
    return widths


def _read_bits(text: str, at: int, bits: str) -> tuple[float, int | None]:
    """Weight and activation bits that `bits`, found at `at`, spells."""
    end = at + len(bits)
    like = _BITS_LIKE.fullmatch(bits)
    meant = [f"W{like[1]}" + (f"A{like[2]}" if like[2] else "")] if like else []
    if like and (lower := re.search("[wa]", bits)):
        a = at + lower.start()
        raise error_at(text, a, a + 1, "lower-case", "W and A in upper case", meant=meant)
    if glued := _GLUED.fullmatch(bits):
        part = at + len(glued[1])
        apart = f"{glued[1].upper()}-{glued[2].lower()}"
        raise error_at(text, part, end, "unexpected", "'-' between bits and part", meant=[apart])
    if not bits.startswith("W"):
        expected = "W and a number of bits first, e.g. W4, W3.5 or W4A8"
        raise error_at(text, at, end, "unknown bits", expected, meant=meant)
    weight, mark, activation = bits[1:].partition("A")
    a = at + 1 + len(weight)
    weight_bits = float(weight) if re.fullmatch(_NUMBER, weight) else math.nan
    if not (MIN_BITS <= weight_bits <= MAX_BITS or weight_bits == FULL_BITS):
        problem = f"{'malformed' if math.isnan(weight_bits) else 'out-of-range'} weight bits"
        expected = "a plain number from 2 to 8, e.g. 4 or 3.5, or 16 with activation bits (W16A8)"
        raise error_at(text, at + 1, a, problem, expected)
    if mark and not re.fullmatch("[4-8]", activation):
        raise error_at(
            text, a + 1, end, "unsupported activation bits", "a whole number from 4 to 8"
        )
    if weight_bits == FULL_BITS and not mark:
        expected = "2 to 8 weight bits, or activation bits too (W16A8)"
        raise error_at(text, at, end, "nothing would be quantized by", expected)
    return weight_bits, int(activation) if mark else None


def _read_word(text: str, at: int, sign: str, word: str) -> tuple[str, Any]:
    """What the part ("-") or option ("+") `word`, found at `at`, sets, and to what."""
    end = at + len(word)
    key, equals, value = word.partition("=")
    if sign + word in _WORDS:
        return _WORDS[sign + word]
    if sign == "+" and key in OPTION_KEYS:
        if not value:
            raise error_at(text, end, end, f"unknown value of {key}", f"{key}=VALUE")
        return key, value
    if sign == "-" and re.fullmatch("g(?![a-zA-Z_]).*", word):  # a group size, good or bad
        if not re.fullmatch("[1-9][0-9]{0,8}", word[1:]):  # int() does not take any length
            expected = "a whole number from 1 to 999999999 without leading zeros"
            raise error_at(text, at + 1, end, "malformed group size", expected)
        return "granularity", int(word[1:])
    name, _, part = word.partition("-")
    if sign == "+" and part and not equals and f"+{name}" in _WORDS:
        expected = "parts to stand before the first '+'"
        raise error_at(text, at + len(name), end, "misplaced part", expected)
    if sign == "-" and (size := re.fullmatch("G?([1-9][0-9]{0,8})", word)):
        meant = [f"g{size[1]}"]
    else:
        names = [key.lower()] if key.lower() in _NAMES else nearest(key, _NAMES)
        meant = [name if _NAMES[name][0] == sign else _NAMES[name] for name in names]
    if sign == "-":
        raise error_at(text, at, end, "unknown part", _PART, meant=meant)
    if equals and f"+{key}" not in _WORDS:
        raise error_at(text, at, at + len(key), "unknown key", _KEY, meant=meant)
    raise error_at(text, at, end, "unknown option", _OPTION, meant=meant)
