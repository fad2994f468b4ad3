"""Choose a width for every layer, before anything is quantized."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from quantdrift.allocation.record import AllocatedLayer, Allocation
from quantdrift.allocation.solver import solve
from quantdrift.allocation.units import excluded, runtime_units
from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.measuring.flow import Arms, Flow, Reading
from quantdrift.measuring.problem import CachedArrays, GapProblem, Setting, contenders_for, draw_queries
from quantdrift.measuring.readings import Classes, Search
from quantdrift.models.store import key_of
from quantdrift.scheme import Scheme
from quantdrift.sensitivity.criteria import losses_of
from quantdrift.spec.grammar import needs_inputs

_VERSION = 2
"""Version of the criteria; another version makes cached sensitivities void."""


def choose_widths(flow: Flow, reading: Reading, reference: Arms) -> None:
    """Choose the widths of a pair's layers for these data, where a criterion chooses them and has not done so yet."""
    pair = flow.pair
    if isinstance(pair, QuantizedPair) and pair.needs_widths:
        allocation = allocate_for(flow, pair, reading, reference)[0]
        widths = [allocation.width_of[layer.name] for layer in pair.layers]
        pair.choose(widths, by=allocation, for_all_data=False)


def allocate_for(
    flow: Flow, pair: QuantizedPair, reading: Reading, reference: Arms, *, keep: Mapping[str, int] | None = None
) -> tuple[Allocation, Setting, NDArray[np.int64]]:
    """Measure the layers and choose their widths; labels play no part.

    Layers are measured on at most a quarter of the queries of a search, none of them held out, or on train inputs of
    classes. `keep` maps a pattern of layer names to the width that such layers are kept at.

    Returns:
        The allocation, the setting in which layers were measured, and the positions of the calibration inputs, int64.

    Raises:
        DataError: there are no inputs to measure the layers on.
    """
    scheme, criterion = pair.scheme, str(pair.scheme.criterion)
    if not isinstance(reading, Search | Classes):
        raise UnsupportedError(
            f"{scheme}: a criterion chooses widths on a search or on classes; expected a stored allocation"
        )
    chosen: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    ids, problem, dataset = list[str](), None, None
    if needs_inputs(criterion):
        chosen, ids = _calibration_inputs(reading, criterion, wanted=wanted_of(scheme), seed=seed_of(scheme))
        problem, dataset = reading.problem(flow, reference, chosen, contenders_for(len(chosen))), reading.dataset
    root, progress = flow.store.root, flow.progress
    made = allocation_by(pair, problem, ids=ids, dataset=dataset, root=root, progress=progress, keep=keep)
    return *made, chosen


def wanted_of(scheme: Scheme) -> int:
    """Return the number of inputs to measure layers on; the paper takes 128."""
    return int(scheme.option("queries", "128"))


def seed_of(scheme: Scheme) -> int:
    """Return the seed of what is drawn to measure layers."""
    return int(scheme.option("seed", "0"))


def allocation_by(
    pair: QuantizedPair,
    problem: GapProblem | None,
    *,
    ids: Sequence[str],
    dataset: str | None,
    root: Path | None,
    progress: Progress,
    keep: Mapping[str, int] | None = None,
    modules: Sequence[nn.Module] | None = None,
) -> tuple[Allocation, Setting]:
    """Measure the layers on a problem, where the criterion needs one, and choose their widths.

    `modules` make the problem's outputs, where the pair's own do not.
    """
    scheme, criterion, seed = pair.scheme, str(pair.scheme.criterion), seed_of(pair.scheme)
    units, kept = left_out([layer.name for layer in pair.layers], scheme, keep)
    digest = None if problem is None else problem.digest
    # without quantizer and budget, so that all of them share the measurements
    key = key_of(
        version=_VERSION,
        weights=pair.fingerprint,
        layers=[layer.name for layer in pair.layers],
        group_size=scheme.group_size,
        inputs=digest,
        runtime=dict(pair.runtime),
    )
    setting = Setting(
        modules=pair.modules if modules is None else modules,
        layers=pair.layers,
        widths=scheme.widths,
        group_size=scheme.group_size,
        seed=seed,
        progress=progress,
        problem=problem,
        kept=CachedArrays(root, key),
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
        method=scheme.option("solver", "knapsack"),
    )
    layers = tuple(
        AllocatedLayer(
            name=layer.name,
            shape=(layer.weight.shape[0], layer.weight.shape[1]),
            width=width,
            loss=tuple(row) if fixed is None else None,
            unit=unit if scheme.option("units") == "fused" and fixed is None else None,
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
        method=scheme.option("solver", "knapsack"),
        status=solution.status,
        bound=solution.bound,
        layers=layers,
        n_others=bits.n_parameters - sum(layer.n_weights for layer in layers),
        others_bits=round(bits.all_parameters * bits.n_parameters) - sum(x.n_weights * x.width for x in layers),
        quantizer=scheme.quantizer,
        seed=seed,
        dataset=dataset,
        data_digest=digest,
        input_ids=tuple(ids),
    )
    return allocation, setting


def _calibration_inputs(
    reading: Search | Classes, criterion: str, *, wanted: int, seed: int
) -> tuple[NDArray[np.int64], list[str]]:
    """Draw the inputs to measure layers on: positions of queries or of train inputs, ascending, and their names."""
    if isinstance(reading, Search):
        names = reading.queries.ids
        chosen = draw_queries(len(names), wanted=wanted, seed=seed, held_out=reading.held_out)
        return chosen, [names[row] for row in chosen.tolist()]
    if reading.train is None:
        raise DataError(
            f"{criterion} measures layers on inputs of the train part, never on those that are evaluated, and "
            f"{reading.dataset} has no train part; add one, or use a criterion that needs no inputs "
            "(reconstruction, sqnr)"
        )
    names = reading.train.ids
    chosen = np.sort(np.random.default_rng(seed).choice(len(names), size=min(wanted, len(names)), replace=False))
    # ids differ within a part only: an evaluated input may have the same
    return chosen.astype(np.int64), [f"train part: {names[row]}" for row in chosen.tolist()]


def left_out(
    names: Sequence[str], scheme: Scheme, keep: Mapping[str, int] | None
) -> tuple[NDArray[np.int64], list[int | None]]:
    """Return the unit of every layer, int64 [n_layers], and the width that the layer is kept at, or None.

    The layers of a unit share a width.
    """
    units = runtime_units(names) if scheme.option("units") == "fused" else np.arange(len(names))
    widths = excluded(names, keep or {}, units=units)
    if len(widths) == len(names):
        raise UnsupportedError(f"all {len(names)} layers are kept at a width: nothing to choose")
    return units, [widths.get(name) for name in names]
