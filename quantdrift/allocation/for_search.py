"""The widths of a pair's layers, measured on a slice of the queries that it is about to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Setting
from quantdrift.allocation.criteria.registry import criterion
from quantdrift.allocation.pre_step import CalibrationInputs, MeasuredModel, allocate, setting_of
from quantdrift.allocation.retrieval_problem import contenders_for, draw_queries, retrieval_problem
from quantdrift.allocation.settings import settings_of
from quantdrift.allocation.stored.record import Allocation
from quantdrift.measurement.embeddings import digest_of
from quantdrift.measurement.inputs import Vectors
from quantdrift.pair import QuantizedPair

if TYPE_CHECKING:  # it calls this
    from quantdrift.measurement.steps import Job

__all__ = ["SearchAllocation", "allocate_for_search"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchAllocation:
    """An allocation and what it was measured with.

    Attributes:
        allocation: widths of all layers.
        setting: model and calibration inputs, with what was measured of them.
        calibration: int64, positions of the calibration queries; empty if there are none.
    """

    allocation: Allocation
    setting: Setting
    calibration: NDArray[np.int64]


def allocate_for_search(
    job: Job,
    reference: tuple[Vectors, Vectors],
    *,
    keep: Mapping[str, int] | None = None,
    n_contenders: int | None = None,
) -> SearchAllocation:
    """Measure the layers and choose their widths; labels play no part.

    Args:
        job: its pair is in the reference arm, and its scheme has a criterion.
        reference: embeddings of queries and documents by the reference.
        keep: pattern of layer names to the width that such layers are kept at.
        n_contenders: documents behind the first that gaps are taken to; by the number of
            calibration queries if not given.

    Raises:
        QuantDriftError: the criterion cannot measure this model, or there are too few queries.
    """
    pair = job.pair
    assert isinstance(pair, QuantizedPair)  # of other pairs no candidate is made
    model = MeasuredModel.of(pair)
    inputs = None
    chosen: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    if criterion(pair.scheme.criterion or "").needs_inputs:
        settings = settings_of(pair.scheme)
        chosen = draw_queries(len(job.queries.ids), wanted=settings.n_queries, seed=settings.seed)
        if n_contenders is None:
            n_contenders = contenders_for(len(chosen))
        inputs = CalibrationInputs(
            problem=retrieval_problem(
                job.queries,
                job.documents,
                reference,
                similarity=job.similarity,
                chosen=chosen,
                batch_size=job.settings.batch_size,
                n_contenders=n_contenders,
                query_only=pair.query_only,
                excluded=job.excluded,
            ),
            ids=[job.queries.ids[row] for row in chosen.tolist()],
            dataset=job.dataset,
            key=None
            if job.queries.key is None or job.documents.key is None
            else {
                "queries": job.queries.key,
                "documents": job.documents.key,
                "chosen": digest_of(chosen),
                "excluded": None if job.excluded is None else digest_of(job.excluded),
                "similarity": str(job.similarity),
                "batch_size": job.settings.batch_size,
                "contenders": n_contenders,
                "query_only": pair.query_only,
            },
        )
    setting = setting_of(model, pair.scheme, inputs, root=job.store.root, progress=job.progress)
    allocation = allocate(model, pair.scheme, inputs, setting, keep=keep)
    return SearchAllocation(allocation=allocation, setting=setting, calibration=chosen)
