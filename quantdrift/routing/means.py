"""Cost curves and rescoring, averaged over several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quantdrift.routing.cost import CostCurve
from quantdrift.routing.rescoring import Rescoring

__all__ = ["SHARES", "mean_curve", "mean_rescoring"]

SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Routed shares at which a cost curve is told."""


def mean_curve(curves: Sequence[CostCurve], shares: Sequence[float] = SHARES) -> list[Any]:
    """Points of several cost curves at the same routed shares, averaged.

    Each column is averaged over the runs that have it, and is None if none has.
    """
    tables = [curve.rows(shares) for curve in curves]
    return [
        {name: _mean([row[name] for row in rows]) for name in rows[0]}
        for rows in zip(*tables, strict=True)
    ]


def mean_rescoring(tables: Sequence[Sequence[Rescoring]]) -> list[Rescoring]:
    """The mean of rescoring tables, for each percentile and depth that all of them have."""
    by_place = [{(entry.percentile, entry.k): entry for entry in table} for table in tables]
    return [
        _mean_entry([table[place] for table in by_place])
        for place in by_place[0]
        if all(place in table for table in by_place)
    ]


def _mean_entry(entries: Sequence[Rescoring]) -> Rescoring:
    # means of two metrics would be of neither
    same = len({entry.metric for entry in entries} - {None}) <= 1
    names = ("encoded", "documents", "restored", "ceiling", *(("change", "loss") if same else ()))
    means = {name: _mean([getattr(entry, name) for entry in entries]) for name in names}
    metric = next((entry.metric for entry in entries if entry.metric), None) if same else None
    blank = replace(entries[0], metric=metric, change=None, loss=None)
    return replace(blank, **means)  # type: ignore[arg-type]  # shares of every entry are defined


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
