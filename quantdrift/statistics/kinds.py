"""Estimates and paired differences by the kind of values: rates or means."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.statistics.estimates import Estimate, mean_estimate, rate_estimate
from quantdrift.statistics.paired import paired_mean_difference, paired_rate_difference

Kind = Literal["rate", "mean"]
Values = NDArray[np.float64]


def estimate(values: Values, kind: Kind) -> Estimate:
    """Estimate a share of ones with a Wilson interval, or a mean with a bootstrap interval; float64 [n_inputs]."""
    return rate_estimate(values) if kind == "rate" else mean_estimate(values)


def paired_difference(before: Values, after: Values, kind: Kind) -> Estimate:
    """Estimate after minus before: of shares with Tango's interval, of means with a paired bootstrap."""
    return (paired_rate_difference if kind == "rate" else paired_mean_difference)(before, after)
