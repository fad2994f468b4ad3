"""The evidence in two runs of lm-eval on one task: choices as rankings, texts as answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import RunError
from quantdrift.evidence import Evidence
from quantdrift.finished.lm_eval.document import Document
from quantdrift.finished.lm_eval.gold import ACCURACY, choices, right_choices
from quantdrift.finished.rankings import evidence_of_answers, evidence_of_rankings

__all__ = ["evidence_of_choices", "evidence_of_texts", "right_or_wrong"]

Values = Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Name to the value of every document in the reference and in the candidate."""

_BEST_KNOWN = ("exact_match", "acc")
"""Of several metrics that say right or wrong, what a generated answer is judged by."""


def right_or_wrong(values: Values) -> list[str]:
    """Names of the values that are 0 or 1 for every document in both arms."""
    return [
        name for name, arms in values.items() if all(np.isin(arm, (0.0, 1.0)).all() for arm in arms)
    ]


def evidence_of_choices(
    before: Sequence[Document], after: Sequence[Document]
) -> tuple[Evidence | None, str | None, str | None]:
    """The choices of every question as its two rankings.

    Args:
        before: the reference's samples.
        after: the candidate's, in the same order.

    Returns:
        The evidence, or None and the reason; and the metric that its right choices are of, None
        where they are not known.
    """
    rankings = [
        {
            str(document.doc_id): {
                str(number): score
                for number, score in enumerate(document.loglikelihoods[: choices(document)])
            }
            for document in arm
        }
        for arm in (before, after)
    ]
    if not all(
        math.isfinite(score)
        for arm in rankings
        for ranking in arm.values()
        for score in ranking.values()
    ):
        return None, "a choice has a log-likelihood that is not finite", None
    right = right_choices(before, after)
    qrels = None
    if right is not None:
        qrels = {
            str(document.doc_id): {str(number): 1 for number in sorted(own)}
            for document, own in zip(before, right, strict=True)
        }
    evidence = evidence_of_rankings(
        rankings[0], rankings[1], qrels=qrels, complete=True, position=int
    )
    return evidence, None, None if qrels is None else ACCURACY


def evidence_of_texts(
    before: Sequence[Document], after: Sequence[Document], values: Values
) -> tuple[Evidence, str | None]:
    """Generated text, or of one text whether greedy decoding gives it, which is right.

    Args:
        before: the reference's samples.
        after: the candidate's, in the same order.
        values: of both arms.

    Returns:
        The evidence; and the metric that says which answers are right, None if none does.
    """
    if before[0].kind == "loglikelihood":
        answers = [
            {str(one.doc_id): "target" if all(one.greedy) else "other" for one in arm}
            for arm in (before, after)
        ]
        right = [{name: answer == "target" for name, answer in arm.items()} for arm in answers]
        return evidence_of_answers(answers[0], answers[1], right=(right[0], right[1])), ACCURACY
    answers = [{str(one.doc_id): one.answer for one in arm} for arm in (before, after)]
    judges = right_or_wrong(values)
    for judge in sorted(judges, key=lambda name: (name not in _BEST_KNOWN, judges.index(name))):
        marks = [dict(zip(answers[0], arm == 1.0, strict=True)) for arm in values[judge]]
        try:
            return evidence_of_answers(answers[0], answers[1], right=(marks[0], marks[1])), judge
        except RunError:  # it judges more than the answer, or not the same way twice
            continue
    return evidence_of_answers(answers[0], answers[1]), None
