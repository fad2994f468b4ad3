"""The law on runs its line never saw: leave one group out in turn, or hold out what a pattern says.

A line always explains some of the runs it was fitted on. What it is worth shows on a corpus, or at
a number of bits, that had no part in it.

    pooled R2 = 1 - sum (rate - predicted)^2 / sum (rate - mean)^2

over all runs held out, each predicted once, by a line fitted without its group; the mean is that of
these same rates. So 0 is what somebody reaches who knows nothing but the mean of the very runs to
be predicted, and pooled R2 credits the line for telling groups apart, which R2 within a group does
not.

Source: paper, section 5.2 (the line predicts quantizers it never saw).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import TheoryError
from quantdrift.statistics import Estimate, undefined
from quantdrift.theory.law import LawPoint, Line, Predictor, fit_line, r_squared

__all__ = [
    "HeldOut",
    "HeldOutGroup",
    "hold_out",
    "leave_one_out",
    "left_out_of_line",
    "split_by_patterns",
]

_LEAST_GROUPS = 2
_LEAST_FOR_R2 = 2  # one rate has no variance to explain


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutGroup:
    """Runs held out together, and what a line fitted on the other runs says of them.

    Attributes:
        name: of the group.
        line: fitted on the other runs, or None.
        predicted: rate the line gives each run with a finite logarithm, by label; not clipped.
        r_squared: of the line on these runs, around their own mean; at most 1, can be negative.
        mean_error: mean of abs(rate - predicted) over these runs, 0 is exact.
        reason: why there is no line.
    """

    name: str
    line: Line | None
    predicted: Mapping[str, float]
    r_squared: Estimate
    mean_error: Estimate
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """All groups held out, and how well their runs were predicted together.

    Attributes:
        predictor: what the lines read.
        groups: each with its own line.
        r_squared: pooled, as the module says; at most 1, can be negative.
        mean_error: mean of abs(rate - predicted) over all runs predicted, 0 is exact.
    """

    predictor: Predictor
    groups: tuple[HeldOutGroup, ...]
    r_squared: Estimate
    mean_error: Estimate


def leave_one_out(
    groups: Mapping[str, Sequence[LawPoint]], predictor: Predictor = "separation"
) -> HeldOut:
    """Hold out each group in turn, and predict it by the line through all the others.

    Args:
        groups: runs by the name of their group, e.g. their corpus; no run in two of them.
        predictor: what the lines read.

    Returns:
        One entry per group, in that order, and the pooled result. A group whose others give no
        line has the reason, and no part in the pooled result.

    Raises:
        TheoryError: fewer than two groups, or a label that occurs twice.

    Source: paper, section 5.2.

    >>> def at(x, rate):
    ...     return LawPoint(label=f"{x}", separation=x, gap=1, epsilon=1, n_items=9,
    ...                     change_rate=rate)
    >>> held = leave_one_out({"a": [at(0.1, 0.4), at(1, 0.2)], "b": [at(0.01, 0.6), at(10, 0.1)]})
    >>> [round(rate, 6) for group in held.groups for rate in group.predicted.values()]
    [0.433333, 0.266667, 0.6, 0.0]
    """
    if len(groups) < _LEAST_GROUPS:
        raise TheoryError(
            f"leaving one group out needs {_LEAST_GROUPS} groups; got {', '.join(groups) or 'none'}"
        )
    _check_labels([point for members in groups.values() for point in members])
    judged = []
    for name, members in groups.items():
        others = [point for other in groups if other != name for point in groups[other]]
        judged.append((_judge(name, others, members, predictor), members))
    return _pooled(predictor, judged)


def hold_out(
    fitted: Sequence[LawPoint],
    held: Sequence[LawPoint],
    *,
    name: str,
    predictor: Predictor = "separation",
) -> HeldOut:
    """Predict some runs by the line through others.

    Args:
        fitted: runs the line is fitted on.
        held: runs it is judged on.
        name: says what is held out.
        predictor: what the line reads.

    Returns:
        One group; pooled and own result are the same.

    Raises:
        TheoryError: a label occurs twice, so that a run held out could have been fitted.

    Source: paper, section 5.2.
    """
    _check_labels([*fitted, *held])
    return _pooled(predictor, [(_judge(name, fitted, held, predictor), held)])


def split_by_patterns(
    points: Sequence[LawPoint], patterns: Sequence[str]
) -> tuple[list[LawPoint], list[LawPoint]]:
    """Sort runs into those to fit and those to hold out, in that order.

    Args:
        points: the runs.
        patterns: a run is held out if its label holds one of them, or matches it as a whole with
            the wildcards *, ? and [...]; case counts.

    Raises:
        TheoryError: a pattern matches no run, or all of them leave none to fit.
    """
    held: set[str] = set()
    for pattern in patterns:
        matched = {
            point.label
            for point in points
            if pattern in point.label or fnmatchcase(point.label, pattern)
        }
        if not matched:
            few = "; ".join(point.label for point in points[:3])
            raise TheoryError(
                f"no run matches {pattern!r}; expected a part of a label, or wildcards for all of "
                f"it. Labels are like: {few}"
            )
        held |= matched
    if len(held) == len({point.label for point in points}):
        raise TheoryError(
            f"{', '.join(map(repr, patterns))} match{'' if len(patterns) > 1 else 'es'} every run, "
            "so that none is left to fit a line on; expected a narrower pattern"
        )
    return (
        [point for point in points if point.label not in held],
        [point for point in points if point.label in held],
    )


def left_out_of_line(
    points: Sequence[LawPoint], predictor: Predictor = "separation"
) -> tuple[LawPoint, ...]:
    """Runs whose predictor is 0 or infinite: they have a rank, but no place on a line."""
    return tuple(point for point in points if not 0 < getattr(point, predictor) < np.inf)


def _judge(
    name: str, fitted: Sequence[LawPoint], held: Sequence[LawPoint], predictor: Predictor
) -> HeldOutGroup:
    line, reason = None, None
    absent = set(left_out_of_line(held, predictor))
    usable = [point for point in held if point not in absent]
    predicted: NDArray[np.float64] = np.empty(0)
    try:
        line = fit_line(fitted, predictor)
        predicted = line.predict(usable)
    except TheoryError as error:
        reason, usable = str(error), []
    rates = np.array([point.change_rate for point in usable])
    none = undefined("there is no line")
    return HeldOutGroup(
        name=name,
        line=line,
        predicted=dict(zip((point.label for point in usable), predicted.tolist(), strict=True)),
        r_squared=none if line is None else r_squared(line, held),
        mean_error=none if line is None else _mean_error(rates - predicted),
        reason=reason,
    )


def _pooled(
    predictor: Predictor, judged: Sequence[tuple[HeldOutGroup, Sequence[LawPoint]]]
) -> HeldOut:
    pairs = [
        (point.change_rate, group.predicted[point.label])
        for group, members in judged
        for point in members
        if point.label in group.predicted
    ]
    rates, predicted = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    residuals = rates - predicted
    if len(rates) < _LEAST_FOR_R2:
        score = undefined(f"R2 needs {_LEAST_FOR_R2} runs that were predicted; got {len(rates)}")
    elif (rates == rates[0]).all():
        score = undefined("the change rate is the same in all runs held out")
    else:
        around_mean = rates - rates.mean()
        explained = 1 - float(residuals @ residuals) / float(around_mean @ around_mean)
        score = Estimate(value=explained, n=len(rates))
    return HeldOut(
        predictor=predictor,
        groups=tuple(group for group, _ in judged),
        r_squared=score,
        mean_error=_mean_error(residuals),
    )


def _mean_error(residuals: NDArray[np.float64]) -> Estimate:
    if not len(residuals):
        return undefined("no run has a finite logarithm")
    return Estimate(value=float(np.abs(residuals).mean()), n=len(residuals))


def _check_labels(points: Sequence[LawPoint]) -> None:
    labels = [point.label for point in points]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise TheoryError(f"every run must be there once; these occur again: {', '.join(twice)}")
