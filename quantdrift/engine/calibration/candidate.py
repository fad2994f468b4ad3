"""What becomes of a model's layers under a scheme: made when asked for, or calibrated before and kept."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from quantdrift.allocation.record import Allocation, check_fits, digest
from quantdrift.cache import kept_file, read_kept
from quantdrift.engine.bits import BitsReport, count_bits
from quantdrift.engine.calibration.in_order import LayerCandidate, quantize_in_order, quantize_whole_model
from quantdrift.engine.calibration.sample import Sample
from quantdrift.engine.layers import LinearLayer
from quantdrift.engine.quantizers.base import LayerQuantizer, QuantizedWeight
from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.quantizers.libraries import OPTIMUM
from quantdrift.engine.quantizers.registry import method_at
from quantdrift.engine.quantizers.rtn import RoundToNearest
from quantdrift.engine.store import key_of
from quantdrift.engine.weights import put_aside
from quantdrift.errors import DataError, RunError, UnsupportedError
from quantdrift.progress import Progress
from quantdrift.records import parse_json
from quantdrift.spec import POSSIBLE_BITS, Scheme

_VERSION = 2
"""Of the calibration; a change in what it gives makes kept layers void."""


# --- layers that are kept between runs ------------------------------------------------------------


class LayerStore:
    """Where the layers of one candidate are kept.

    Args:
        root: cache folder; None keeps nothing.
        key: of the candidate, from `key_of`.
    """

    def __init__(self, root: Path | None, key: str) -> None:
        self._folder = None if root is None else root / "codes" / key[:2] / key

    def read(self, n_layers: int) -> dict[int, LayerCandidate]:
        """The layers that are there, by number."""
        if self._folder is None:
            return {}
        found = {number: read_kept(self._folder / _file_of(number), _read) for number in range(n_layers)}
        return {number: layer for number, layer in found.items() if layer is not None}

    def write(self, number: int, layer: LayerCandidate) -> None:
        """Keep a layer; RunError if there is no space."""
        from safetensors.torch import save_file  # noqa: PLC0415 -- comes with transformers

        facts = {part.name: getattr(layer, part.name) for part in fields(layer) if part.name != "quantized"}
        tensors: dict[str, Tensor] = {}
        if (weight := layer.quantized) is not None:
            parts = {part.name: getattr(weight, part.name) for part in fields(weight)}
            tensors = {name: part.contiguous() for name, part in parts.items() if isinstance(part, Tensor)}
            facts["grid"] = {"bits": weight.bits, "group_size": weight.group_size, "notes": dict(weight.notes)}
        metadata = {"layer": json.dumps(facts)}
        self._write(_file_of(number), lambda partial: save_file(tensors, partial, metadata=metadata))

    def ranges(self) -> list[float] | None:
        """Of every layer the largest absolute input over the whole calibration; None if that did not end."""
        return (
            None if self._folder is None else read_kept(self._folder / _RANGES, lambda found: parse_json(bytes(found)))
        )

    def write_ranges(self, ranges: Sequence[float]) -> None:
        """Say that all is calibrated."""
        self._write(_RANGES, lambda partial: partial.write_text(json.dumps(list(ranges))))

    def _write(self, name: str, fill: Any) -> None:
        if self._folder is None:
            return
        try:
            with kept_file(self._folder / name) as partial:
                fill(partial)
        except Exception as error:  # safetensors has its own error for a full disk
            raise RunError(
                f"quantized layers cannot be kept in {self._folder}: {error}. Free some space, set "
                "QUANTDRIFT_CACHE to a folder on another disk, or use --no-cache"
            ) from error


_RANGES = "ranges.json"


def _file_of(number: int) -> str:
    return f"{number:05d}.safetensors"


def _read(content: memoryview) -> LayerCandidate:
    from safetensors.torch import load  # noqa: PLC0415 -- as above

    length = int.from_bytes(content[:8], "little")
    header = parse_json(bytes(content[8 : 8 + length]))
    facts: dict[str, Any] = parse_json(header["__metadata__"]["layer"])
    grid = facts.pop("grid", None)
    parts: dict[str, Any] = load(bytes(content))
    return LayerCandidate(quantized=None if grid is None else QuantizedWeight(**parts, **grid), **facts)


# --- all layers of a candidate, made on a sample or taken from where they are kept ----------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeLayers:
    """A candidate's calibrated layers.

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
            "layers": [
                {
                    "name": made.name,
                    "n_tokens": made.n_tokens,
                    "input_absmax": made.absmax,
                    "output_error": made.output_error,
                    "seconds": round(made.seconds, 4),
                    **({} if made.quantized is None else made.quantized.notes),
                }
                for made in self.layers
            ],
        }
        if scheme.activation_bits is not None:
            ranges = self.ranges()
            described["activations"] = {
                "bits": scheme.activation_bits,
                "layers_covered": len(ranges),
                "layers": len(self.layers),
                "not_covered": [made.name for made in self.layers if made.name not in ranges],
            }
        return described


def _refuse_unusable(scheme: Scheme, layers: Sequence[LayerCandidate]) -> None:
    """Refuse a candidate that would not be what its name says."""
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


class CandidateMaker:
    """Makes the layers of a candidate; puts none of them in place.

    Args:
        modules: the model.
        layers: those of its layers that are quantized.
        methods: of the scheme, from `methods_of`.
        scheme: how the layers are quantized.
        name: of the model, for messages.

    Attributes:
        allocation: what gave the layers their widths, where a criterion chose them.
        made: the layers that were calibrated; None before.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        layers: Sequence[LinearLayer],
        methods: Mapping[int, LayerQuantizer | None],
        scheme: Scheme,
        *,
        name: str,
    ) -> None:
        self.allocation: Allocation | None = None
        self.made: MadeLayers | None = None
        self._modules, self._layers, self._scheme, self._name = modules, layers, scheme, name
        self._methods = dict(methods)
        self._widths = [*methods] * len(layers) if scheme.criterion is None else None
        self._for_all_data = True

    @property
    def needs_calibration(self) -> bool:
        """Whether the layers depend on inputs, which `prepare` then has to be given."""
        return any(one.needs_moments for one in self._quantizers()) or self._scheme.activation_bits is not None

    @property
    def needs_widths(self) -> bool:
        """Whether the layers' widths have yet to be chosen for the data at hand."""
        return self._widths is None or not self._for_all_data

    def choose(self, widths: Sequence[int], by: Allocation | None, for_all_data: bool) -> None:
        """Give every layer its width; what was prepared before is void.

        Args:
            widths: one per layer, 2 to 8 bits, or 16, which leaves its weight alone. A layer that
                is left out of the choice may have another than the scheme offers.
            by: what gave them.
            for_all_data: whether they stay.

        Raises:
            UnsupportedError: the scheme has one width for all, the quantizer does not have one of
                these, or there are more or fewer than layers.
        """
        one, n_layers = self._scheme.criterion is None, len(self._layers)
        if one or not POSSIBLE_BITS.issuperset(widths) or len(widths) != n_layers:
            several = "layers of one width" if one else f"{n_layers} layers of 2 to 8 bits, or 16"
            raise UnsupportedError(f"{self._scheme} has {several}; got {len(widths)} widths, {sorted(set(widths))}")
        for bits in {*widths} - {*self._methods}:
            self._methods[bits] = method_at(self._scheme, bits)
        self._widths = list(widths)
        self.made, self.allocation, self._for_all_data = None, by, for_all_data

    def prepare(
        self, sample: Sample, *, fingerprint: str, runtime: Mapping[str, str], root: Path | None, progress: Progress
    ) -> None:
        """Quantize the layers in calling order, unless they were on the same inputs; weights are as before afterwards.

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
        of, made = (fingerprint, runtime), self.made
        if made is not None and sample.key and made.sample.key == sample.key and made.of == of:
            return
        self.made = None
        start = time.perf_counter()
        widths = self._chosen()
        quantizers = [self._methods[bits] for bits in widths]
        store = LayerStore(
            root if sample.key is not None else None,
            key_of(
                version=_VERSION,
                weights=fingerprint,
                layers=[layer.name for layer in self._layers],
                scheme=[self._scheme.granularity, self._scheme.quantizer],
                widths=widths,
                methods=[each and each.describe() for each in quantizers],
                sample=sample.key,
                runtime=dict(runtime),
            ),
        )
        known, ranges = store.read(len(widths)), store.ranges()
        if len(known) < len(widths) or ranges is None or len(ranges) != len(widths):
            made_now = self._calibrated(sample, store, known, progress)
            ranges = [made_now[number].absmax for number in range(len(widths))]
            store.write_ranges(ranges)
        else:
            made_now = known
        layers = [replace(made_now[number], absmax=largest) for number, largest in enumerate(ranges)]
        _refuse_unusable(self._scheme, layers)
        seconds = time.perf_counter() - start
        self.made = MadeLayers(layers=layers, sample=sample, of=of, seconds=seconds, kept=len(known))

    def _calibrated(
        self, sample: Sample, store: LayerStore, known: dict[int, LayerCandidate], progress: Progress
    ) -> dict[int, LayerCandidate]:
        quantizers = [self._methods[bits] for bits in self._chosen()]
        first = quantizers[0]
        whole = first if isinstance(first, Gptq) and first.backend == OPTIMUM.backend else None
        if whole is not None:
            known.clear()  # it cannot go on in the middle of a model
        made = dict(known)

        def done(number: int, layer: LayerCandidate) -> None:
            made[number] = layer
            if number not in known:
                store.write(number, layer)
                tell(1)

        fallbacks = [RoundToNearest(bits=min(8, bits), group_size=self._scheme.group_size) for bits in self._chosen()]
        name = f"calibrating {self._scheme.quantizer}, layer by layer"
        modules, layers, batches = self._modules, self._layers, sample.batches
        with progress.stage(name, len(layers)) as tell, put_aside(layers):
            tell(len(known))
            if whole is not None:
                later = quantize_whole_model(
                    modules, layers, batches, quantizer=whole, fallback=fallbacks[0], done=done
                )
            else:
                later = quantize_in_order(
                    modules, layers, batches, quantizers=quantizers, fallbacks=fallbacks, known=known, done=done
                )
        return made | {
            number: replace(made[number], absmax=max(largest, made[number].absmax)) for number, largest in later.items()
        }

    def refuse_unprepared(self) -> None:
        """Refuse to make layers where something is missing that they depend on.

        Raises:
            UnsupportedError: inputs or widths.
        """
        self._chosen()
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
        for layer, bits in zip(self._layers, self._chosen(), strict=True):
            method = self._methods[bits]
            quantized = None if method is None else method.quantize(layer.weight, None)
            yield LayerCandidate(name=layer.name, quantized=quantized)

    def ranges(self) -> dict[str, float]:
        """Layer name to the largest absolute input; empty before calibration."""
        return {} if self.made is None else self.made.ranges()

    def bits(self) -> BitsReport:
        """Bits per weight of the candidate."""
        zero_points = any(one.has_zero_points for one in self._quantizers())
        group_size = self._scheme.group_size
        return count_bits(self._modules, self._layers, self._chosen(), group_size=group_size, zero_points=zero_points)

    def describe(self, left_out: Mapping[str, str]) -> dict[str, Any]:
        """What a run records of how the candidate was made, as JSON values.

        Args:
            left_out: name to reason of linear layers that are not quantized.
        """
        described: dict[str, Any] = {"quantizer": self._scheme.quantizer}
        for quantizer in self._quantizers()[:1]:  # the others differ in width alone
            described |= quantizer.describe()
        if self.allocation is not None:
            described["allocation"] = summary(self.allocation)
        described["layers_left_out"] = dict(left_out)
        return described if self.made is None else described | self.made.describe(self._scheme)

    def _quantizers(self) -> list[LayerQuantizer]:
        return [one for one in self._methods.values() if one is not None]

    def _chosen(self) -> list[int]:
        """The width of every layer."""
        if self._widths is None:
            raise UnsupportedError(
                f"the criterion of {self._scheme} chooses the layers' widths, and that has not "
                "been done; call choose(...) first"
            )
        return self._widths


# --- widths of an allocation for the layers of a model, and what a run says of it -----------------


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
    for name in allocation.width_of.keys() & (left_out or {}).keys():
        raise DataError(
            f"the allocation of {allocation.model} has a width for the layer {name}, which "
            f"{scheme} leaves at full precision ({(left_out or {})[name]}); write +head= as it was "
            "when the allocation was made: +head=none quantizes a classification head"
        )
    names = [layer.name for layer in layers]
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
    return [allocation.width_of[name] for name in names]


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
