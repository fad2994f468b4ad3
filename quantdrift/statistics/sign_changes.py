"""Fisher's randomization test of paired differences: what other signs would have given.

If two systems are exchangeable, each difference could as well have the other sign. The sum of the
differences is compared with the sums of all changes of sign, or of 9,999 that are drawn. The
signs drawn are those of `scipy.stats.permutation_test` (of one sample, in batches).

Source: R. A. Fisher, The Design of Experiments (1935), section 21. That the sum observed counts as
one of those drawn: B. Phipson and G. K. Smyth, Permutation p-values should never be zero,
Statistical Applications in Genetics and Molecular Biology 9 (2010), article 39.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALL", "DRAWN", "sign_change_tails"]

DRAWN = 9_999
"""Sign changes that are drawn where not all of them are tried."""

ALL = 13
"""With up to so many inputs that differ, all are: 2^13 is below 9,999."""

_AT_ONCE = 2**20
"""Signs drawn at a time: 8 MiB of numbers. The draws do not depend on it."""

_ROUNDING = 100 * np.finfo(np.float64).eps
"""Sums closer than this, relative to the sum of all sizes, are the same but for rounding."""


def sign_change_tails(step: NDArray[np.float64], *, seed: int) -> tuple[float, float]:
    """How likely a sum as small as the one observed is, and one as large.

    c / 2^n, if c of all changes of sign have such a sum; or (1 + c) / (1 + 9,999), if c of those
    drawn have.

    Args:
        step: float64 [n_inputs], differences, at least one, none of them 0.
        seed: of the draws; without effect with up to 13 inputs.

    Returns:
        Lower and upper tail, above 0 and up to 1. Sums that are equal count in both, so that the
        two come to more than 1.
    """
    n = len(step)
    total, rounding = float(step.sum()), _ROUNDING * float(np.abs(step).sum())
    # the signs observed are among all of them, but not among those drawn
    tried = low = high = 0 if n <= ALL else 1
    for kept in [_all_signs(n)] if n <= ALL else _drawn_signs(n, seed):
        sums = 2 * (kept @ step) - total
        tried += len(sums)
        low += int((sums <= total + rounding).sum())
        high += int((sums >= total - rounding).sum())
    return low / tried, high / tried


def _all_signs(n: int) -> NDArray[np.float64]:
    """1 for a sign that is kept and 0 for one that is changed, float64 [2^n, n]."""
    numbers = np.arange(2**n, dtype=np.int64)[:, np.newaxis]
    return np.asarray((numbers >> np.arange(n)) & 1, dtype=np.float64)


def _drawn_signs(n: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """9,999 rows of such, a few at a time; the lowest bit of a random number is a sign."""
    rng = np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // n)
    for done in range(0, DRAWN, rows):
        drawn = rng.integers(0, 2**32, (min(rows, DRAWN - done), n), dtype=np.uint32)
        yield (drawn & 1).astype(np.float64)
