"""The step before quantization that gives every layer its width."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
"""Version of what criteria measure; another one makes cached sensitivities void."""


def choose_widths(flow: Flow, reading: Reading, reference: Arms) -> None:
    """Give the layers of a pair widths for these data, where a criterion chooses them and has not."""
    pair = flow.pair
    if isinstance(pair, QuantizedPair) and pair.needs_widths:
        allocation = allocate_for(flow, pair, reading, reference)[0]
        widths = [allocation.width_of[layer.name] for layer in pair.layers]
        pair.choose(widths, by=allocation, for_all_data=False)


def allocate_for(
    flow: Flow, pair: QuantizedPair, reading: Reading, reference: Arms, *, keep: Mapping[str, int] | None = None
) -> tuple[Allocation, Setting, NDArray[np.int64]]:
    """Measure the layers and choose their widths; labels play no part.

    Layers are measured on a quarter of the queries of a search at most, of which those that are held out stay unseen,
    or on train inputs of classes.

    `keep` maps a pattern of layer names to the width that such layers are kept at. Also what the criterion looked at,
    and the positions of the calibration inputs, int64; empty if there are none.

    Raises:
        DataError: there are no inputs to measure the layers on.
    """
    scheme, criterion = pair.scheme, pair.scheme.criterion
    wanted, seed = int(scheme.option("queries", "128")), int(scheme.option("seed", "0"))  # the paper takes 128
    if not isinstance(reading, Search | Classes):
        raise UnsupportedError(
            f"{scheme}: a criterion chooses widths on a search or on classes; expected a stored allocation"
        )
    chosen: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    problem, ids = None, list[str]()
    if needs_inputs(criterion):
        if isinstance(reading, Search):
            names = reading.queries.ids
            chosen = draw_queries(len(names), wanted=wanted, seed=seed, held_out=reading.held_out)
            ids = [names[row] for row in chosen.tolist()]
        elif reading.train is None:
            raise DataError(
                f"{criterion} measures layers on inputs of the train part, never on those that are evaluated, and "
                f"{reading.dataset} has no train part; add one, or use a criterion that needs no inputs "
                "(reconstruction, sqnr)"
            )
        else:
            names = reading.train.ids
            drawn = np.random.default_rng(seed).choice(len(names), size=min(wanted, len(names)), replace=False)
            chosen = np.sort(drawn).astype(np.int64)
            # ids differ within a part only: an evaluated input may have the same
            ids = [f"train part: {names[row]}" for row in chosen.tolist()]
        problem = reading.problem(flow, reference, chosen, contenders_for(len(chosen)))
    root, progress = flow.store.root, flow.progress
    made = allocate(pair, problem, ids=ids, dataset=reading.dataset, root=root, progress=progress, keep=keep)
    return *made, chosen


def allocate(
    pair: QuantizedPair,
    problem: GapProblem | None = None,
    *,
    ids: Sequence[str] = (),
    dataset: str | None = None,
    root: Path | None,
    progress: Progress,
    keep: Mapping[str, int] | None = None,
) -> tuple[Allocation, Setting]:
    """Score the layers and choose their widths, by gaps of inputs of these names where the criterion needs some."""
    scheme, criterion, seed = pair.scheme, str(pair.scheme.criterion), int(pair.scheme.option("seed", "0"))
    solver, fused = scheme.option("solver", "knapsack"), scheme.option("units") == "fused"
    units, kept = left_out([layer.name for layer in pair.layers], scheme, keep)
    digest = None if problem is None else problem.digest
    # quantizer and budget have no part in the key, so that all share what is measured
    key = key_of(
        version=_VERSION,
        weights=pair.fingerprint,
        layers=[layer.name for layer in pair.layers],
        group_size=scheme.group_size,
        inputs=digest,
        runtime=dict(pair.runtime),
    )
    setting = Setting(
        modules=pair.modules,
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
        method=solver,
    )
    layers = tuple(
        AllocatedLayer(
            name=layer.name,
            shape=(layer.weight.shape[0], layer.weight.shape[1]),
            width=width,
            loss=tuple(row) if fixed is None else None,
            unit=unit if fused and fixed is None else None,
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
        method=solver,
        status=solution.status,
        bound=solution.bound,
        layers=layers,
        n_others=bits.n_parameters - sum(layer.n_weights for layer in layers),
        others_bits=round(bits.all_parameters * bits.n_parameters) - sum(x.n_weights * x.width for x in layers),
        quantizer=scheme.quantizer,
        seed=seed,
        dataset=None if problem is None else dataset,
        data_digest=digest,
        input_ids=tuple(ids),
    )
    return allocation, setting


def left_out(
    names: Sequence[str], scheme: Scheme, keep: Mapping[str, int] | None
) -> tuple[NDArray[np.int64], list[int | None]]:
    """The unit of every layer, whose layers share a width, int64 [n_layers]; and the width it is kept at, or None."""
    units = runtime_units(names) if scheme.option("units") == "fused" else np.arange(len(names))
    widths = excluded(names, keep or {}, units=units)
    if len(widths) == len(names):
        raise UnsupportedError(f"all {len(names)} layers are kept at a width: nothing to choose")
    return units, [widths.get(name) for name in names]
