"""The step before quantization that gives every layer its width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.solver import settings_of, solve
from quantdrift.allocation.units import excluded, runtime_units
from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.engine.flow import Arms, Flow, Reading
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.readings import Classes, Search
from quantdrift.engine.sensitivity.criteria import losses_of
from quantdrift.engine.sensitivity.problem import (
    CachedArrays,
    GapProblem,
    Setting,
    classification_problem,
    contenders_for,
    draw_queries,
    retrieval_problem,
)
from quantdrift.engine.store import key_of
from quantdrift.spec.allocation import AllocatedLayer, Allocation
from quantdrift.spec.grammar import Scheme, needs_inputs

_VERSION = 2
"""Of what criteria measure; a change in it makes kept sensitivities void."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """What layers are measured on.

    Attributes:
        problem: the gaps.
        ids: names of the inputs; rates of the allocation are over others.
        dataset: name of the data, where it has one.
    """

    problem: GapProblem
    ids: Sequence[str]
    dataset: str | None = None


def choose_widths(flow: Flow, reading: Reading, reference: Arms) -> None:
    """Give the layers of a pair widths for these data, where a criterion chooses them and has not."""
    pair = flow.pair
    if not isinstance(pair, QuantizedPair) or not pair.needs_widths:
        return
    if isinstance(reading, Search):
        allocation = allocate_for_search(flow, pair, reading, reference)[0]
    elif isinstance(reading, Classes):
        allocation = allocate_for_classes(flow, pair, reading)
    else:
        raise UnsupportedError(
            f"{pair.scheme}: a criterion chooses widths on a search or on classes; expected a stored allocation"
        )
    widths = [allocation.width_of[layer.name] for layer in pair.layers]
    pair.choose(widths, by=allocation, for_all_data=False)


def allocate_for_search(
    flow: Flow,
    pair: QuantizedPair,
    search: Search,
    reference: Arms,
    *,
    keep: Mapping[str, int] | None = None,
    n_contenders: int | None = None,
) -> tuple[Allocation, Setting, NDArray[np.int64]]:
    """Measure the layers on a quarter of the queries at most and choose their widths; labels play no part.

    Queries that are held out stay unseen.

    `keep` maps a pattern of layer names to the width that such layers are kept at; gaps are taken to `n_contenders`
    documents behind the first, by the number of queries if not given. Also what the criterion looked at, and the
    positions of the calibration queries, int64; empty if there are none.
    """
    chosen: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    inputs = None
    if needs_inputs(pair.scheme.criterion):
        settings, size = settings_of(pair.scheme), flow.settings.batch_size
        chosen = draw_queries(
            len(search.queries.ids), wanted=settings.n_queries, seed=settings.seed, held_out=search.held_out
        )
        problem = retrieval_problem(
            pair.encoder,
            search.searched,
            reference,
            chosen=chosen,
            batch_size=size,
            n_contenders=n_contenders or contenders_for(len(chosen)),
            query_only=pair.query_only,
        )
        ids = [search.queries.ids[row] for row in chosen.tolist()]
        inputs = Calibration(problem=problem, ids=ids, dataset=search.dataset)
    return *allocate(pair, inputs, root=flow.store.root, progress=flow.progress, keep=keep), chosen


def allocate_for_classes(flow: Flow, pair: QuantizedPair, classes: Classes) -> Allocation:
    """Measure the layers on the gaps of training inputs and choose their widths; DataError without a train part."""
    inputs = None
    if needs_inputs(pair.scheme.criterion):
        if classes.train is None:
            raise DataError(
                f"{pair.scheme.criterion} measures layers on inputs of the train part, never on those that are "
                f"evaluated, and {classes.dataset} has no train part; add one, or use a criterion that needs no inputs "
                "(reconstruction, sqnr)"
            )
        settings, size = settings_of(pair.scheme), flow.settings.batch_size
        n = min(settings.n_queries, len(classes.train.ids))
        rng = np.random.default_rng(settings.seed)
        chosen = np.sort(rng.choice(len(classes.train.ids), size=n, replace=False)).astype(np.int64)
        part, n_contenders, head = classes.train.part(chosen), contenders_for(n), classes.read_by
        outputs = flow.run(part, np.arange(n), size)
        inputs = Calibration(
            problem=classification_problem(
                pair.encoder, part, outputs, logits=head.graph, batch_size=size, n_contenders=n_contenders
            ),
            # ids differ within a part only: an evaluated input may have the same
            ids=[f"train part: {name}" for name in part.ids],
            dataset=classes.dataset,
        )
    return allocate(pair, inputs, root=flow.store.root, progress=flow.progress)[0]


def allocate(
    pair: QuantizedPair,
    inputs: Calibration | None,
    *,
    root: Path | None,
    progress: Progress,
    keep: Mapping[str, int] | None = None,
) -> tuple[Allocation, Setting]:
    """Score the layers and choose their widths."""
    scheme, settings, criterion = pair.scheme, settings_of(pair.scheme), str(pair.scheme.criterion)
    units, kept = left_out([layer.name for layer in pair.layers], scheme, keep)
    setting = Setting(
        modules=pair.modules,
        layers=pair.layers,
        widths=scheme.widths,
        group_size=scheme.group_size,
        seed=settings.seed,
        progress=progress,
        problem=None if inputs is None else inputs.problem,
        kept=_kept(pair, inputs, root),
    )
    losses = losses_of(criterion, setting)
    for layer, row in zip(pair.layers, losses, strict=True):
        if not np.isfinite(row).all():
            raise DataError(
                f"{criterion} gives {layer.name} losses that are not finite: its weights, its inputs or the model's "
                "outputs are not; check the checkpoint, or load it in float32 or bfloat16"
            )
    solution = solve(
        losses,
        np.array([layer.weight.numel() for layer in pair.layers]),
        widths=scheme.widths,
        budget=scheme.weight_bits,
        units=units,
        kept=kept,
        method=settings.solver,
    )
    layers = tuple(
        AllocatedLayer(
            name=layer.name,
            shape=(layer.weight.shape[0], layer.weight.shape[1]),
            width=width,
            loss=tuple(row) if fixed is None else None,
            unit=unit if settings.fused and fixed is None else None,
        )
        for layer, width, row, fixed, unit in zip(
            pair.layers, solution.widths.tolist(), losses.tolist(), kept, units.tolist(), strict=True
        )
    )
    bits = pair.bits(solution.widths.tolist())
    allocation = Allocation(
        model=pair.name,
        fingerprint=pair.fingerprint,
        group_size=scheme.group_size,
        criterion=criterion,
        widths=scheme.widths,
        budget=scheme.weight_bits,
        method=settings.solver,
        status=solution.status,
        bound=solution.bound,
        layers=layers,
        n_others=bits.n_parameters - sum(layer.n_weights for layer in layers),
        others_bits=round(bits.all_parameters * bits.n_parameters) - sum(x.n_weights * x.width for x in layers),
        quantizer=scheme.quantizer,
        seed=settings.seed,
        dataset=None if inputs is None else inputs.dataset,
        data_digest=None if inputs is None else inputs.problem.digest,
        input_ids=() if inputs is None else tuple(inputs.ids),
    )
    return allocation, setting


def left_out(
    names: Sequence[str], scheme: Scheme, keep: Mapping[str, int] | None
) -> tuple[NDArray[np.int64], list[int | None]]:
    """Which layers are tied to one width, int64 [n_layers], and of each the width that it is kept at, or None."""
    units = runtime_units(names) if settings_of(scheme).fused else np.arange(len(names))
    widths = excluded(names, keep or {}, units=units)
    if len(widths) == len(names):
        raise UnsupportedError(f"all {len(names)} layers are kept at a width: nothing to choose")
    return units, [widths.get(name) for name in names]


def _kept(pair: QuantizedPair, inputs: Calibration | None, root: Path | None) -> CachedArrays:
    """Where measurements are kept: quantizer and budget have no part in the key, so that all share them."""
    key = key_of(
        version=_VERSION,
        weights=pair.fingerprint,
        layers=[layer.name for layer in pair.layers],
        group_size=pair.scheme.group_size,
        inputs=inputs and inputs.problem.digest,
        runtime=dict(pair.runtime),
    )
    return CachedArrays(root, key)
