"""What is told of a baseline when it is written: its figures, and rules it is too small for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from quantdrift.gate.outcome import least_inputs
from quantdrift.gate.rule import Rule
from quantdrift.gate.snapshot import Snapshot
from quantdrift.metrics import parse_metric
from quantdrift.report.numbers import show
from quantdrift.statistics import Estimate

__all__ = ["beyond_reach", "means_line"]


def means_line(snapshot: Snapshot) -> str:
    """The mean of every column, for who commits the file.

    Args:
        snapshot: that is written.
    """
    told = []
    for name, values in snapshot.values.items():
        known = values[np.isfinite(values)]
        if len(known):
            mean = Estimate(value=float(known.mean()))
            told.append(f"{name} {show(parse_metric(name), mean)}")
    return ", ".join(told)


def beyond_reach(rules: Sequence[Rule], snapshot: Snapshot, *, alpha: float) -> list[str]:
    """Rules that too few inputs could ever show to be kept, one line each.

    Args:
        rules: that later runs are judged by.
        snapshot: the baseline.
        alpha: level of the tests.
    """
    lines = []
    for rule in rules:
        if not rule.compares or rule.number is None or rule.on is not None:
            continue
        if not math.isfinite(rule.span):
            continue
        values = snapshot.values.get(str(rule.metric))
        n = 0 if values is None else int(np.isfinite(values).sum())
        least = least_inputs(rule, alpha=alpha)
        if 0 < n < least:
            lines.append(
                f"'{rule}' rests on {n:,} inputs, and of another candidate that does not differ it "
                f"takes {least:,} to show it; measure more, or allow a larger margin"
            )
    return lines
