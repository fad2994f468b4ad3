"""What `quantdrift allocate` does, from a spec and data to what it shows.

An allocation is held against its rivals on queries that no layer was measured on. Flips are counted by rounding to
nearest, among the first documents of each query (`measuring.trial`): what is compared is where the bits are, and that
takes a fraction of a run per rival.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.record import Allocation
from quantdrift.allocation.solver import solve
from quantdrift.asking.opening import Place, open_pair
from quantdrift.base.progress import Progress
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.measuring.flow import Arms, Flow
from quantdrift.measuring.problem import Setting
from quantdrift.measuring.readings import Search
from quantdrift.measuring.trial import Trial
from quantdrift.models.inputs import Settings
from quantdrift.models.model import check_vectors
from quantdrift.models.store import EmbeddingStore
from quantdrift.scheme import MAX_BITS
from quantdrift.sensitivity.allocate import allocate_for, left_out
from quantdrift.sensitivity.criteria import losses_of
from quantdrift.sensitivity.gaps import rounded
from quantdrift.spec.grammar import Spec
from quantdrift.statistics.estimates import Estimate, rate_estimate
from quantdrift.statistics.paired import paired_rate_difference

QUERIES = 128
"""Held-out queries at most: an interval of some eight points on a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """An allocation of the bits, and what it changes.

    Attributes:
        name: as shown.
        bits_per_weight: over all linear layers.
        flips: rate of held-out queries with another first document.
        difference: its flip rate less that of the allocation, paired over the queries; None for the allocation
            itself.
        changed: bool [n_queries], the flips themselves.
    """

    name: str
    bits_per_weight: float
    flips: Estimate
    difference: Estimate | None
    changed: NDArray[np.bool_] = field(repr=False, compare=False)


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
    **where: Unpack[Place],
) -> tuple[Allocation, list[Rival]]:
    """Choose the widths of a model's layers by the criterion of the spec, and write them to `out`.

    Labels play no part. `keep` maps a pattern of layer names to the width that such layers are kept at; with `check`
    the allocation is compared with its rivals on held-out queries.
    """
    where |= settings.loading
    opened = open_pair(spec, dataset, **where)
    check_vectors(opened.pair.encoder, f"{spec}: widths are chosen")
    left_out([layer.name for layer in opened.quantized.layers], spec.scheme, keep)  # refuses early
    flow = Flow(pair=opened.pair, settings=settings, store=store, progress=progress)
    search, reference = opened.search, flow.reference(opened.search)
    allocation, setting, chosen = allocate_for(flow, opened.quantized, search, reference, keep=keep)
    allocation.write(out)  # before the check, which takes longer
    if not check:
        return allocation, []
    held = held_out_queries(len(search.queries.ids), chosen, seed=allocation.seed)
    return allocation, hold_contest(allocation, setting, flow, search, reference=reference, held=held)


def hold_contest(
    allocation: Allocation, setting: Setting, flow: Flow, search: Search, *, reference: Arms, held: NDArray[np.int64]
) -> list[Rival]:
    """Round the model to the widths of each of `rivals_of`, and count flips on the held-out queries.

    The allocation itself comes first. The model is in the reference arm, and left so; of a pair whose query side alone
    is quantized the documents stay there.
    """
    trial = Trial(flow, search, reference, held)
    n_weights = np.array([layer.n_weights for layer in allocation.layers])
    rivals: list[Rival] = []
    for name, widths in rivals_of(allocation, setting).items():
        with rounded(setting.layers, widths, setting.group_size):
            flips = trial.flips(f"held-out queries: {name}", query_only=flow.pair.query_only)
        rivals.append(
            Rival(
                name=name,
                bits_per_weight=float(n_weights @ np.array(widths)) / int(n_weights.sum()),
                flips=rate_estimate(flips.astype(np.float64)),
                difference=paired_rate_difference(rivals[0].changed, flips) if rivals else None,
                changed=flips,
            )
        )
    return rivals


def rivals_of(allocation: Allocation, setting: Setting) -> dict[str, list[int]]:
    """Name to the width of every layer: the allocation itself first, then other allocations of the same bits.

    The uniform widths that the budget lies between are the last.

    Layers that it leaves out keep their width in all of them; so do ties between layers.
    """
    layers = allocation.layers
    kept = [layer.width if layer.loss is None else None for layer in layers]
    rivals = {f"{allocation.criterion}, {allocation.method}": [layer.width for layer in layers]}
    if allocation.criterion != (name := "reconstruction"):
        solution = solve(
            losses_of(name, setting),
            np.array([layer.n_weights for layer in layers]),
            widths=allocation.widths,
            budget=allocation.budget,
            units=np.array([n if layer.unit is None else layer.unit for n, layer in enumerate(layers)]),
            kept=kept,
        )
        rivals[name] = solution.widths.tolist()
    for uniform in sorted({math.floor(allocation.budget), min(MAX_BITS, math.ceil(allocation.budget))}):
        rivals[f"W{uniform} throughout"] = [uniform if width is None else width for width in kept]
    return rivals
