"""Estimates with intervals, paired tests, equivalence, sample sizes; scipy does what it has."""

from __future__ import annotations

from quantdrift.statistics.estimates import (
    Estimate,
    mean_estimate,
    quantile_estimate,
    rate_estimate,
    relative_change_estimate,
    undefined,
)

__all__ = [
    "Estimate",
    "mean_estimate",
    "quantile_estimate",
    "rate_estimate",
    "relative_change_estimate",
    "undefined",
]
