"""Values of two systems on the same inputs, with so many that differ."""

import numpy as np
from numpy.typing import NDArray

from quantdrift.statistics.estimates import Estimate

Floats = NDArray[np.float64]


def rates(only_b: int, only_a: int, n: int) -> tuple[Floats, Floats]:
    """Values of 0 and 1 where B has `only_b` events that A lacks, and the other way round."""
    a = np.repeat([0.0, 1.0, 0.0], [only_b, only_a, n - only_b - only_a])
    b = np.repeat([1.0, 0.0, 0.0], [only_b, only_a, n - only_b - only_a])
    return a, b


def ends(estimate: Estimate) -> tuple[float, float]:
    """Return the ends of an interval that has both."""
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high
