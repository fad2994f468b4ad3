"""The inputs of linear layers, rounded as the model runs, by ranges from calibration or a scale for each token."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from quantdrift.base.registry import imported
from quantdrift.builtin.activations import STAGE
from quantdrift.candidate.calibration.inputs import Rounding, fake_quantize, hooked_inputs, plain_products
from quantdrift.candidate.stages import ModelStage, StagedModel
from quantdrift.kinds.quantizer import QUANTIZERS, input_scale
from quantdrift.scheme import Scheme


class Activations(ModelStage):
    """The quantized activations of a candidate."""

    def __init__(self, scheme: Scheme, pair: StagedModel) -> None:
        super().__init__(scheme, pair)
        assert scheme.activation_bits is not None  # else the scheme has no such stage
        self.width = scheme.activation_bits
        self.format = scheme.quantizer if QUANTIZERS[scheme.quantizer].inputs else None
        rounding = fake_quantize if self.format is None else imported(QUANTIZERS[scheme.quantizer].inputs)
        self._rounding: Rounding = partial(rounding, bits=self.width)
        self._called: set[str] = set()

    def ranges(self) -> Mapping[str, float | None]:
        """Return layer name to the end of its inputs' grid; None if the inputs themselves decide."""
        if input_scale(self.scheme) != "tensor":
            return dict.fromkeys(layer.name for layer in self.pair.layers)
        return {} if self.pair.made is None else self.pair.made.ranges()

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Note the layers that forward passes call: only their inputs can be quantized."""
        layers = self.pair.layers
        with (
            plain_products(self.pair.modules),
            hooked_inputs([], layers, lambda number, *_: self._called.add(layers[number].name)),
        ):
            yield

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Round the inputs of layers."""
        ranges = self.ranges()
        layers = [layer for layer in self.pair.layers if layer.name in ranges]

        def rounded(number: int, x: Tensor, _: Tensor | None) -> Tensor:
            name = layers[number].name
            self._called.add(name)
            return self._rounding(x, absmax=ranges[name])

        with plain_products(self.pair.modules), hooked_inputs([], layers, rounded):
            yield

    def key(self) -> str:
        """Return bits, format, scale and ranges."""
        kind = "" if self.format is None else f"{self.format} {input_scale(self.scheme)} "
        return f"{kind}{self.width} {sorted(self.ranges().items())}"

    def record(self) -> Mapping[str, Any]:
        """Return the layers that are covered, and those that are not."""
        covered = {*self.ranges()}
        # layers with a fixed range were called in calibration; the others have to have run
        if input_scale(self.scheme) != "tensor":
            covered &= self._called
        names = [layer.name for layer in self.pair.layers]
        record = {
            "bits": self.width,
            "scale": input_scale(self.scheme),
            **({} if self.format is None else {"format": self.format}),
            "layers_covered": len(covered),
            "layers": len(names),
            "not_covered": [name for name in names if name not in covered],
        }
        return {STAGE.record_key: record}
