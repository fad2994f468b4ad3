"""The widths of a pair's layers, measured on a slice of the queries that it is about to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Setting
from quantdrift.allocation.criteria.registry import criterion
from quantdrift.allocation.pre_step import CalibrationInputs, MeasuredModel, allocate, setting_of
from quantdrift.allocation.retrieval_problem import CONTENDERS, draw_queries, retrieval_problem
from quantdrift.allocation.settings import settings_of
from quantdrift.allocation.stored.record import Allocation
from quantdrift.measurement.embeddings import digest_of
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.scoring import Similarity

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
    pair: QuantizedPair,
    queries: Inputs,
    documents: Inputs,
    reference: tuple[Vectors, Vectors],
    *,
    similarity: Similarity,
    batch_size: int,
    root: Path | None,
    progress: Progress,
    excluded: NDArray[np.int64] | None = None,
    dataset: str | None = None,
    keep: Mapping[str, int] | None = None,
) -> SearchAllocation:
    """Measure the layers and choose their widths; labels play no part.

    Args:
        pair: in the reference arm; its scheme has a criterion.
        queries: of which a slice is measured on.
        documents: the corpus.
        reference: embeddings of both by the reference.
        similarity: how embeddings become scores.
        batch_size: inputs per forward pass.
        root: cache folder; None keeps nothing.
        progress: where progress is shown.
        excluded: per query one document position that does not count, or -1.
        dataset: name of the data.
        keep: pattern of layer names to the width that such layers are kept at.

    Raises:
        QuantDriftError: the criterion cannot measure this model, or there are too few queries.
    """
    model = MeasuredModel(
        name=pair.name,
        modules=pair.modules,
        layers=pair.layers,
        fingerprint=pair.fingerprint,
        runtime=pair.runtime,
    )
    inputs = None
    chosen: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    if criterion(pair.scheme.criterion or "").needs_inputs:
        settings = settings_of(pair.scheme)
        chosen = draw_queries(len(queries.ids), wanted=settings.n_queries, seed=settings.seed)
        inputs = CalibrationInputs(
            problem=retrieval_problem(
                queries,
                documents,
                reference,
                similarity=similarity,
                chosen=chosen,
                batch_size=batch_size,
                query_only=pair.query_only,
                excluded=excluded,
            ),
            ids=[queries.ids[row] for row in chosen.tolist()],
            dataset=dataset,
            key=None
            if queries.key is None or documents.key is None
            else {
                "queries": queries.key,
                "documents": documents.key,
                "chosen": digest_of(chosen),
                "excluded": None if excluded is None else digest_of(excluded),
                "similarity": str(similarity),
                "batch_size": batch_size,
                "contenders": CONTENDERS,
                "query_only": pair.query_only,
            },
        )
    setting = setting_of(model, pair.scheme, inputs, root=root, progress=progress)
    allocation = allocate(model, pair.scheme, inputs, setting, keep=keep)
    return SearchAllocation(allocation=allocation, setting=setting, calibration=chosen)
