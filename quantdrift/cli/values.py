"""Lists and sizes that are typed as one word."""

from __future__ import annotations

import re

from quantdrift.errors import QuantDriftError, SpecError
from quantdrift.spec import parse


def names(text: str) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(part.strip() for part in text.split(","))


def whole_numbers(text: str, option: str, *, least: int) -> tuple[int, ...]:
    """The whole numbers in a list with commas.

    Raises:
        QuantDriftError: a part is none, or less than `least`.
    """
    parts = names(text)
    if not all(re.fullmatch("[0-9]{1,9}", part) and int(part) >= least for part in parts):
        raise QuantDriftError(f"{option} {text}: expected whole numbers, {least} or more, with commas between")
    return tuple(map(int, parts))


def decimals(text: str, option: str, *, example: str = "3.25,3.5") -> tuple[float, ...]:
    """The decimal numbers in a list with commas; the example is for the message.

    Raises:
        QuantDriftError: a part is none.
    """
    parts = names(text)
    if not all(re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,6})?", part) for part in parts):
        raise QuantDriftError(f"{option} {text}: expected numbers with commas between, e.g. {example}")
    return tuple(map(float, parts))


def parse_group(text: str) -> int | None:
    """Input weights that share a scale; None for "channel".

    Raises:
        QuantDriftError: it is neither that nor a number.
    """
    if text == "channel":
        return None
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise QuantDriftError(
            f"--group {text}: expected the number of input weights that share a scale, e.g. 128, or channel"
        )
    return int(text)


def refuse_scheme(model: str, instead: str) -> None:
    """Refuse a spec where a model is wanted.

    Args:
        model: as typed.
        instead: why, and what to type; {} stands for the model.

    Raises:
        QuantDriftError: a scheme stands behind it.
    """
    try:
        spec = parse(model)
    except SpecError:
        return
    raise QuantDriftError(f"expected a model without a scheme, got {model}: {instead.format(spec.model)}")
