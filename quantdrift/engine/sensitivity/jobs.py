"""What `quantdrift allocate` and `quantdrift predict` do, from a spec and data to what they show.

An allocation is held against its rivals on queries that no layer was measured on. Flips are counted by rounding to
nearest, among the first documents of each query: what is compared is where the bits are, and that takes a fraction of
a run per rival.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.curve import Gaps, Point, budgets, predicted_curve
from quantdrift.allocation.record import Allocation
from quantdrift.allocation.solver import solve
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine.inputs import Inputs, Settings, Vectors
from quantdrift.engine.measure import Arms, Flow
from quantdrift.engine.opening import open_pair
from quantdrift.engine.readings import Search
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings
from quantdrift.engine.sensitivity.allocate import allocate_for_search, left_out
from quantdrift.engine.sensitivity.criteria import losses_of
from quantdrift.engine.sensitivity.gaps import contributions, rounded
from quantdrift.engine.sensitivity.problem import CONTENDERS, Setting
from quantdrift.engine.store import EmbeddingStore
from quantdrift.progress import Progress
from quantdrift.spec import MAX_BITS, Spec
from quantdrift.statistics.estimates import Estimate, rate_estimate
from quantdrift.statistics.paired import paired_rate_difference

QUERIES = 128
"""Held-out queries at most: an interval of some eight points on a rate, at a minute per rival."""
DEPTH = 20
"""First documents of every query that are embedded again."""
_CHUNK = 256
"""Inputs between two steps of the progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One way to spend the bits, and what it changes.

    Attributes:
        name: as shown.
        bits_per_weight: over all linear layers.
        flips: rate of held-out queries with another first document.
        difference: its flip rate less that of the allocation, paired over the queries; None for the allocation
            itself.
    """

    name: str
    bits_per_weight: float
    flips: Estimate
    difference: Estimate | None


def held_out_queries(n_queries: int, calibration: NDArray[np.int64], *, seed: int) -> NDArray[np.int64]:
    """Positions of up to 128 queries that are not among the calibration queries, ascending."""
    others = np.setdiff1d(np.arange(n_queries), calibration)
    rng = np.random.default_rng([seed, 1])  # another stream than the calibration queries' own
    return np.sort(rng.choice(others, size=min(QUERIES, len(others)), replace=False)).astype(np.int64)


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
    held = held_out_queries(len(search.queries.ids), chosen, seed=allocation.seed)
    return allocation, hold_contest(allocation, setting, flow, search, reference=reference, held=held)


def hold_contest(
    allocation: Allocation, setting: Setting, flow: Flow, search: Search, *, reference: Arms, held: NDArray[np.int64]
) -> list[Rival]:
    """Round the model in every way that spends as many bits, and count flips on the held-out queries.

    The allocation itself comes first. The model is in the reference arm, and left so; of a pair whose query side alone
    is quantized the documents stay there.
    """
    queries, documents, similarity = search.queries.part(held), search.sides[-1], search.similarity
    tops = _tops(np.asarray(reference[0])[held], reference[-1], similarity, min(DEPTH, len(documents.ids)))
    pool = np.unique(tops[tops >= 0])
    near, fixed, query_only = documents.part(pool), np.asarray(reference[-1])[pool], flow.pair.query_only
    widths = rivals_of(allocation, setting)
    n_weights = np.array([layer.n_weights for layer in allocation.layers])
    rivals: list[Rival] = []
    ours: NDArray[np.bool_] | None = None
    for name, chosen in widths.items():
        n_rows = len(held) + (0 if query_only else len(pool))
        stage = setting.progress.stage(f"held-out queries: {name}", n_rows)
        with stage as tell, rounded(setting.layers, chosen, setting.group_size):

            def embedded(side: Inputs, tell: Callable[[int], None] = tell) -> Vectors:
                return EmbeddingStore(None).get(
                    "",
                    order=side.order(),
                    encode=lambda rows: flow.run(side, rows, flow.settings.batch_size),
                    progress=tell,
                    chunk=_CHUNK,
                )

            first = _tops(embedded(queries), fixed if query_only else embedded(near), similarity, 1)[:, 0]
        flipped = pool[first] != tops[:, 0]
        rival = Rival(
            name=name,
            bits_per_weight=float(n_weights @ np.array(chosen)) / int(n_weights.sum()),
            flips=rate_estimate(flipped.astype(np.float64)),
            difference=None if ours is None else paired_rate_difference(ours, flipped),
        )
        ours = flipped if ours is None else ours
        rivals.append(rival)
    return rivals


def rivals_of(allocation: Allocation, setting: Setting) -> dict[str, list[int]]:
    """Name to the width of every layer: the allocation itself first, then other ways to spend the same bits.

    Layers that it leaves out keep their width in all of them; so do ties between layers.
    """
    layers = allocation.layers
    kept = [layer.width if layer.loss is None else None for layer in layers]
    rivals = {f"{allocation.criterion}, {allocation.method}": [layer.width for layer in layers]}
    for name in ("reconstruction", "random"):
        if name == allocation.criterion:
            continue
        solution = solve(
            losses_of(name, replace(setting, seed=setting.seed + 1)),
            np.array([layer.n_weights for layer in layers]),
            widths=allocation.widths,
            budget=allocation.budget,
            units=np.array([n if layer.unit is None else layer.unit for n, layer in enumerate(layers)]),
            kept=kept,
        )
        rivals[name] = solution.widths.tolist()
    uniform = min(MAX_BITS, math.floor(allocation.budget))
    rivals[f"W{uniform} throughout"] = [uniform if width is None else width for width in kept]
    return rivals


def _tops(queries: Vectors, documents: Vectors, similarity: Similarity, k: int) -> NDArray[np.int64]:
    """Positions of the first documents of every query, int64 [n_queries, k]."""
    state = score_embeddings(queries, queries, documents, documents, similarity=similarity, k=k)
    found: NDArray[np.int64] = state.reference_top()[0]
    return found


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
