"""The step before quantization that gives every layer its width."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from quantdrift.allocation.record import AllocatedLayer, Allocation
from quantdrift.allocation.solver import Solution, excluded, runtime_units, settings_of, solve
from quantdrift.cache import array_in, kept_file, read_kept
from quantdrift.engine.bits import count_bits
from quantdrift.engine.inputs import Vectors
from quantdrift.engine.layers import LinearLayer
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.engine.sensitivity.criteria import Kept, Setting, criterion
from quantdrift.engine.sensitivity.problem import GapProblem, contenders_for, draw_queries, retrieval_problem
from quantdrift.engine.store import digest_of, key_of
from quantdrift.errors import RunError, UnsupportedError
from quantdrift.progress import Progress
from quantdrift.spec import Scheme

if TYPE_CHECKING:  # it calls this
    from quantdrift.engine.search import Job
from collections.abc import Callable

from torch import Tensor

from quantdrift.engine.sensitivity.problem import classification_problem
from quantdrift.errors import DataError

if TYPE_CHECKING:  # whoever measures calls this
    from quantdrift.engine.classes import LabelledJob

# --- What was measured of a model's layers: shared by every quantizer, resumed after a kill -------

_LONGEST = 150
"""Characters of a name that a file is called by; file systems take some 255 in all."""


class KeptArrays:
    """Arrays of one model and one set of calibration inputs.

    Args:
        root: cache folder.
        key: of model and inputs, from `key_of`.
    """

    def __init__(self, root: Path, key: str) -> None:
        self._folder = root / "sensitivities" / key[:2] / key

    def get(self, name: str) -> NDArray[np.float64] | None:
        """The array of that name; None where there is none, or a damaged one."""
        return read_kept(self._path(name), lambda content: array_in(content).copy())

    def put(self, name: str, array: NDArray[np.float64]) -> None:
        """Keep an array; whole, or not at all, if the process is killed.

        Raises:
            RunError: the folder cannot be written, or there is no space.
        """
        path = self._path(name)
        try:
            with kept_file(path) as partial, partial.open("wb") as file:
                np.save(file, np.asarray(array, dtype=np.float64), allow_pickle=False)
        except OSError as error:
            raise RunError(
                f"sensitivities cannot be kept in {self._folder}: {error}. Free some space, set "
                "QUANTDRIFT_CACHE to a folder on another disk, or use --no-cache"
            ) from error

    def _path(self, name: str) -> Path:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_LONGEST]
        # names that differ in what files cannot be called, or in case alone, are two names
        digest = hashlib.blake2b(name.encode(), digest_size=6).hexdigest()
        return self._folder / f"{plain}-{digest}.npy"


class HeldArrays:
    """Arrays in memory, for as long as the process needs them."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[np.float64]] = {}

    def get(self, name: str) -> NDArray[np.float64] | None:
        """The array of that name; None where there is none."""
        return self._arrays.get(name)

    def put(self, name: str, array: NDArray[np.float64]) -> None:
        """Hold an array."""
        self._arrays[name] = array


# --- The step before quantization that gives every layer its width --------------------------------

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
            name=pair.name, modules=pair.modules, layers=pair.layers, fingerprint=pair.fingerprint, runtime=pair.runtime
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
    model: MeasuredModel, scheme: Scheme, inputs: CalibrationInputs | None, *, root: Path | None, progress: Progress
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


def _kept(model: MeasuredModel, scheme: Scheme, inputs: CalibrationInputs | None, root: Path | None) -> Kept:
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


# --- for search -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchAllocation:
    """An allocation and what it was measured with.

    Attributes:
        allocation: widths of all layers.
        setting: model and calibration inputs, with what was measured of them.
        calibration: int64, positions of the calibration queries; empty if there are none.
    """

    allocation: Allocation
    setting: Setting
    calibration: NDArray[np.int64]


def allocate_for_search(
    job: Job,
    reference: tuple[Vectors, Vectors],
    *,
    keep: Mapping[str, int] | None = None,
    n_contenders: int | None = None,
) -> SearchAllocation:
    """Measure the layers and choose their widths; labels play no part.

    Args:
        job: its pair is in the reference arm, and its scheme has a criterion.
        reference: embeddings of queries and documents by the reference.
        keep: pattern of layer names to the width that such layers are kept at.
        n_contenders: documents behind the first that gaps are taken to; by the number of
            calibration queries if not given.

    Raises:
        QuantDriftError: the criterion cannot measure this model, or there are too few queries.
    """
    pair = job.pair
    assert isinstance(pair, QuantizedPair)  # of other pairs no candidate is made
    model = MeasuredModel.of(pair)
    inputs = None
    chosen: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
    if criterion(pair.scheme.criterion or "").needs_inputs:
        settings = settings_of(pair.scheme)
        chosen = draw_queries(len(job.queries.ids), wanted=settings.n_queries, seed=settings.seed)
        if n_contenders is None:
            n_contenders = contenders_for(len(chosen))
        inputs = CalibrationInputs(
            problem=retrieval_problem(
                job.queries,
                job.documents,
                reference,
                similarity=job.similarity,
                chosen=chosen,
                batch_size=job.settings.batch_size,
                n_contenders=n_contenders,
                query_only=pair.query_only,
                excluded=job.excluded,
            ),
            ids=[job.queries.ids[row] for row in chosen.tolist()],
            dataset=job.dataset,
            key=None
            if job.queries.key is None or job.documents.key is None
            else {
                "queries": job.queries.key,
                "documents": job.documents.key,
                "chosen": digest_of(chosen),
                "excluded": None if job.excluded is None else digest_of(job.excluded),
                "similarity": str(job.similarity),
                "batch_size": job.settings.batch_size,
                "contenders": n_contenders,
                "query_only": pair.query_only,
            },
        )
    setting = setting_of(model, pair.scheme, inputs, root=job.store.root, progress=job.progress)
    allocation = allocate(model, pair.scheme, inputs, setting, keep=keep)
    return SearchAllocation(allocation=allocation, setting=setting, calibration=chosen)


# --- The widths of a classifier's layers, measured on training inputs; labels play no part --------


def allocate_for_classes(job: LabelledJob, logits: Callable[[Tensor], Tensor], reading: str) -> Allocation:
    """Measure the layers on the gaps of training inputs and choose their widths.

    Args:
        job: its pair is in the reference arm, and its scheme has a criterion.
        logits: from what the model puts out [..., dim] to logits [..., n_classes]; differentiable.
        reading: what decides these beside the model, for what is kept.

    Raises:
        DataError: there is no train part.
        QuantDriftError: the criterion cannot measure this model.
    """
    pair = job.pair
    assert isinstance(pair, QuantizedPair)  # of other pairs no candidate is made
    model = MeasuredModel.of(pair)
    inputs = None
    if criterion(pair.scheme.criterion or "").needs_inputs:
        if job.train is None:
            raise DataError(
                f"{pair.scheme.criterion} measures layers on inputs of the train part, never on "
                f"those that are evaluated, and {job.dataset} has no train part; add one, or use a "
                "criterion that needs no inputs (reconstruction, sqnr)"
            )
        settings, size = settings_of(pair.scheme), job.settings.batch_size
        n = min(settings.n_queries, len(job.train.ids))
        rng = np.random.default_rng(settings.seed)
        chosen = np.sort(rng.choice(len(job.train.ids), size=n, replace=False)).astype(np.int64)
        part = job.train.part(chosen)
        n_contenders = contenders_for(n)
        inputs = CalibrationInputs(
            problem=classification_problem(
                part, part.encode(np.arange(n), size), logits=logits, batch_size=size, n_contenders=n_contenders
            ),
            # ids differ within a part only: an evaluated input may have the same
            ids=[f"train part: {name}" for name in part.ids],
            dataset=job.dataset,
            key=None
            if part.key is None
            else {
                "inputs": part.key,
                "chosen": digest_of(chosen),
                "reading": reading,
                "batch_size": size,
                "contenders": n_contenders,
            },
        )
    setting = setting_of(model, pair.scheme, inputs, root=job.store.root, progress=job.progress)
    return allocate(model, pair.scheme, inputs, setting)
