"""Is the second system worse than the first, on the same inputs? Exact tests that ask one way only.

The hypothesis is that the second is no worse; a small p-value speaks for "worse". A two-sided test
at the same level has less power to see what a gate is there for, and would also stop at an
improvement. How much worse is another question: see `rate_no_worse` and `mean_no_worse`.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from quantdrift.statistics.binomial import at_least
from quantdrift.statistics.equivalence import Better
from quantdrift.statistics.paired import differences, discordant, oriented
from quantdrift.statistics.sign_changes import sign_change_tails

__all__ = ["mean_worse", "rate_worse"]

Values = NDArray[Any]


def rate_worse(a: Values, b: Values, *, better: Better) -> float:
    """One-sided p-value of "the second rate is no worse than the first": McNemar's test, exact.

    P(X >= w) with w the inputs that only the second system does worse, X binomial of all inputs on
    which the two differ, with share 1/2.

    Args:
        a: bool, or 0 and 1, [n_inputs].
        b: likewise, the same inputs.
        better: which way is better.

    Returns:
        Above 0 and up to 1; below alpha, the second is shown to be worse. 1 if no input differs.

    Raises:
        QuantDriftError: not one value of 0 or 1 per input and system.

    Source: Q. McNemar, Note on the sampling error of the difference between correlated proportions
    or percentages, Psychometrika 12 (1947), 153-157.
    """
    only_a, only_b, _ = discordant(a, b)
    worse = only_b if better == "lower" else only_a
    return float(at_least(worse, only_a + only_b, 0.5)) if only_a + only_b else 1.0


def mean_worse(a: Values, b: Values, *, better: Better, seed: int = 0) -> float:
    """One-sided p-value of "the second mean is no worse than the first": a randomization test.

    If the systems are exchangeable, each difference could as well have the other sign. This is the
    share of all changes of sign with a total harm as large as the one observed (up to 13 inputs
    that differ), or (1 + c) / (1 + 9,999) if c of those drawn have one. The same are drawn as in
    `randomization_test`, whose p-value is twice the smaller of the two one-sided ones.

    It keeps its level if harm of each size is at most as likely as a gain of that size. A mean
    difference of 0 that many small gains and few large losses make up is no such case.

    Args:
        a: float [n_inputs], finite.
        b: likewise, the same inputs.
        better: which way is better.
        seed: of the draws.

    Returns:
        Above 0 and up to 1; below alpha, the second is shown to be worse. 1 if no input differs.

    Raises:
        QuantDriftError: not one finite value per input and system.

    Source: R. A. Fisher, The Design of Experiments (1935), section 21.
    """
    step, mirrored = oriented(differences(a, b) if better == "lower" else differences(b, a))
    step = step[step != 0]  # a difference of 0 has no sign to change
    if not len(step):
        return 1.0
    lower, upper = sign_change_tails(step, seed=seed)
    return lower if mirrored else upper
