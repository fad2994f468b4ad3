"""The calibrated layers of a candidate, and their description in a record."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantdrift.candidate.calibration.in_order import LayerCandidate
from quantdrift.candidate.calibration.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MadeLayers:
    """A candidate's calibrated layers.

    Attributes:
        layers: in the order of the model's layers.
        sample: the calibration inputs.
        of: digest of the reference's weights, and its runtime.
        seconds: time of the calibration, including forward passes.
        kept: number of layers that came from the cache.
    """

    layers: list[LayerCandidate]
    sample: Sample
    of: tuple[str, Mapping[str, str]]
    seconds: float
    kept: int

    def ranges(self) -> dict[str, float]:
        """Map the layers whose inputs can be quantized to their largest absolute input."""
        return {made.name: made.absmax for made in self.layers if made.n_tokens}

    def describe(self) -> dict[str, Any]:
        """Describe the layers for the record of a run, as JSON values."""
        return {
            "calibration": dict(self.sample.record),
            "seconds": round(self.seconds, 3),
            "seconds_in_method": round(sum(made.seconds for made in self.layers), 3),
            "layers_kept_from_before": self.kept,
            "fallbacks": {made.name: made.fallback for made in self.layers if made.fallback},
            "fallback_weights": self._fallback_weights(),
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

    def _fallback_weights(self) -> dict[str, float]:
        """Map the reasons why layers were rounded to nearest to the share of these layers in all weights."""
        sizes = [0 if made.quantized is None else made.quantized.codes.numel() for made in self.layers]
        shares: dict[str, float] = defaultdict(float)
        for made, size in zip(self.layers, sizes, strict=True):
            if made.fallback:
                shares[made.fallback] += size / sum(sizes)
        return dict(shares)
