"""Numbers and names in sentences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantdrift.statistics.estimates import Estimate

NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"


def percent(value: float | None, digits: int = 1) -> str:
    """A rate in percent; "-" for None."""
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def share_of(text: str) -> float:
    """Read a share, "0.03" or "3 %"; both give the same float.

    >>> share_of("0.7 %"), share_of("5%")
    (0.007, 0.05)
    """
    match = re.fullmatch(rf"\s*({NUMBER})\s*(%?)\s*", text)
    if match is None:
        raise ValueError(f"expected a number such as 0.05, or 5 %; got {text!r}")
    return float(Decimal(match[1]) / (100 if match[2] else 1))


def near(path: Path | str) -> str:
    """A path, from the current folder where it lies below that."""
    path = Path(str(path))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def as_typed(path: Path | str) -> str:
    """A path as it is typed on a shell here."""
    return shlex.quote(near(path))


def with_interval(estimate: Estimate, digits: int = 1, sign: str = "") -> str:
    """A rate with its interval in percent: "12.0 % (10.1 to 14.2)"."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return percent(estimate.value, digits)
    value, low, high = (f"{100 * end:{sign}.{digits}f}" for end in (estimate.value, estimate.low, estimate.high))
    return f"{value}{'' if sign else ' %'} ({low} to {high})"


def counted(number: int, what: str) -> str:
    """A number with its noun: "1 run", "2 runs"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def some(names: Iterable[object], most: int = 4) -> str:
    """The first few names and the number of the others: "a, b, c, d and 3 more"."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
