"""Scores and epsilon as exact rationals, and the error for arguments that cannot be used.

Every question of reachability is decided by whether a difference equals 2 epsilon, lies below it or
above it. In floating point that difference is rounded, so floats are taken as the rationals they
are: 0.1 means 3602879701896397 / 36028797018963968, not a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

from quantdrift.errors import QuantDriftError

__all__ = ["Exact", "Number", "TheoryError", "by_score", "exact", "exact_epsilon", "exact_scores"]

Number: TypeAlias = int | float | Fraction
"""What a score or an epsilon may be; scalars of numpy count as floats and integers."""

Exact: TypeAlias = int | Fraction


class TheoryError(QuantDriftError):
    """The theory cannot be applied to these arguments; says which, and what was expected."""


def exact(value: Number, *, name: str) -> Exact:
    """The very number that `value` stores, as an integer or a fraction.

    Args:
        value: any finite number.
        name: what it is, for the message.

    Raises:
        TheoryError: not a finite number.

    >>> exact(0.75, name="a score")
    Fraction(3, 4)
    """
    if isinstance(value, (int, Fraction)):
        return value
    try:
        whole = value.__index__() if hasattr(value, "__index__") else None
        return whole if whole is not None else Fraction(float(value))
    except (OverflowError, TypeError, ValueError):
        raise TheoryError(f"{name} must be a finite number; got {value!r}") from None


def exact_scores(scores: Sequence[Number]) -> list[Exact]:
    """All scores exactly, in their order.

    Raises:
        TheoryError: there is none, or one is not a finite number.
    """
    found = [exact(score, name="a score") for score in scores]
    if not found:
        raise TheoryError("scores must hold at least one item; got none")
    return found


def exact_epsilon(epsilon: Number) -> Exact:
    """Epsilon exactly.

    Raises:
        TheoryError: negative, or not a finite number.
    """
    found = exact(epsilon, name="epsilon")
    if found < 0:
        raise TheoryError(f"epsilon must be 0 or more, as a largest absolute change; got {epsilon}")
    return found


def by_score(scores: Sequence[Exact]) -> list[int]:
    """Item indices from the highest score down; ties break by position, lowest first."""
    return sorted(range(len(scores)), key=lambda item: -scores[item])
