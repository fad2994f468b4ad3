"""The law on a set of runs: rank correlations, the line, and the line on runs it never saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from quantdrift.errors import UnknownNameError
from quantdrift.report.law_runs import LawRun
from quantdrift.statistics import Estimate
from quantdrift.theory import PREDICTORS, LawPoint, Line, Predictor, TheoryError
from quantdrift.theory.held_out import HeldOut, hold_out, leave_one_out, split_by_patterns
from quantdrift.theory.law import fit_line, spearman

__all__ = ["Grouping", "LawStudy", "grouped", "study_law"]

Grouping = Literal["data", "scheme"]
"""What is left out together: all runs on one corpus, or all runs at one number of bits."""

_LEAST_GROUPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LawStudy:
    """What the runs say of the law.

    Attributes:
        runs: all of them.
        left_out: "data" or "scheme" where each group is left out in turn, else the patterns.
        spearman: rank correlation of each predictor with the change rate over all runs.
        within: likewise over the runs of each corpus.
        line: on the median separation, through the runs that are not held out by a pattern (so
            through all runs where groups are left out in turn); None without one.
        held_out: by predictor, how lines predict runs they never saw; empty without any.
        reason: why there is no line, or nothing held out.
    """

    runs: tuple[LawRun, ...]
    left_out: Grouping | tuple[str, ...]
    spearman: Mapping[Predictor, Estimate]
    within: Mapping[str, Mapping[Predictor, Estimate]]
    line: Line | None
    held_out: Mapping[Predictor, HeldOut]
    reason: str | None = None


def study_law(
    runs: Sequence[LawRun], *, by: str = "data", patterns: Sequence[str] = ()
) -> LawStudy:
    """Compute everything that is said of the law on some runs.

    Args:
        runs: at least one.
        by: "data" leaves each corpus out in turn, "scheme" each number of bits.
        patterns: hold out the runs whose label matches any, instead.

    Raises:
        UnknownNameError: `by` is neither.
        TheoryError: the patterns match nothing, or everything.

    Source: paper, section 5.2.
    """
    groups = grouped(runs, by)
    points = [run.point for run in runs]
    fitted, held = split_by_patterns(points, patterns) if patterns else (points, [])
    held_out: dict[Predictor, HeldOut] = {}
    line, reason = None, None
    try:
        line = fit_line(fitted)
    except TheoryError as error:
        reason = str(error)
    if patterns:
        name = " or ".join(patterns)
        held_out = {
            which: hold_out(fitted, held, name=name, predictor=which) for which in PREDICTORS
        }
    elif len(groups) >= _LEAST_GROUPS:
        held_out = {which: leave_one_out(groups, which) for which in PREDICTORS}
    elif reason is None:
        other = "--by scheme" if by == "data" else "--by data"
        reason = (
            f"all runs are on one corpus, {next(iter(groups))}"
            if by == "data"
            else f"all runs are at {next(iter(groups))}"
        ) + f", so none can be left out by {by}; try {other} or --hold-out PATTERN"
    return LawStudy(
        runs=tuple(runs),
        left_out=tuple(patterns) if patterns else "data" if by == "data" else "scheme",
        spearman=_spearman(points),
        within={name: _spearman(members) for name, members in grouped(runs, "data").items()},
        line=line,
        held_out=held_out,
        reason=reason,
    )


def grouped(runs: Sequence[LawRun], by: str) -> dict[str, list[LawPoint]]:
    """Points by the corpus or the bits of their run, in order of appearance.

    Raises:
        UnknownNameError: `by` is neither "data" nor "scheme".
    """
    if by not in get_args(Grouping):
        raise UnknownNameError("grouping", by, get_args(Grouping), hint="(--by data or scheme)")
    groups: dict[str, list[LawPoint]] = {}
    for run in runs:
        groups.setdefault(run.data if by == "data" else run.bits, []).append(run.point)
    return groups


def _spearman(points: Sequence[LawPoint]) -> dict[Predictor, Estimate]:
    return {predictor: spearman(points, predictor) for predictor in PREDICTORS}
