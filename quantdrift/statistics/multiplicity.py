"""Several tests at once: p-values adjusted so that the chance of any false alarm stays at alpha."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["holm"]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjusted p-values, in the order given.

    The i-th smallest of m is multiplied by m - i + 1, and no adjusted value is below that of a
    smaller one. Valid whatever the dependence between the tests.

    Args:
        p_values: from 0 to 1; None for a test that could not be made, which does not count in m.

    Returns:
        From 0 to 1, never below the value given; None where None was given.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal
    of Statistics 6 (1979), 65-70.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    made = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(made):
        least = max(least, min(1.0, p * (len(made) - rank)))
        adjusted[place] = least
    return adjusted
