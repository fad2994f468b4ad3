"""Numbers and names in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantdrift.statistics.estimates import Estimate


def percent(value: float | None, digits: int = 1) -> str:
    """A rate as people read it."""
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def with_interval(estimate: Estimate, digits: int = 1, sign: str = "") -> str:
    """A rate and its interval in percent: "12.0 % (10.1 to 14.2)"."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return percent(estimate.value, digits)
    value, low, high = (f"{100 * end:{sign}.{digits}f}" for end in (estimate.value, estimate.low, estimate.high))
    return f"{value}{'' if sign else ' %'} ({low} to {high})"


def counted(number: int, what: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def some(names: Iterable[object], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
