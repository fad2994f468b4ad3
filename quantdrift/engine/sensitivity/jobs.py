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
from quantdrift.engine.sensitivity.contest import Contest, held_out_queries, hold_contest
from quantdrift.engine.sensitivity.gaps import contributions, problem_of
from quantdrift.engine.sensitivity.problem import CONTENDERS
from quantdrift.engine.store import EmbeddingStore
from quantdrift.errors import SpecError, UnsupportedError
from quantdrift.progress import Progress
from quantdrift.spec import Scheme, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """An allocation as written, and how it did against its rivals; None if that was not asked for."""

    allocation: Allocation
    contest: Contest | None


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
) -> Allocated:
    """Choose the widths of a model's layers by the criterion of the spec, and write them to `out`.

    Labels play no part. `keep` maps a pattern of layer names to the width that such layers are kept at; with `check`
    the allocation is compared with its rivals on held-out queries.
    """
    like_this = f"e.g. {spec.model}@W3.5+gap"
    if spec.scheme.criterion is None:
        text = str(spec)
        problem = f"{text}: no criterion to choose widths by; expected one, {like_this}"
        raise SpecError(problem, text=text, start=len(text), end=len(text))
    if (stored := spec.scheme.option("allocation")) is not None:
        raise UnsupportedError(
            f"{spec} has the widths of {stored}; expected a scheme whose widths are to be chosen, {like_this}"
        )
    Allocation.check_place(out)
    opened = open_pair(spec, dataset, device=device, revision=revision)
    left_out([layer.name for layer in opened.quantized.layers], spec.scheme, keep)  # refuses early
    flow = Flow(pair=opened.pair, settings=settings, store=store, progress=progress)
    search, reference = opened.search, flow.reference(opened.search)
    found = allocate_for_search(flow, opened.quantized, search, reference, keep=keep)
    found.allocation.write(out)  # before the check, which takes longer
    if not check:
        return Allocated(allocation=found.allocation, contest=None)
    held = held_out_queries(len(search.queries.ids), found.calibration, seed=found.allocation.seed)
    contest = hold_contest(
        found.allocation,
        found.setting,
        opened.quantized.encoder,
        search,
        held=held,
        reference=reference,
        batch_size=settings.batch_size,
        query_only=spec.scheme.query_only,
    )
    return Allocated(allocation=found.allocation, contest=contest)


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
    """Predict flips from forward and backward passes of the reference; no layer is rounded, labels play no part."""
    offered = (("widths", ",".join(map(str, widths))),)
    scheme = Scheme(weight_bits=widths[0], group_size=group_size, criterion="gap", options=offered)
    opened = open_pair(Spec(model=model, scheme=scheme), dataset, device=device, revision=revision)
    flow = Flow(pair=opened.pair, settings=settings, store=store, progress=progress)
    reference = flow.reference(opened.search)
    found = allocate_for_search(flow, opened.quantized, opened.search, reference, n_contenders=CONTENDERS)
    problem = problem_of(found.setting)
    measured = Gaps(
        gaps=problem.gaps(problem.reference_outputs()),
        contributions=contributions(found.setting),
        n_weights=np.array([layer.n_weights for layer in found.allocation.layers]),
        widths=widths,
    )
    with progress.stage("predicting", len(widths) + len(budgets(widths))) as tell:
        points = predicted_curve(measured, tell)
    return Predicted(
        points=points,
        median_gap=float(np.nanmedian(measured.gaps[:, 0])),
        n_contenders=measured.gaps.shape[1],
        input_ids=found.allocation.input_ids,
        n_layers=len(found.allocation.layers),
    )
