"""From a model and data to predictions: what `quantdrift predict` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Setting
from quantdrift.allocation.for_search import allocate_for_search
from quantdrift.allocation.gradients.one_pass import contributions
from quantdrift.allocation.predict import Gaps
from quantdrift.allocation.predicted_curve import Point, budgets, predicted_curve
from quantdrift.allocation.predicted_runs import (
    Additivity,
    MeasuredRun,
    PredictedOn,
    additivity,
    measured_run,
)
from quantdrift.allocation.retrieval_problem import CONTENDERS
from quantdrift.allocation.rounded import rounded
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.job import open_pair
from quantdrift.measurement.steps import Settings
from quantdrift.progress import Progress
from quantdrift.runs import Run
from quantdrift.spec import Scheme, Spec

__all__ = ["Predicted", "predict_model"]

_CHECKED = (3, 4)
"""Widths that additivity is checked at: one where it holds and one where it begins to break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What came out.

    Attributes:
        points: the curve.
        median_gap: of the gap to the runner-up, over the calibration inputs, in units of the score.
        n_contenders: documents behind the first that are watched.
        input_ids: of the calibration inputs.
        n_layers: linear layers.
        checks: width that all layers were rounded to, and how the predicted shifts compare.
        runs: those that fit, beside their prediction.
        others: folder of each other run, and why it does not fit.
    """

    points: Sequence[Point]
    median_gap: float
    n_contenders: int
    input_ids: Sequence[str]
    n_layers: int
    checks: dict[int, Additivity]
    runs: Sequence[MeasuredRun]
    others: dict[str, str]


def predict_model(
    model: str,
    dataset: RetrievalDataset,
    *,
    widths: tuple[int, ...],
    group_size: int | None,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    runs: Sequence[Run] = (),
    check: bool = False,
    device: str | None = None,
    revision: str | None = None,
) -> Predicted:
    """Predict flips from one forward and one backward pass; no layer is rounded unless checked.

    Args:
        model: as a spec names it.
        dataset: queries and documents; labels play no part.
        widths: bits per weight, ascending, at least two.
        group_size: input weights that share a scale, None for a whole output channel.
        settings: batch size.
        store: where embeddings and sensitivities are kept.
        progress: where progress is shown.
        runs: finished ones to set beside the prediction.
        check: whether to round the model and compare the shifts of the calibration inputs.
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
    reference, fingerprint = job.embed_reference()
    found = allocate_for_search(job, reference, n_contenders=CONTENDERS)
    setting = found.setting
    measured = _gaps(setting)
    with progress.stage("predicting", len(widths) + len(budgets(widths))) as tell:
        points = predicted_curve(measured, tell)
    origin = PredictedOn(
        fingerprint=fingerprint,
        data=dataset.fingerprint,
        group_size=group_size,
        layers=[layer.name for layer in setting.layers],
        input_ids=found.allocation.input_ids,
    )
    beside = {str(run.path): measured_run(run, measured, origin) for run in runs}
    return Predicted(
        points=points,
        median_gap=float(np.nanmedian(measured.gaps[:, 0])),
        n_contenders=measured.gaps.shape[1],
        input_ids=found.allocation.input_ids,
        n_layers=len(setting.layers),
        checks=_checks(setting, measured) if check else {},
        runs=[run for run in beside.values() if isinstance(run, MeasuredRun)],
        others={path: run for path, run in beside.items() if isinstance(run, str)},
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


def _checks(setting: Setting, measured: Gaps) -> dict[int, Additivity]:
    chosen = [width for width in _CHECKED if width in setting.widths] or list(setting.widths[:1])
    everywhere = {width: [width] * len(setting.layers) for width in chosen}
    return {
        width: additivity(measured, widths, _moved(setting, measured, widths))
        for width, widths in everywhere.items()
    }


def _moved(setting: Setting, measured: Gaps, widths: Sequence[int]) -> NDArray[np.float64]:
    """The shift of every gap when the model really is rounded; kept like what is predicted."""
    problem, name = setting.problem, f"shift-W{widths[0]}"
    assert problem is not None  # as in `_gaps`
    kept = None if setting.kept is None else setting.kept.get(name)
    if kept is not None:
        return kept
    outputs = np.empty_like(problem.reference)
    with (
        setting.progress.stage(f"rounded to W{widths[0]}", problem.n_rows) as tell,
        rounded(setting.layers, widths, setting.group_size),
    ):
        for batch in problem.batches:
            outputs[batch.rows] = batch.run()
            tell(len(batch.rows))
    moved = problem.gaps(outputs) - measured.gaps
    if setting.kept is not None:
        setting.kept.put(name, moved)
    return moved
