"""The law beside its rivals: what else could explain the change rates, measured the same way.

If the gap alone, epsilon alone or the number of items did as well as the separation ratio, the
ratio would explain nothing.

Source: paper, section 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantdrift.statistics import Estimate, undefined
from quantdrift.theory.exact import TheoryError
from quantdrift.theory.law import (
    PREDICTORS,
    LawPoint,
    Line,
    Predictor,
    fit_line,
    r_squared,
    spearman,
)

__all__ = ["PredictorResult", "compare_predictors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorResult:
    """How well one quantity explains the change rates.

    Attributes:
        predictor: which quantity.
        spearman: rank correlation with the change rate over the points fitted.
        line: the line through those points, or None.
        r_squared: of that line on the points held out.
        reason: why there is no line.
    """

    predictor: Predictor
    spearman: Estimate
    line: Line | None
    r_squared: Estimate
    reason: str | None = None


def compare_predictors(
    points: Sequence[LawPoint], held_out: Sequence[LawPoint] = ()
) -> tuple[PredictorResult, ...]:
    """The law and its rivals on the same runs: rank correlation, line, and R2 on held-out runs.

    Args:
        points: runs that the lines are fitted on, and the correlations computed over.
        held_out: runs that only judge the lines.

    Returns:
        One result per predictor, the separation first.

    Raises:
        TheoryError: a label occurs twice, so that a held-out run could have been fitted.

    Source: paper, section 5.2.
    """
    labels = [point.label for point in (*points, *held_out)]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise TheoryError(f"every run must be there once; these occur again: {', '.join(twice)}")
    return tuple(_result(predictor, points, held_out) for predictor in PREDICTORS)


def _result(
    predictor: Predictor, points: Sequence[LawPoint], held_out: Sequence[LawPoint]
) -> PredictorResult:
    line, reason = None, None
    try:
        line = fit_line(points, predictor)
    except TheoryError as error:
        reason = str(error)
    return PredictorResult(
        predictor=predictor,
        spearman=spearman(points, predictor),
        line=line,
        r_squared=undefined("there is no line") if line is None else r_squared(line, held_out),
        reason=reason,
    )
