"""A scheme: the recipe for a candidate as a value. `quantdrift.spec.grammar` parses and checks schemes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, overload

from quantdrift.base.errors import SpecError

FULL = "fp"
FULL_BITS = 16
"""The bits of a weight that is not quantized, whatever its dtype."""
MIN_BITS, MAX_BITS = 2, 8
"""Bits that a quantized weight may have."""
POSSIBLE_BITS = frozenset({*range(MIN_BITS, MAX_BITS + 1), FULL_BITS})
DEFAULT_GROUP_SIZE = 128
DEFAULT_QUANTIZER = "rtn"
CHECKS: "list[Callable[[Scheme], Mapping[str, Any]]]" = []
"""Checks of every new scheme; each returns fields in canonical form or raises a SpecError. The grammar adds its own."""


def error_at(text: str, start: int, end: int, problem: str, expected: str, *, meant: str = "") -> SpecError:
    """The error about text[start:end]; if that is empty, something is missing there."""
    fault = text[start:end]
    problem = f"{problem} {fault!r}" if fault else f"missing {problem.partition(' ')[2]}"
    shown = text if text.strip() and text.isprintable() else repr(text)  # a message has one line
    hint = f"; did you mean {meant}?" if meant else ""
    message = f"{shown}: {problem} at character {start + 1}: expected {expected}{hint}"
    return SpecError(message, text=text, start=start, end=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The recipe for a candidate; its string is canonical, `BITS-GRANULARITY-QUANTIZER{+OPTION}` or `fp{+OPTION}`.

    Every scheme is valid, as the grammar checks it on construction: `parse_scheme(str(scheme)) == scheme`.

    >>> str(Scheme(weight_bits=3.5, quantizer="gptq", criterion="gap"))
    'W3.5-g128-gptq+gap'

    Attributes:
        weight_bits: 2 to 8, or 16 (not quantized) with activation bits or options of other stages; a fraction is the
            average over the layers, and needs a criterion.
        activation_bits: 4 to 8; None for activations that are not quantized.
        group_size: input weights that share a scale; None for a whole output channel.
        quantizer: one of QUANTIZERS, number formats among them.
        query_only: whether only queries are quantized, while documents are embedded by the reference.
        criterion: one of CRITERIA, which chooses the layers that get more bits, or None.
        options: pairs (key, value) sorted by key, without act=tensor; a mapping or unsorted pairs are converted.

    Raises:
        SpecError: the values make no valid scheme; `text` is the string they would have.
    """

    weight_bits: float
    activation_bits: int | None = None
    group_size: int | None = DEFAULT_GROUP_SIZE
    quantizer: str = DEFAULT_QUANTIZER
    query_only: bool = False
    criterion: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        pairs = self.options.items() if isinstance(self.options, Mapping) else self.options
        object.__setattr__(self, "options", tuple(sorted(pairs)))
        for check in CHECKS:
            for name, value in check(self).items():
                object.__setattr__(self, name, value)

    def __str__(self) -> str:
        bits = "W" + str(self.weight_bits).removesuffix(".0")
        activation = "" if self.activation_bits is None else f"A{self.activation_bits}"
        query = ["query"] if self.query_only else []
        criterion = [] if self.criterion is None else [str(self.criterion)]
        options = [f"{key}={value}" for key, value in self.options]
        parts = f"{bits}{activation}-{self.granularity}-{self.quantizer}"
        plain = (self.group_size, self.quantizer) == (DEFAULT_GROUP_SIZE, DEFAULT_QUANTIZER)
        if self.full_precision and plain:
            parts = FULL
        return "+".join([parts, *query, *criterion, *options])

    @property
    def full_precision(self) -> bool:
        """Whether the layers' weights and activations are not quantized."""
        return self.weight_bits == FULL_BITS and self.activation_bits is None

    def with_option(self, key: str, value: str) -> Self:
        """The scheme with an option set.

        >>> str(Scheme(weight_bits=4).with_option("seed", "3"))
        'W4-g128-rtn+seed=3'
        """
        return replace(self, options=tuple({**dict(self.options), key: value}.items()))

    @property
    def granularity(self) -> str:
        """The weights that share a scale, as the string spells them: `channel`, or `g` and a size."""
        return "channel" if self.group_size is None else f"g{self.group_size}"

    @property
    def widths(self) -> tuple[int, ...]:
        """The whole bits per weight that a layer may have, ascending; only one without a criterion.

        >>> Scheme(weight_bits=3.5, criterion="gap").widths, Scheme(weight_bits=4).widths
        ((3, 4), (4,))

        Raises:
            SpecError: the widths that the scheme names cannot average to its bits.
        """
        if self.criterion is None:
            return (int(self.weight_bits),)
        given, text = self.option("widths"), str(self)
        if given is None and not self.weight_bits.is_integer():
            return int(self.weight_bits), int(self.weight_bits) + 1
        if given is None:
            expected = "a fraction (W3.5), or the widths to choose from, e.g. +widths=2,3,4,8"
            raise error_at(text, 0, len(text), "nothing to choose between in", expected)
        offered = tuple(sorted({int(width) for width in given.split(",")}))
        if len(offered) == 1 or not offered[0] <= self.weight_bits <= offered[-1]:
            start = text.find("+widths=") + len("+widths=")
            expected = f"whole numbers below and above the average of {self.weight_bits:g}: 2,3,4,8"
            raise error_at(text, start, start + len(given), "unsuitable widths", expected)
        return offered

    @overload
    def option(self, key: str) -> str | None: ...
    @overload
    def option(self, key: str, default: str) -> str: ...
    def option(self, key: str, default: str | None = None) -> str | None:
        """The value of an option, or `default`."""
        return dict(self.options).get(key, default)
