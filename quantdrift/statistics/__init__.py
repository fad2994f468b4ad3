"""Estimates with intervals, paired tests, equivalence, sample sizes; scipy does what it has."""

from __future__ import annotations

from quantdrift.statistics.equivalence import (
    mean_equivalent,
    mean_no_worse,
    rate_equivalent,
    rate_no_worse,
)
from quantdrift.statistics.estimates import (
    Estimate,
    mean_estimate,
    quantile_estimate,
    rate_estimate,
    relative_change_estimate,
    undefined,
)
from quantdrift.statistics.multiplicity import holm
from quantdrift.statistics.paired import (
    McNemar,
    mcnemar_exact,
    paired_mean_difference,
    paired_rate_difference,
    randomization_test,
)
from quantdrift.statistics.paired_quantile import paired_quantile_difference
from quantdrift.statistics.sample_size import (
    Spread,
    inputs_for_mean,
    inputs_for_rate,
    shrunken_spread,
)
from quantdrift.statistics.several import compare_samples
from quantdrift.statistics.tango import tango_interval, tango_z
from quantdrift.statistics.verdict import PairedComparison, PairedSample, Verdict

__all__ = [
    "Estimate",
    "McNemar",
    "PairedComparison",
    "PairedSample",
    "Spread",
    "Verdict",
    "compare_samples",
    "holm",
    "inputs_for_mean",
    "inputs_for_rate",
    "mcnemar_exact",
    "mean_equivalent",
    "mean_estimate",
    "mean_no_worse",
    "paired_mean_difference",
    "paired_quantile_difference",
    "paired_rate_difference",
    "quantile_estimate",
    "randomization_test",
    "rate_equivalent",
    "rate_estimate",
    "rate_no_worse",
    "relative_change_estimate",
    "shrunken_spread",
    "tango_interval",
    "tango_z",
    "undefined",
]
