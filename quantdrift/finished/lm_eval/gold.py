"""Which choice of a question is right, from what lm-eval logs of it.

A task's target is the number of a choice, several numbers, or the text of one, and which of these
is not logged. The reading is taken that gives, for every document, the accuracy that lm-eval
logged.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

import numpy as np

from quantdrift.finished.lm_eval.document import Document

__all__ = ["choices", "right_choices"]

ACCURACY = "acc"
MUTUAL_INFORMATION = "acc_mutual_info"
_TWO = 2


def choices(document: Document) -> int:
    """How many choices a question has.

    With mutual information a task asks for every choice twice, the second time without the prompt.
    These are not the scores that `acc` goes by.
    """
    n, requests = len(document.requests), document.requests
    if n % _TWO or n == _TWO:
        return n
    half = n // _TWO
    bare = all(request[0] == "" for request in requests[half:])
    again = [request[1] for request in requests[:half]] == [one[1] for one in requests[half:]]
    return half if bare and (again or MUTUAL_INFORMATION in document.metrics) else n


def right_choices(
    reference: Sequence[Document], candidate: Sequence[Document]
) -> list[frozenset[int]] | None:
    """The right choices of every question.

    Args:
        reference: samples of questions with choices.
        candidate: of the same questions, in the same order.

    Returns:
        None where they cannot be told for every question.
    """
    fitting = []
    for read in (_by_number, _by_text, _by_accuracy):
        found = [read(*pair) for pair in zip(reference, candidate, strict=True)]
        sure = [right for right in found if right]
        if len(sure) == len(found) and all(
            _fits(document, right)
            for arm in (reference, candidate)
            for document, right in zip(arm, sure, strict=True)
        ):
            fitting.append(sure)
    # choices that are numbers themselves, and no accuracy that would tell which reading is meant
    if not any(ACCURACY in document.metrics for document in reference):
        return fitting[0] if fitting and all(each == fitting[0] for each in fitting) else None
    return fitting[0] if fitting else None


Reading = Callable[[Document, Document], frozenset[int] | None]


def _by_number(document: Document, _: Document) -> frozenset[int] | None:
    try:
        target = ast.literal_eval(document.target)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    numbers = target if isinstance(target, list | tuple) else [target]
    n = choices(document)
    whole = [
        one
        for one in numbers
        if isinstance(one, int) or (isinstance(one, float) and one.is_integer())
    ]
    right = {int(one) for one in whole}
    return frozenset(right) if right and all(0 <= one < n for one in right) else None


def _by_text(document: Document, _: Document) -> frozenset[int] | None:
    texts = [str(request[1]) for request in document.requests[: choices(document)]]
    target = document.target.strip()
    return frozenset(n for n, text in enumerate(texts) if text.strip() == target)


def _by_accuracy(document: Document, other: Document) -> frozenset[int] | None:
    """From which answers were right, where that settles it."""
    both = (document, other)
    right = {_first(one) for one in both if one.metrics.get(ACCURACY) == 1}
    if right:
        return frozenset(right)
    left = set(range(choices(document)))
    left -= {_first(one) for one in both if one.metrics.get(ACCURACY) == 0}
    return frozenset(left) if len(left) == 1 else None


def _fits(document: Document, right: frozenset[int]) -> bool:
    logged = document.metrics.get(ACCURACY)
    return logged is None or logged == float(_first(document) in right)


def _first(document: Document) -> int:
    """The chosen answer; of equal ones the first, as lm-eval chooses."""
    return int(np.argmax(document.loglikelihoods[: choices(document)]))
