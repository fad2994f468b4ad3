"""All layers of a candidate, made on a sample or taken from where they are kept."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from quantdrift.calibration.driver import LayerCandidate, quantize_in_order
from quantdrift.calibration.sample import Sample
from quantdrift.calibration.store import CodeStore
from quantdrift.calibration.whole_model import WholeModelQuantizer, quantize_whole_model
from quantdrift.errors import DataError, UnsupportedError
from quantdrift.measurement.embeddings import key_of
from quantdrift.models.aside import put_aside
from quantdrift.models.layers import LinearLayer
from quantdrift.progress import Progress
from quantdrift.quantizers import Method
from quantdrift.quantizers.rtn import RoundToNearest
from quantdrift.spec import Scheme

__all__ = ["MadeLayers", "make_layers"]

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
        fallbacks = [
            RoundToNearest(bits=min(8, method.bits), group_size=scheme.group_size)
            for method in methods
        ]
        with progress.stage(name, len(layers)) as tell, put_aside(layers):
            tell(len(known))
            if whole is not None:
                later = quantize_whole_model(
                    modules,
                    layers,
                    sample.batches,
                    quantizer=whole,
                    fallback=fallbacks[0],
                    done=done,
                )
            else:
                later = quantize_in_order(
                    modules,
                    layers,
                    sample.batches,
                    quantizers=quantizers,
                    fallbacks=fallbacks,
                    known=known,
                    done=done,
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
