"""The step before quantization that gives every layer its width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from quantdrift.allocation.criteria.base import Kept, Setting
from quantdrift.allocation.criteria.registry import criterion
from quantdrift.allocation.kept import HeldArrays, KeptArrays
from quantdrift.allocation.problem import GapProblem
from quantdrift.allocation.settings import settings_of
from quantdrift.allocation.solving.solver import Solution, solve
from quantdrift.allocation.solving.units import excluded, runtime_units
from quantdrift.allocation.stored.record import AllocatedLayer, Allocation
from quantdrift.bits import count_bits
from quantdrift.errors import UnsupportedError
from quantdrift.measurement.embeddings import key_of
from quantdrift.models.layers import LinearLayer
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.quantizers import methods_of
from quantdrift.spec import Scheme

__all__ = ["CalibrationInputs", "MeasuredModel", "allocate", "left_out", "setting_of"]

_VERSION = 1
"""Of what criteria measure; a change in it makes kept sensitivities void."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredModel:
    """The model whose layers get widths.

    Attributes:
        name: of the model.
        modules: its outermost modules, in the reference arm.
        layers: its linear layers.
        fingerprint: digest of its weights.
        runtime: what decides its outputs beside weights and inputs.
    """

    name: str
    modules: Sequence[nn.Module]
    layers: Sequence[LinearLayer]
    fingerprint: str
    runtime: Mapping[str, str]

    @classmethod
    def of(cls, pair: QuantizedPair) -> MeasuredModel:
        """That of a pair, which is in the reference arm."""
        return cls(
            name=pair.name,
            modules=pair.modules,
            layers=pair.layers,
            fingerprint=pair.fingerprint,
            runtime=pair.runtime,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CalibrationInputs:
    """What layers are measured on.

    Attributes:
        problem: the gaps.
        ids: names of the inputs; rates of the allocation are over others.
        dataset: name of the data, where it has one.
        key: JSON values that decide the gaps beside the weights; None if they cannot be told, then
            nothing is kept between runs.
    """

    problem: GapProblem
    ids: Sequence[str]
    dataset: str | None
    key: Mapping[str, Any] | None


def allocate(
    model: MeasuredModel,
    scheme: Scheme,
    inputs: CalibrationInputs | None,
    setting: Setting,
    *,
    keep: Mapping[str, int] | None = None,
) -> Allocation:
    """Score the layers and choose their widths.

    Args:
        model: in the reference arm.
        scheme: its criterion, widths, bits and settings.
        inputs: what layers are measured on; None where the criterion needs none.
        setting: the same, as criteria take it; from `setting_of`.
        keep: pattern of layer names to the width that such layers are kept at, 16 for not
            quantized; the budget is over the others.

    Raises:
        QuantDriftError: the criterion cannot measure this model, or there are no widths to choose
            from.
    """
    settings = settings_of(scheme)
    rule = criterion(scheme.criterion or "")
    if rule.needs_inputs and inputs is None:
        raise UnsupportedError(
            f"the criterion {rule.name} measures layers on queries and documents, and there are "
            "none; use one that needs none (reconstruction, sqnr), or a stored allocation"
        )
    names = [layer.name for layer in model.layers]
    units, kept = left_out(names, scheme, keep)
    free = np.array([name not in kept for name in names])
    if not free.any():
        raise UnsupportedError(f"all {len(names)} layers are kept at a width: nothing to choose")
    losses = rule.losses(setting)
    n_weights = np.array([layer.weight.numel() for layer in model.layers])
    solution = solve(
        losses[free],
        n_weights[free],
        widths=scheme.widths,
        budget=scheme.weight_bits,
        units=units[free],
        method=settings.solver,
    )
    found = iter(solution.widths.tolist())
    layers = tuple(
        AllocatedLayer(
            name=layer.name,
            shape=(layer.weight.shape[0], layer.weight.shape[1]),
            width=kept[layer.name] if layer.name in kept else next(found),
            loss=None if layer.name in kept else tuple(row),
            unit=int(unit) if settings.fused and layer.name not in kept else None,
        )
        for layer, row, unit in zip(model.layers, losses.tolist(), units, strict=True)
    )
    return _record(model, scheme, inputs, layers, solution)


def left_out(
    names: Sequence[str], scheme: Scheme, keep: Mapping[str, int] | None
) -> tuple[NDArray[np.int64], dict[str, int]]:
    """Which layers are tied to one width, and which are left out.

    Args:
        names: of all layers.
        scheme: says whether layers that runtimes fuse are tied.
        keep: as `allocate` takes it.

    Returns:
        int64 [n_layers], layers of the same number being tied; and name to width of those left out.

    Raises:
        QuantDriftError: a pattern or a width is none.
    """
    units = runtime_units(names) if settings_of(scheme).fused else np.arange(len(names))
    return units, excluded(names, keep or {}, units=units)


def _record(
    model: MeasuredModel,
    scheme: Scheme,
    inputs: CalibrationInputs | None,
    layers: tuple[AllocatedLayer, ...],
    solution: Solution,
) -> Allocation:
    settings = settings_of(scheme)
    widths = [layer.width for layer in layers]
    methods = [method.quantizer for method in methods_of(scheme).values()]
    bits = count_bits(
        model.modules,
        model.layers,
        widths,
        group_size=scheme.group_size,
        zero_points=any(method is not None and method.has_zero_points for method in methods),
    )
    in_layers = sum(layer.n_weights for layer in layers)
    codes = sum(layer.n_weights * layer.width for layer in layers)
    digest = None if inputs is None or inputs.key is None else key_of(**inputs.key)
    return Allocation(
        model=model.name,
        fingerprint=model.fingerprint,
        group_size=scheme.group_size,
        criterion=str(scheme.criterion),
        widths=scheme.widths,
        budget=scheme.weight_bits,
        method=solution.method,
        status=solution.status,
        bound=solution.bound,
        layers=layers,
        n_others=bits.n_parameters - in_layers,
        others_bits=round(bits.all_parameters * bits.n_parameters) - codes,
        quantizer=scheme.quantizer,
        seed=settings.seed,
        dataset=None if inputs is None else inputs.dataset,
        data_digest=digest,
        input_ids=() if inputs is None else tuple(inputs.ids),
    )


def setting_of(
    model: MeasuredModel,
    scheme: Scheme,
    inputs: CalibrationInputs | None,
    *,
    root: Path | None,
    progress: Progress,
) -> Setting:
    """Model and calibration inputs as criteria take them.

    Args:
        model: in the reference arm.
        scheme: its widths, group size and seed.
        inputs: what layers are measured on.
        root: cache folder; None holds measurements in memory.
        progress: where progress is shown.
    """
    return Setting(
        modules=model.modules,
        layers=model.layers,
        widths=scheme.widths,
        group_size=scheme.group_size,
        seed=settings_of(scheme).seed,
        progress=progress,
        problem=None if inputs is None else inputs.problem,
        kept=_kept(model, scheme, inputs, root),
    )


def _kept(
    model: MeasuredModel, scheme: Scheme, inputs: CalibrationInputs | None, root: Path | None
) -> Kept:
    """Where measurements are kept: the quantizer has no part in the key, so that all share them."""
    if root is None or inputs is None or inputs.key is None:
        return HeldArrays()
    return KeptArrays(
        root,
        key_of(
            version=_VERSION,
            weights=model.fingerprint,
            layers=[layer.name for layer in model.layers],
            group_size=scheme.group_size,
            inputs=dict(inputs.key),
            runtime=dict(model.runtime),
        ),
    )
