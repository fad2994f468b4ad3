"""The string that names a pair: what model, and how its candidate is made.

SPEC        := MODEL "@" SCHEME                      the last "@" splits
SCHEME      := BITS { "-" PART } { "+" OPTION }
BITS        := "W" NUMBER [ "A" INT ]                2 to 8, 4 to 8; also W16 if followed by A
PART        := GRANULARITY | QUANTIZER               in any order, each at most once
GRANULARITY := "channel" | "g" INT                   default g128
QUANTIZER   := one of QUANTIZERS                     default rtn
OPTION      := "query" | CRITERION | KEY "=" VALUE   in any order, each at most once
CRITERION   := one of CRITERIA                       needed for a fractional NUMBER
KEY         := one of OPTION_KEYS

In place of SCHEME, FILE.json { "-" QUANTIZER } { "+" OPTION } takes the widths that `quantdrift
allocate` has stored: it is short for the scheme that is written there, with +allocation=FILE.json.

Two models, `MODEL vs MODEL`, are read by `quantdrift.versus`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import overload

from quantdrift.errors import QuantDriftError, SpecError, UnknownNameError
from quantdrift.grammar import (
    ALLOCATION_KEYS,
    CRITERIA,
    DEFAULT_GROUP_SIZE,
    DEFAULT_QUANTIZER,
    OPTION_KEYS,
    QUANTIZERS,
    error_at,
    read_scheme,
    read_widths,
    split_spec,
    stripped,
)
from quantdrift.models.endpoint.address import refuse_endpoint

_STORED = re.compile(r"(?P<file>[^+=]+\.json)(?P<rest>(?:-[^+]*)?(?:\+.*)?)")

__all__ = [
    "CRITERIA",
    "DEFAULT_GROUP_SIZE",
    "DEFAULT_QUANTIZER",
    "OPTION_KEYS",
    "QUANTIZERS",
    "Scheme",
    "Spec",
    "parse",
    "parse_scheme",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a candidate is made; its string is canonical, `BITS-GRANULARITY-QUANTIZER{+OPTION}`.

    Every scheme that exists is valid: `parse_scheme(str(scheme)) == scheme`.

    >>> str(Scheme(weight_bits=3.5, quantizer="gptq", criterion="gap"))
    'W3.5-g128-gptq+gap'

    Attributes:
        weight_bits: 2 to 8, or 16 (weights left alone) with activation bits; a fraction is the
            average over the layers, and needs a criterion.
        activation_bits: 4 to 8; None leaves activations alone.
        group_size: input weights that share a scale; None for a whole output channel.
        quantizer: one of QUANTIZERS.
        query_only: whether only the query side is quantized and the index stays at the reference.
        criterion: one of CRITERIA, which chooses the layers that get more bits, or None.
        options: (key, value) sorted by key; a mapping, or pairs in another order, become this.

    Raises:
        SpecError: the values make no scheme; `text` is what they would be written as.
    """

    weight_bits: float
    activation_bits: int | None = None
    group_size: int | None = DEFAULT_GROUP_SIZE
    quantizer: str = DEFAULT_QUANTIZER
    query_only: bool = False
    criterion: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        # Reading back what is written applies every rule of the parser, and the round trip holds.
        try:
            pairs = self.options.items() if isinstance(self.options, Mapping) else self.options
            object.__setattr__(self, "options", tuple(sorted((key, value) for key, value in pairs)))
            text = str(self)
        except (TypeError, ValueError) as error:  # not pairs, or an int too long to be written
            message = f"expected a value for each attribute of Scheme: {error}"
            raise SpecError(message, text="", start=0, end=0) from error
        for name, value in read_scheme(text, 0, len(text)).items():
            if (given := getattr(self, name)) != value:
                problem, expected = f"{name} given as {given!r} in", f"{value!r}, as this reads"
                raise error_at(text, 0, len(text), problem, expected)
            object.__setattr__(self, name, value)  # bits given as an int become a float

    def __str__(self) -> str:
        bits = "W" + str(self.weight_bits).removesuffix(".0")
        activation = "" if self.activation_bits is None else f"A{self.activation_bits}"
        query = ["query"] if self.query_only else []
        criterion = [] if self.criterion is None else [self.criterion]
        options = [f"{key}={value}" for key, value in self.options]
        parts = f"{bits}{activation}-{self.granularity}-{self.quantizer}"
        return "+".join([parts, *query, *criterion, *options])

    @property
    def granularity(self) -> str:
        """Which weights share a scale, as the string spells it: `channel`, or `g` and a size."""
        return "channel" if self.group_size is None else f"g{self.group_size}"

    @property
    def is_mixed(self) -> bool:
        """Whether layers differ in width, which a fractional width means."""
        return not self.weight_bits.is_integer()

    @property
    def widths(self) -> tuple[int, ...]:
        """Whole bits per weight that a layer may have, ascending; one unless a criterion chooses.

        >>> parse_scheme("W3.5+gap").widths, parse_scheme("W4").widths
        ((3, 4), (4,))

        Raises:
            SpecError: the widths that the scheme names cannot average to its bits.
        """
        if self.criterion is None:
            return (int(self.weight_bits),)
        return read_widths(str(self), self.weight_bits, self.option("widths"))

    def at(self, bits: int) -> Scheme:
        """The same with one width for all layers, and nothing that chooses between widths."""
        options = [(key, value) for key, value in self.options if key not in ALLOCATION_KEYS]
        return replace(self, weight_bits=float(bits), criterion=None, options=tuple(options))

    @overload
    def option(self, key: str) -> str | None: ...
    @overload
    def option(self, key: str, default: str) -> str: ...
    def option(self, key: str, default: str | None = None) -> str | None:
        """The value of an option, else `default`; UnknownNameError if `key` is not in OPTION_KEYS.

        >>> parse_scheme("W4-gptq+calib=64").option("calib")
        '64'
        """
        if key not in OPTION_KEYS:
            raise UnknownNameError("option", key, OPTION_KEYS)
        return dict(self.options).get(key, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A model and the scheme of its candidate; its string is canonical, `MODEL@SCHEME`.

    Every spec that exists is valid: `parse(str(spec)) == spec`.

    >>> str(Spec(model="BAAI/bge-m3", scheme=Scheme(weight_bits=8)))
    'BAAI/bge-m3@W8-g128-rtn'

    Attributes:
        model: short name, hub id or folder: one line, not empty, no whitespace at its ends.
        scheme: how the candidate is made.

    Raises:
        SpecError: the values make no spec; `text` is what they would be written as.
    """

    model: str
    scheme: Scheme

    def __post_init__(self) -> None:
        if not (isinstance(self.model, str) and isinstance(self.scheme, Scheme)):
            got = f"{type(self.model).__name__} and {type(self.scheme).__name__}"
            raise SpecError(f"expected str and Scheme, got {got}", text="", start=0, end=0)
        split_spec(str(self), 0, len(str(self)))

    def __str__(self) -> str:
        return f"{self.model}@{self.scheme}"


def parse(text: str) -> Spec:
    """Read `MODEL@SCHEME`; whitespace around it does not count.

    >>> str(parse("minilm@W4"))
    'minilm@W4-g128-rtn'

    Args:
        text: a spec.

    Raises:
        SpecError: it is none; its start and end are positions in `text`.
    """
    start, end = stripped(text)
    refuse_endpoint(text, start, end)
    at = split_spec(text, start, end)
    return Spec(model=text[start:at], scheme=_scheme_at(text, at + 1, end))


def parse_scheme(text: str) -> Scheme:
    """Read `BITS{-PART}{+OPTION}`, with errors as in `parse`.

    >>> str(parse_scheme("W3.5-gptq-channel+seed=3+gap+query"))
    'W3.5-channel-gptq+query+gap+seed=3'
    """
    return _scheme_at(text, *stripped(text))


def _scheme_at(text: str, start: int, end: int) -> Scheme:
    """The scheme that text[start:end] spells, or that an allocation there was made with."""
    if stored := _STORED.fullmatch(text[start:end]):
        from quantdrift.allocation.stored.as_scheme import scheme_of  # noqa: PLC0415 -- it imports this

        behind = start + len(stored["file"])
        try:
            written = scheme_of(stored["file"], stored["rest"])
        except (QuantDriftError, OSError, ValueError, RuntimeError) as error:
            why = "a file that quantdrift allocate has written: " + " ".join(str(error).split())
            raise error_at(text, start, behind, "unusable allocation", why) from error
        try:
            return Scheme(**read_scheme(written, 0, len(written)))
        except SpecError as error:
            why = f"a quantizer or options that fit the file: {error}"
            raise error_at(text, behind, end, "unsuitable part", why) from error
    return Scheme(**read_scheme(text, start, end))
