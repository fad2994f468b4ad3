"""Which listener a task of mteb's gets."""

from __future__ import annotations

from typing import Any

from mteb.abstasks import (
    AbsTaskBitextMining,
    AbsTaskClassification,
    AbsTaskMultilabelClassification,
    AbsTaskPairClassification,
    AbsTaskRegression,
    AbsTaskSTS,
)

from quantdrift_mteb.bitext import BitextListener
from quantdrift_mteb.classification import ProbeListener
from quantdrift_mteb.similarities import PairListener, SimilarityListener
from quantdrift_mteb.watching import Listener

_OTHER = (AbsTaskMultilabelClassification, AbsTaskRegression)
"""mteb derives them from classification, but an input has several classes there, or none."""


def listener_for(task: Any) -> Listener | None:
    """The listener of a task, None where there is nothing for one.

    Args:
        task: mteb's.
    """
    if isinstance(task, AbsTaskClassification) and not isinstance(task, _OTHER):
        return ProbeListener(task.label_column_name)
    if isinstance(task, AbsTaskPairClassification):
        return PairListener(task)
    if isinstance(task, AbsTaskSTS):
        return SimilarityListener(task.metadata.main_score)
    if isinstance(task, AbsTaskBitextMining):
        return BitextListener(task)
    return None
