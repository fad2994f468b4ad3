"""What runs say of the law, in plain sentences; above all where they do not bear it out."""

from __future__ import annotations

from quantdrift.report.law_study import LawStudy
from quantdrift.theory import PREDICTORS, Predictor
from quantdrift.theory.held_out import left_out_of_line

__all__ = ["NAMES", "law_findings"]

NAMES: dict[Predictor, str] = {
    "separation": "median separation ratio",
    "gap": "median gap alone",
    "epsilon": "median epsilon alone",
    "n_items": "number of items alone",
}

FEW = 10
"""Below this, one run more or less can move a rank correlation by tenths."""
ORDERED = -0.5
"""A Spearman correlation above this is not the order the law claims; the paper's are near -0.9."""
_NAMED = 4


def law_findings(study: LawStudy) -> list[str]:
    """The findings of a study, one sentence or two each.

    Args:
        study: as computed by `study_law`.
    """
    return [*_order(study), *_rivals(study), *_unseen(study), *_left_out(study)]


def _order(study: LawStudy) -> list[str]:
    n, value = len(study.runs), study.spearman["separation"].value
    if value is None:
        return [f"The law cannot be tried on these runs: {study.spearman['separation'].reason}."]
    over = f"Spearman {value:+.2f} over {n} runs"
    if value > ORDERED:
        lines = [f"The order is NOT as the law says: {over}, where the law says close to -1."]
    else:
        lines = [f"As the law says, runs with a larger separation change fewer answers ({over})."]
    if n < FEW:
        lines.append(f"{n} runs are too few to rely on that; {FEW} or more are better.")
    apart = {
        name: estimates["separation"].value
        for name, estimates in study.within.items()
        if (within := estimates["separation"].value) is not None and within > ORDERED
    }
    if apart and len(study.within) > 1:
        names = ", ".join(f"{name} ({value:+.2f})" for name, value in apart.items())
        lines.append(f"Within these corpora the order is NOT as the law says: {names}.")
    return lines


def _rivals(study: LawStudy) -> list[str]:
    own = study.spearman["separation"].value
    strengths = {
        predictor: abs(value)
        for predictor in PREDICTORS[1:]
        if (value := study.spearman[predictor].value) is not None
    }
    if own is None or not strengths:
        return []
    best = max(strengths, key=lambda predictor: strengths[predictor])
    rival, value = NAMES[best], study.spearman[best].value
    # what is printed to two digits is not told apart here either
    if round(strengths[best], 2) < round(abs(own), 2):
        line = f"No rival orders all these runs as well; the best is the {rival} ({value:+.2f})."
        closer = _closer_within(study, best)
        if closer:
            line += f" Within one corpus it does: {', '.join(closer)}."
        return [line]
    return [
        f"The {rival} orders these runs as well ({value:+.2f}), so they do not show that the "
        "separation explains more; runs on corpora with other gaps could."
    ]


def _closer_within(study: LawStudy, rival: Predictor) -> list[str]:
    """The corpora within which a rival orders the runs as well as the separation does."""
    names = []
    for name, estimates in study.within.items():
        own, other = estimates["separation"].value, estimates[rival].value
        if own is not None and other is not None and round(abs(other), 2) >= round(abs(own), 2):
            names.append(name)
    return names


def _unseen(study: LawStudy) -> list[str]:
    if not study.held_out:
        return [f"The line was not tried on runs it never saw: {study.reason}."]
    held = study.held_out["separation"]
    score, error = held.r_squared.value, held.mean_error.value
    if score is None or error is None:
        return [f"The line could not be judged on runs it never saw: {held.r_squared.reason}."]
    whose = {"data": "fitted without their corpus", "scheme": "fitted without their bits"}
    fitted = (
        whose[study.left_out]
        if isinstance(study.left_out, str)
        else f"fitted on the other {0 if study.line is None else study.line.n} runs"
    )
    lines = [
        f"The change rates of {held.r_squared.n} runs, predicted by a line {fitted}, are off by "
        f"{100 * error:.1f} percentage points on average (R2 {_score(score)})."
        + (" That is worse than their mean: the line does NOT carry over." if score < 0 else "")
    ]
    worse = {
        group.name: value
        for group in held.groups
        if (value := group.r_squared.value) is not None and value < 0
    }
    if worse and len(held.groups) > 1:
        names = ", ".join(f"{name} (R2 {_score(value)})" for name, value in worse.items())
        lines.append(
            f"Taken alone, these are predicted worse than by their own mean rate: {names}."
        )
    below = sum(rate < 0 for group in held.groups for rate in group.predicted.values())
    if below:
        lines.append(
            f"For {below} of them the line says less than 0 %: it is straight, is not clipped, and "
            "is no guide far out."
        )
    lines += [
        f"Not predicted: {group.name} ({group.reason})." for group in held.groups if group.reason
    ]
    return lines


def _left_out(study: LawStudy) -> list[str]:
    absent = left_out_of_line([run.point for run in study.runs])
    lines = []
    for what, points in (
        ("infinite (an exact copy for most inputs)", [p for p in absent if p.separation > 0]),
        ("0 (most inputs are tied at the top)", [p for p in absent if p.separation == 0]),
    ):
        if points:
            names = "; ".join(point.label for point in points[:_NAMED])
            more = f" and {len(points) - _NAMED} more" if len(points) > _NAMED else ""
            lines.append(
                f"Left out of the line, as their median separation is {what}: {names}{more}."
            )
    return lines


def _score(value: float) -> str:
    return "below -10" if value < -10 else f"{value:.2f}"  # noqa: PLR2004 -- so bad is bad enough
