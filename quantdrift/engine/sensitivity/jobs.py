"""What `quantdrift allocate` and `quantdrift predict` do, from a spec and data to what they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantdrift.allocation.curve import Gaps, Point, budgets, predicted_curve
from quantdrift.allocation.record import Allocation
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine.inputs import Settings
from quantdrift.engine.measure import Flow
from quantdrift.engine.opening import open_pair
from quantdrift.engine.sensitivity.allocate import allocate_for_search, left_out
from quantdrift.engine.sensitivity.contest import Rival, held_out_queries, hold_contest
from quantdrift.engine.sensitivity.gaps import contributions
from quantdrift.engine.sensitivity.problem import CONTENDERS
from quantdrift.engine.store import EmbeddingStore
from quantdrift.progress import Progress
from quantdrift.spec import Spec


def allocate_spec(
    spec: Spec,
    dataset: RetrievalDataset,
    *,
    out: Path,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    keep: Mapping[str, int] | None = None,
    check: bool = True,
    device: str | None = None,
    revision: str | None = None,
) -> tuple[Allocation, list[Rival]]:
    """Choose the widths of a model's layers by the criterion of the spec, and write them to `out`.

    Labels play no part. `keep` maps a pattern of layer names to the width that such layers are kept at; with `check`
    the allocation is compared with its rivals on held-out queries.
    """
    opened = open_pair(spec, dataset, device=device, revision=revision)
    left_out([layer.name for layer in opened.quantized.layers], spec.scheme, keep)  # refuses early
    flow = Flow(pair=opened.pair, settings=settings, store=store, progress=progress)
    search, reference = opened.search, flow.reference(opened.search)
    allocation, setting, chosen = allocate_for_search(flow, opened.quantized, search, reference, keep=keep)
    allocation.write(out)  # before the check, which takes longer
    if not check:
        return allocation, []
    rivals = hold_contest(
        allocation,
        setting,
        opened.quantized.encoder,
        search,
        held=held_out_queries(len(search.queries.ids), chosen, seed=allocation.seed),
        reference=reference,
        batch_size=settings.batch_size,
        query_only=spec.scheme.query_only,
    )
    return allocation, rivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What rounding is predicted to change.

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
    spec: Spec,
    dataset: RetrievalDataset,
    *,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
) -> Predicted:
    """Predict flips at the widths of a spec, from forward and backward passes of the reference; nothing is rounded."""
    opened = open_pair(spec, dataset, device=device, revision=revision)
    flow = Flow(pair=opened.pair, settings=settings, store=store, progress=progress)
    reference = flow.reference(opened.search)
    allocation, setting, _ = allocate_for_search(
        flow, opened.quantized, opened.search, reference, n_contenders=CONTENDERS
    )
    measured = Gaps(
        gaps=setting.gaps.gaps(setting.gaps.reference_outputs()),
        contributions=contributions(setting),
        n_weights=np.array([layer.n_weights for layer in allocation.layers]),
        widths=setting.widths,
    )
    with progress.stage("predicting", len(setting.widths) + len(budgets(setting.widths))) as tell:
        points = predicted_curve(measured, tell)
    return Predicted(
        points=points,
        median_gap=float(np.nanmedian(measured.gaps[:, 0])),
        n_contenders=measured.gaps.shape[1],
        input_ids=allocation.input_ids,
        n_layers=len(allocation.layers),
    )
