"""The widths of a classifier's layers, measured on training inputs; labels play no part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from quantdrift.allocation.classification_problem import classification_problem
from quantdrift.allocation.criteria.registry import criterion
from quantdrift.allocation.pre_step import CalibrationInputs, MeasuredModel, allocate, setting_of
from quantdrift.allocation.retrieval_problem import contenders_for
from quantdrift.allocation.settings import settings_of
from quantdrift.allocation.stored.record import Allocation
from quantdrift.errors import DataError
from quantdrift.measurement.embeddings import digest_of
from quantdrift.pair import QuantizedPair

if TYPE_CHECKING:  # whoever measures calls this
    from quantdrift.measurement.classification import LabelledJob

__all__ = ["allocate_for_classes"]


def allocate_for_classes(
    job: LabelledJob, logits: Callable[[Tensor], Tensor], reading: str
) -> Allocation:
    """Measure the layers on the gaps of training inputs and choose their widths.

    Args:
        job: its pair is in the reference arm, and its scheme has a criterion.
        logits: from what the model puts out [..., dim] to logits [..., n_classes]; differentiable.
        reading: what decides these beside the model, for what is kept.

    Raises:
        DataError: there is no train part.
        QuantDriftError: the criterion cannot measure this model.
    """
    pair = job.pair
    assert isinstance(pair, QuantizedPair)  # of other pairs no candidate is made
    model = MeasuredModel.of(pair)
    inputs = None
    if criterion(pair.scheme.criterion or "").needs_inputs:
        if job.train is None:
            raise DataError(
                f"{pair.scheme.criterion} measures layers on inputs of the train part, never on "
                f"those that are evaluated, and {job.dataset} has no train part; add one, or use a "
                "criterion that needs no inputs (reconstruction, sqnr)"
            )
        settings, size = settings_of(pair.scheme), job.settings.batch_size
        n = min(settings.n_queries, len(job.train.ids))
        rng = np.random.default_rng(settings.seed)
        chosen = np.sort(rng.choice(len(job.train.ids), size=n, replace=False)).astype(np.int64)
        part = job.train.part(chosen)
        n_contenders = contenders_for(n)
        inputs = CalibrationInputs(
            problem=classification_problem(
                part,
                part.encode(np.arange(n), size),
                logits=logits,
                batch_size=size,
                n_contenders=n_contenders,
            ),
            # ids differ within a part only: an evaluated input may have the same
            ids=[f"train part: {name}" for name in part.ids],
            dataset=job.dataset,
            key=None
            if part.key is None
            else {
                "inputs": part.key,
                "chosen": digest_of(chosen),
                "reading": reading,
                "batch_size": size,
                "contenders": n_contenders,
            },
        )
    setting = setting_of(model, pair.scheme, inputs, root=job.store.root, progress=job.progress)
    return allocate(model, pair.scheme, inputs, setting)
