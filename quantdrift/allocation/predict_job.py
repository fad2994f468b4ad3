"""From a model and data to predictions: what `quantdrift predict` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantdrift.allocation.criteria.base import Setting
from quantdrift.allocation.for_search import allocate_for_search
from quantdrift.allocation.gradients.one_pass import contributions
from quantdrift.allocation.predict import Gaps
from quantdrift.allocation.predicted_curve import Point, budgets, predicted_curve
from quantdrift.allocation.retrieval_problem import CONTENDERS
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.job import open_pair
from quantdrift.measurement.steps import Settings
from quantdrift.progress import Progress
from quantdrift.spec import Scheme, Spec

__all__ = ["Predicted", "predict_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What came out.

    Attributes:
        points: the curve.
        median_gap: of the gap to the runner-up, over the calibration inputs, in units of the score.
        n_contenders: documents behind the first that are watched.
        input_ids: of the calibration inputs.
        n_layers: linear layers.
    """

    points: Sequence[Point]
    median_gap: float
    n_contenders: int
    input_ids: Sequence[str]
    n_layers: int


def predict_model(
    model: str,
    dataset: RetrievalDataset,
    *,
    widths: tuple[int, ...],
    group_size: int | None,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
) -> Predicted:
    """Predict flips from one forward and one backward pass; no layer is rounded.

    Args:
        model: as a spec names it.
        dataset: queries and documents; labels play no part.
        widths: bits per weight, ascending, at least two.
        group_size: input weights that share a scale, None for a whole output channel.
        settings: batch size.
        store: where embeddings and sensitivities are kept.
        progress: where progress is shown.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.

    Raises:
        QuantDriftError: model or data cannot be used, or no gradient goes through the model.
    """
    scheme = Scheme(
        weight_bits=widths[0],
        group_size=group_size,
        criterion="gap",
        options=(("widths", ",".join(map(str, widths))),),
    )
    spec = Spec(model=model, scheme=scheme)
    opened = open_pair(spec, dataset, places=[], device=device, revision=revision)
    job = opened.job(settings, store, progress)
    reference, _ = job.embed_reference()
    found = allocate_for_search(job, reference, n_contenders=CONTENDERS)
    setting = found.setting
    measured = _gaps(setting)
    with progress.stage("predicting", len(widths) + len(budgets(widths))) as tell:
        points = predicted_curve(measured, tell)
    return Predicted(
        points=points,
        median_gap=float(np.nanmedian(measured.gaps[:, 0])),
        n_contenders=measured.gaps.shape[1],
        input_ids=found.allocation.input_ids,
        n_layers=len(setting.layers),
    )


def _gaps(setting: Setting) -> Gaps:
    problem = setting.problem
    assert problem is not None  # the criterion needs inputs
    assert problem.reference is not None  # a search knows its reference
    return Gaps(
        gaps=problem.gaps(problem.reference),
        contributions=contributions(setting),
        n_weights=np.array([layer.weight.numel() for layer in setting.layers]),
        widths=setting.widths,
    )
