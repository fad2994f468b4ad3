"""Estimates with intervals, paired tests, no worse by a margin, sample sizes.

Nothing here needs `scipy.stats` or `scipy.optimize`, which take half a second to import.
"""

from __future__ import annotations

from quantdrift.statistics.estimates import (
    Estimate,
    as_json,
    mean_estimate,
    quantile_estimate,
    rate_estimate,
    relative_change_estimate,
    undefined,
)
from quantdrift.statistics.paired import (
    McNemar,
    mcnemar_exact,
    paired_mean_difference,
    paired_quantile_difference,
    paired_rate_difference,
    randomization_test,
    tango_interval,
    tango_z,
)
from quantdrift.statistics.verdicts import (
    PairedComparison,
    PairedSample,
    Spread,
    Verdict,
    compare_samples,
    holm,
    inputs_for_mean,
    inputs_for_rate,
    mean_no_worse,
    mean_worse,
    rate_no_worse,
    rate_worse,
    shrunken_spread,
)

__all__ = [
    "Estimate",
    "McNemar",
    "PairedComparison",
    "PairedSample",
    "Spread",
    "Verdict",
    "as_json",
    "compare_samples",
    "holm",
    "inputs_for_mean",
    "inputs_for_rate",
    "mcnemar_exact",
    "mean_estimate",
    "mean_no_worse",
    "mean_worse",
    "paired_mean_difference",
    "paired_quantile_difference",
    "paired_rate_difference",
    "quantile_estimate",
    "randomization_test",
    "rate_estimate",
    "rate_no_worse",
    "rate_worse",
    "relative_change_estimate",
    "shrunken_spread",
    "tango_interval",
    "tango_z",
    "undefined",
]
