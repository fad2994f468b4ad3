"""What becomes of a model's layers under a scheme: made when asked for, or calibrated before."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from quantdrift.allocation.record import Allocation, check_fits, digest
from quantdrift.cache import kept_file, read_kept
from quantdrift.engine.bits import BitsReport, count_bits
from quantdrift.engine.calibration.in_order import LayerCandidate, quantize_in_order
from quantdrift.engine.calibration.sample import Sample
from quantdrift.engine.calibration.whole_model import WholeModelQuantizer, quantize_whole_model
from quantdrift.engine.layers import LinearLayer
from quantdrift.engine.quantizers.base import QuantizedWeight
from quantdrift.engine.quantizers.registry import Method, MethodsByLayer
from quantdrift.engine.quantizers.rtn import RoundToNearest
from quantdrift.engine.store import key_of
from quantdrift.engine.weights import put_aside
from quantdrift.errors import DataError, RunError, UnsupportedError
from quantdrift.progress import Progress
from quantdrift.records import parse_json
from quantdrift.spec import Scheme

# --- store ----------------------------------------------------------------------------------------

_TENSORS = ("codes", "scale", "zero_point", "permutation", "input_scaling")


class CodeStore:
    """Where the layers of one candidate are kept.

    Args:
        root: cache folder; None keeps nothing.
        key: of the candidate, from `key_of`.
    """

    def __init__(self, root: Path | None, key: str) -> None:
        self._folder = None if root is None else root / "codes" / key[:2] / key

    def read(self, n_layers: int) -> dict[int, LayerCandidate]:
        """The layers that are there, by number."""
        found = {}
        for number in range(n_layers) if self._folder is not None else ():
            layer = read_kept(self._path(number), _read)
            if layer is not None:
                found[number] = layer
        return found

    def write(self, number: int, layer: LayerCandidate) -> None:
        """Keep a layer.

        Raises:
            RunError: the folder cannot be written, or there is no space.
        """
        if self._folder is None:
            return
        from safetensors.torch import save_file  # noqa: PLC0415 -- comes with transformers

        tensors, facts = _taken_apart(layer)
        path = self._path(number)
        try:
            with kept_file(path) as partial:
                save_file(tensors, partial, metadata={"layer": json.dumps(facts)})
        except Exception as error:  # safetensors has its own error for a full disk
            raise RunError(
                f"quantized layers cannot be kept in {self._folder}: {error}. Free some space, set "
                "QUANTDRIFT_CACHE to a folder on another disk, or use --no-cache"
            ) from error

    def _path(self, number: int) -> Path:
        assert self._folder is not None  # asked before
        return self._folder / f"{number:05d}.safetensors"


def _read(content: memoryview) -> LayerCandidate:
    from safetensors.torch import load  # noqa: PLC0415 -- as above

    length = int.from_bytes(content[:8], "little")
    header = parse_json(bytes(content[8 : 8 + length]))
    facts = parse_json(header["__metadata__"]["layer"])
    return _put_together(load(bytes(content)), facts)


def _taken_apart(layer: LayerCandidate) -> tuple[dict[str, Tensor], dict[str, object]]:
    facts: dict[str, object] = {
        name: getattr(layer, name)
        for name in ("name", "n_tokens", "absmax", "called", "output_error", "seconds", "fallback")
    }
    tensors: dict[str, Tensor] = {}
    if (weight := layer.quantized) is not None:
        facts["grid"] = {"bits": weight.bits, "group_size": weight.group_size, "notes": dict(weight.notes)}
        for name in _TENSORS:
            value = getattr(weight, name)
            if value is not None:
                tensors[name] = value.contiguous()
    return tensors, facts


def _put_together(tensors: dict[str, Tensor], facts: dict[str, Any]) -> LayerCandidate:
    grid: dict[str, Any] | None = facts.pop("grid", None)
    parts: dict[str, Any] = dict(tensors)
    quantized = None if grid is None else QuantizedWeight(**parts, **grid)
    return LayerCandidate(quantized=quantized, **facts)


# --- All layers of a candidate, made on a sample or taken from where they are kept ----------------

_VERSION = 1
"""Of the calibration; a change in what it gives makes kept layers void."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeLayers:
    """A candidate's layers.

    Attributes:
        layers: in the order of the model's layers.
        sample: what they were calibrated on.
        of: digest of the reference's weights, and its runtime.
        seconds: what it took, forward passes included.
        kept: how many of them were there already.
    """

    layers: list[LayerCandidate]
    sample: Sample
    of: tuple[str, Mapping[str, str]]
    seconds: float
    kept: int

    def ranges(self) -> dict[str, float]:
        """Layer name to the largest absolute input, for layers whose inputs can be quantized."""
        return {made.name: made.absmax for made in self.layers if made.called and made.n_tokens}

    def describe(self, scheme: Scheme) -> dict[str, Any]:
        """What a run records, as JSON values."""
        described: dict[str, Any] = {
            "calibration": dict(self.sample.record),
            "seconds": round(self.seconds, 3),
            "seconds_in_method": round(sum(made.seconds for made in self.layers), 3),
            "layers_kept_from_before": self.kept,
            "fallbacks": {made.name: made.fallback for made in self.layers if made.fallback},
            "layers": [_describe(made) for made in self.layers],
        }
        if scheme.activation_bits is not None:
            ranges = self.ranges()
            without = [made.name for made in self.layers if made.name not in ranges]
            described["activations"] = {
                "bits": scheme.activation_bits,
                "layers_covered": len(ranges),
                "layers": len(self.layers),
                "not_covered": without,
            }
        return described


def _describe(made: LayerCandidate) -> dict[str, Any]:
    notes = {} if made.quantized is None else dict(made.quantized.notes)
    return {
        "name": made.name,
        "n_tokens": made.n_tokens,
        "input_absmax": made.absmax,
        "output_error": made.output_error,
        "seconds": round(made.seconds, 4),
        **notes,
    }


def make_layers(
    modules: Sequence[nn.Module],
    layers: Sequence[LinearLayer],
    scheme: Scheme,
    methods: Sequence[Method],
    *,
    sample: Sample,
    fingerprint: str,
    runtime: Mapping[str, str],
    root: Path | None,
    progress: Progress,
) -> MadeLayers:
    """Quantize all layers in calling order; the model's weights are as before afterwards.

    Args:
        modules: the model.
        layers: its linear layers.
        scheme: granularity, method and activation bits.
        methods: of every layer what quantizes its weight.
        sample: calibration inputs.
        fingerprint: digest of the model's weights.
        runtime: what decides embeddings beside weights and inputs.
        root: where layers are kept; None keeps nothing.
        progress: where progress is shown.
    """
    start = time.perf_counter()
    quantizers = [method.quantizer for method in methods]
    store = CodeStore(
        root if sample.key is not None else None,
        key_of(
            version=_VERSION,
            weights=fingerprint,
            layers=[layer.name for layer in layers],
            scheme=[scheme.granularity, scheme.quantizer],
            widths=[method.bits for method in methods],
            methods=[each and each.describe() for each in quantizers],
            sample=sample.key,
            runtime=dict(runtime),
        ),
    )
    known = store.read(len(layers))
    whole = quantizers[0] if isinstance(quantizers[0], WholeModelQuantizer) else None
    if whole is not None and len(known) < len(layers):
        known = {}  # it cannot go on in the middle of a model
    made = dict(known)
    if len(known) < len(layers):

        def done(number: int, layer: LayerCandidate) -> None:
            made[number] = layer
            if number not in known:
                store.write(number, layer)
                tell(1)

        name = f"calibrating {scheme.quantizer}, layer by layer"
        fallbacks = [RoundToNearest(bits=min(8, method.bits), group_size=scheme.group_size) for method in methods]
        with progress.stage(name, len(layers)) as tell, put_aside(layers):
            tell(len(known))
            if whole is not None:
                later = quantize_whole_model(
                    modules, layers, sample.batches, quantizer=whole, fallback=fallbacks[0], done=done
                )
            else:
                later = quantize_in_order(
                    modules, layers, sample.batches, quantizers=quantizers, fallbacks=fallbacks, known=known, done=done
                )
            for number, largest in later.items():
                if largest > made[number].absmax:
                    made[number] = replace(made[number], absmax=largest)
                    store.write(number, made[number])
        _refuse_unusable(scheme, list(made.values()))
    return MadeLayers(
        layers=[made[number] for number in range(len(layers))],
        sample=sample,
        of=(fingerprint, runtime),
        seconds=time.perf_counter() - start,
        kept=len(known),
    )


def _refuse_unusable(scheme: Scheme, layers: Sequence[LayerCandidate]) -> None:
    """Refuse a candidate that would not be what its name says.

    Raises:
        UnsupportedError: no calibration token was seen by any layer.
        DataError: an input is not finite, and its range is needed.
    """
    if not any(layer.n_tokens for layer in layers):
        raise UnsupportedError(
            f"{scheme} is calibrated, and no calibration input was seen at any layer: the model "
            "runs in another thread or process, or in one compiled piece; use rtn or hqq"
        )
    endless = [layer.name for layer in layers if not math.isfinite(layer.absmax)]
    if endless and scheme.activation_bits is not None:
        raise DataError(
            f"the input of {endless[0]} is not finite on the calibration data, so it has no range "
            f"to quantize (A{scheme.activation_bits}); run the model in float32 or bfloat16"
        )


# --- Widths of an allocation for the layers of a model, and what a run says of it -----------------


def stored_allocation(scheme: Scheme) -> Allocation | None:
    """The allocation of the file that `+allocation=` names; None where it names none.

    Raises:
        DataError: the file is no allocation.
    """
    given = scheme.option("allocation")
    return None if given is None else Allocation.read(Path(given).expanduser())


def widths_for(
    allocation: Allocation,
    layers: Sequence[LinearLayer],
    scheme: Scheme,
    fingerprint: str,
    *,
    left_out: Mapping[str, str] | None = None,
) -> list[int]:
    """The width of every layer.

    Args:
        allocation: as stored or as just made.
        layers: of the model.
        scheme: that it is used for; the quantizer may be another than it was made for.
        fingerprint: of the model's weights.
        left_out: name to reason of layers that this scheme does not quantize.

    Raises:
        DataError: it was made for another model, or for a scheme with other widths.
    """
    names = [layer.name for layer in layers]
    for name in allocation.width_of:
        if left_out and name in left_out:
            raise DataError(
                f"the allocation of {allocation.model} has a width for the layer {name}, which "
                f"{scheme} leaves at full precision ({left_out[name]}); write +head= as it was "
                "when the allocation was made: +head=none quantizes a classification head"
            )
    check_fits(allocation, names, [layer.weight.numel() for layer in layers], fingerprint)
    for what, there, here in (
        ("criterion", allocation.criterion, scheme.criterion),
        ("widths", allocation.widths, scheme.widths),
        ("bits per weight", allocation.budget, scheme.weight_bits),
        ("group size", allocation.group_size, scheme.group_size),
    ):
        if there != here:
            raise DataError(
                f"the allocation of {allocation.model} was made with {what} {there}, and {scheme} "
                f"says {here}; write MODEL@FILE.json, which takes all of it from the file"
            )
    widths = allocation.width_of
    return [widths[name] for name in names]


def summary(allocation: Allocation) -> dict[str, Any]:
    """What a run records of an allocation, as JSON values."""
    return {
        "criterion": allocation.criterion,
        "widths_offered": list(allocation.widths),
        "budget": allocation.budget,
        "bits_per_weight": allocation.bits_per_weight,
        "loss": allocation.loss,
        "bound": allocation.bound,
        "solver": allocation.method,
        "edited": allocation.edited,
        "dataset": allocation.dataset,
        "data_digest": allocation.data_digest,
        "calibration_inputs": len(allocation.input_ids),
        "digest": digest(allocation),
        "widths": allocation.width_of,
    }


# --- maker ----------------------------------------------------------------------------------------


class CandidateMaker:
    """Makes the layers of a candidate; puts none of them in place.

    Attributes:
        methods: what quantizes which layer.
        allocation: what gave the layers their widths, where a criterion chose them.
        made: the layers that were calibrated; None before.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        layers: Sequence[LinearLayer],
        methods: MethodsByLayer,
        scheme: Scheme,
        *,
        name: str,
    ) -> None:
        """Nothing is made yet.

        Args:
            modules: the model.
            layers: those of its layers that are quantized.
            methods: of the scheme.
            scheme: how the layers are quantized.
            name: of the model, for messages.
        """
        self.methods = methods
        self.allocation: Allocation | None = None
        self.made: MadeLayers | None = None
        self._modules, self._layers = modules, layers
        self._scheme, self._name = scheme, name
        self._for_all_data = True

    @property
    def needs_calibration(self) -> bool:
        """Whether the layers depend on inputs, which `prepare` then has to be given."""
        return self.methods.needs_moments or self._scheme.activation_bits is not None

    @property
    def needs_widths(self) -> bool:
        """Whether the layers' widths have yet to be chosen for the data at hand."""
        return not (self.methods.chosen and self._for_all_data)

    def choose(self, widths: Sequence[int], by: Allocation | None, for_all_data: bool) -> None:
        """Give every layer its width; what was prepared before is void.

        Args:
            widths: one per layer.
            by: what gave them.
            for_all_data: whether they stay.

        Raises:
            UnsupportedError: the scheme has one width for all, or does not offer these.
        """
        self.methods.choose(widths, len(self._layers))
        self.made, self.allocation, self._for_all_data = None, by, for_all_data

    def prepare(
        self, sample: Sample, *, fingerprint: str, runtime: Mapping[str, str], root: Path | None, progress: Progress
    ) -> None:
        """Quantize the layers on calibration inputs, unless they were on the same ones.

        Args:
            sample: calibration inputs.
            fingerprint: digest of the model's weights.
            runtime: what decides its answers beside weights and inputs.
            root: folder to keep finished layers in; None keeps nothing.
            progress: where progress is shown.

        Raises:
            QuantDriftError: the method cannot quantize a layer, widths are to be chosen and were
                not, or the disk is full.
        """
        of = (fingerprint, runtime)
        made, self.made = self.made, None
        if made is not None and sample.key and made.sample.key == sample.key and made.of == of:
            self.made = made
            return
        self.made = make_layers(
            self._modules,
            self._layers,
            self._scheme,
            self.methods.for_layers(len(self._layers)),
            sample=sample,
            fingerprint=fingerprint,
            runtime=runtime,
            root=root,
            progress=progress,
        )

    def refuse_unprepared(self) -> None:
        """Refuse to make layers where something is missing that they depend on.

        Raises:
            UnsupportedError: inputs or widths.
        """
        self.methods.for_layers(len(self._layers))  # refuses where widths are missing
        if self.needs_calibration and self.made is None:
            raise UnsupportedError(
                f"{self._scheme} of {self._name} is calibrated on documents, and none were given "
                "yet; call prepare(...) first, or use a data-free scheme (rtn or hqq without A8)"
            )

    def layers(self) -> Iterator[LayerCandidate]:
        """Every layer as it was calibrated, or made now where inputs do not matter."""
        if self.made is not None:
            yield from self.made.layers
            return
        methods = self.methods.for_layers(len(self._layers))
        for layer, method in zip(self._layers, methods, strict=True):
            made = None
            if method.quantizer is not None:
                made = method.quantizer.quantize(layer.weight, None)
            yield LayerCandidate(name=layer.name, quantized=made)

    def ranges(self) -> dict[str, float]:
        """Layer name to the largest absolute input; empty before calibration."""
        return {} if self.made is None else self.made.ranges()

    def bits(self) -> BitsReport:
        """Bits per weight of the candidate."""
        return count_bits(
            self._modules,
            self._layers,
            [method.bits for method in self.methods.for_layers(len(self._layers))],
            group_size=self._scheme.group_size,
            zero_points=self.methods.has_zero_points,
        )

    def describe(self, left_out: Mapping[str, str]) -> dict[str, Any]:
        """What a run records of how the candidate was made, as JSON values.

        Args:
            left_out: name to reason of linear layers that are not quantized.
        """
        described = self.methods.describe()
        if self.allocation is not None:
            described["allocation"] = summary(self.allocation)
        described["layers_left_out"] = dict(left_out)
        if self.made is not None:
            described |= self.made.describe(self._scheme)
        return described
