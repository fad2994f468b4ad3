"""Two systems on the same inputs, with so many that differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantdrift.statistics import rate_no_worse

Floats = NDArray[np.float64]
GAINS = np.array([1 / 2, 2 / 3, 1 / 6, 1 / 4, 9 / 10, 1.0, 0.37, 0.1])
"""Changes of reciprocal ranks and of nDCG that one place or a few make."""
ALPHA = 0.05


def rates(worse: int, improved: int, n: int) -> tuple[Floats, Floats]:
    """Values of 0 and 1 where B has `worse` events that A lacks, and the other way round."""
    a = np.repeat([0.0, 1.0, 0.0], [worse, improved, n - worse - improved])
    b = np.repeat([1.0, 0.0, 0.0], [worse, improved, n - worse - improved])
    return a, b


def p_rate(worse: int, improved: int, n: int, margin: float) -> float:
    return rate_no_worse(*rates(worse, improved, n), margin=margin, better="lower")
