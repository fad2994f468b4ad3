"""All layers of a candidate, calibrated on a sample or read from the cache."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from quantdrift.allocation.record import Allocation, check_fits, digest
from quantdrift.base.cache import read_cache
from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.progress import Progress
from quantdrift.builtin.rtn.work import RoundToNearest
from quantdrift.candidate.calibration.in_order import LayerCandidate, MadeLayers, quantize_in_order
from quantdrift.candidate.calibration.sample import Sample
from quantdrift.candidate.quantized import LayerQuantizer, QuantizedWeight
from quantdrift.candidate.stages import options_under_layers
from quantdrift.kinds.quantizer import QUANTIZERS, input_scale
from quantdrift.kinds.stage import STAGES
from quantdrift.models.layers import LinearLayer
from quantdrift.models.store import keep_tensors, key_of, tensors_in
from quantdrift.models.weights import give_back, large_tensors_apart, put_aside, saved_weights
from quantdrift.scheme import Scheme

_VERSION = 5
"""Version of the calibration; another version makes cached layers void."""


# --- layers that are kept between runs ------------------------------------------------------------


class LayerStore:
    """Cached layers of one candidate.

    Args:
        root: cache folder; None keeps nothing.
        key: key of the candidate, from `key_of`.
    """

    def __init__(self, root: Path | None, key: str) -> None:
        self._folder = None if root is None else root / "codes" / key[:2] / key

    def read(self, n_layers: int) -> dict[int, LayerCandidate]:
        """Read the layers in the cache, by number."""
        if self._folder is None:
            return {}
        layers = {number: read_cache(self._folder / _file_of(number), _read) for number in range(n_layers)}
        return {number: layer for number, layer in layers.items() if layer is not None}

    def write(self, number: int, layer: LayerCandidate) -> None:
        """Write a layer; RunError if the disk is full."""
        if self._folder is None:
            return
        facts = {part.name: getattr(layer, part.name) for part in fields(layer) if part.name != "quantized"}
        tensors: dict[str, Tensor] = {}
        if (weight := layer.quantized) is not None:
            parts = {part.name: getattr(weight, part.name) for part in fields(weight)}
            tensors = {name: part.contiguous() for name, part in parts.items() if isinstance(part, Tensor)}
            facts["grid"] = {"bits": weight.bits, "group_size": weight.group_size, "notes": dict(weight.notes)}
        keep_tensors(self._folder / _file_of(number), tensors, facts)


def _file_of(number: int) -> str:
    return f"{number:05d}.safetensors"


def _read(content: memoryview) -> LayerCandidate:
    parts, facts = tensors_in(content)
    grid = facts.pop("grid", None)
    return _aside(LayerCandidate(quantized=None if grid is None else QuantizedWeight(**parts, **grid), **facts))


def _aside(layer: LayerCandidate) -> LayerCandidate:
    """Move the codes of a layer into a temporary file, as there are as many bytes of codes as weights."""
    codes = layer.quantized and replace(layer.quantized, codes=put_aside(layer.quantized.codes))
    return replace(layer, quantized=codes)


# --- all layers of a candidate --------------------------------------------------------------------


def _refuse_unusable(scheme: Scheme, layers: Sequence[LayerCandidate]) -> None:
    """Refuse a candidate whose calibration saw no input, or infinite ones."""
    if not any(layer.n_tokens for layer in layers):
        raise UnsupportedError(
            f"{scheme} is calibrated, and no calibration input was seen at any layer: the model "
            "runs in another thread or process, or in one compiled piece; use rtn or hqq"
        )
    infinite = [layer.name for layer in layers if not math.isfinite(layer.absmax)]
    if infinite and scheme.activation_bits is not None and input_scale(scheme) == "tensor":
        raise DataError(
            f"the input of {infinite[0]} is not finite on the calibration data, so it has no range "
            f"to quantize (A{scheme.activation_bits}); run the model in float32 or bfloat16"
        )


def make_layers(
    scheme: Scheme,
    modules: Sequence[nn.Module],
    layers: Sequence[LinearLayer],
    methods: Sequence[LayerQuantizer | None],
    widths: Sequence[int],
    *,
    sample: Sample,
    of: tuple[str, Mapping[str, str]],
    root: Path | None,
    progress: Progress,
) -> MadeLayers:
    """Quantize all layers in calling order; afterwards the model's weights are restored."""
    start = time.perf_counter()
    fingerprint, runtime = of
    under = [stage for key, _ in options_under_layers(scheme) for stage in STAGES.values() if key in stage.options]
    parts = QUANTIZERS.versions(QUANTIZERS[scheme.quantizer]) | STAGES.versions(*under)
    key = key_of(
        version=_VERSION,
        **({"parts": parts} if parts else {}),
        weights=fingerprint,
        layers=[layer.name for layer in layers],
        scheme=[scheme.granularity, scheme.quantizer, *options_under_layers(scheme)],
        widths=list(widths),
        methods=[method and method.describe() for method in methods],
        sample=sample.key,
        runtime=dict(runtime),
    )
    store = LayerStore(None if sample.key is None else root, key)
    read = store.read(len(layers))
    made, held = dict(read), -1
    if len(read) < len(layers):

        def done(number: int, layer: LayerCandidate) -> None:
            nonlocal held
            if number in read:
                return
            made[number] = layer = _aside(layer)
            give_back()
            if len(made) < len(layers):
                store.write(number, layer)
            else:  # the last one is written when all ranges are final, as a layer may be called again
                held = number
            tell(1)

        fallbacks = [RoundToNearest(bits=min(8, bits), group_size=scheme.group_size) for bits in widths]
        name = f"calibrating {scheme.quantizer}, layer by layer"
        with progress.stage(name, len(layers)) as tell, saved_weights(layers), large_tensors_apart():
            tell(len(read))
            later = quantize_in_order(
                modules, layers, sample.batches, quantizers=methods, fallbacks=fallbacks, kept=read, done=done
            )
        larger = {number: absmax for number, absmax in later.items() if absmax > made[number].absmax}
        made |= {number: replace(made[number], absmax=absmax) for number, absmax in larger.items()}
        for number in sorted({*larger, held}, key=lambda number: number == held):
            store.write(number, made[number])
    finished = [made[number] for number in range(len(layers))]
    _refuse_unusable(scheme, finished)
    seconds = time.perf_counter() - start
    return MadeLayers(layers=finished, sample=sample, of=of, seconds=seconds, kept=len(read))


# --- allocations -----------------------------------------------------------------------------------


def widths_for(allocation: Allocation, layers: Sequence[LinearLayer], scheme: Scheme, fingerprint: str) -> list[int]:
    """Return the width that an allocation gives to every layer."""
    names = [layer.name for layer in layers]
    check_fits(allocation, names, fingerprint)
    made = allocation.criterion, allocation.widths, allocation.budget, allocation.group_size
    asked = scheme.criterion, scheme.widths, scheme.weight_bits, scheme.group_size
    if made != asked:
        raise DataError(
            f"the allocation of {allocation.model} was made with criterion, widths, bits per weight and group size "
            f"{made}, and {scheme} says {asked}; write MODEL@FILE.json, which takes all of it from the file"
        )
    return [allocation.width_of[name] for name in names]


def summary(allocation: Allocation) -> dict[str, Any]:
    """Describe an allocation for the record of a run, as JSON values."""
    same = ("criterion", "budget", "bits_per_weight", "loss", "bound", "edited", "dataset", "data_digest")
    return {
        **{name: getattr(allocation, name) for name in same},
        "widths_offered": list(allocation.widths),
        "solver": allocation.method,
        "calibration_inputs": len(allocation.input_ids),
        "digest": digest(allocation),
        "widths": allocation.width_of,
        "losses": {layer.name: layer.loss[0] for layer in allocation.layers if layer.loss},
    }
