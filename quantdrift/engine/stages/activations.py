"""The inputs of linear layers, rounded as the model runs, by ranges from calibration or a scale for each token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quantdrift.engine.calibration.inputs import hooked_inputs, plain_products, quantized_inputs
from quantdrift.engine.stages import ModelStage
from quantdrift.spec.grammar import Scheme
from quantdrift.stages.activations import STAGE

if TYPE_CHECKING:
    from quantdrift.engine.pair import QuantizedPair


class Activations(ModelStage):
    """The quantized activations of a candidate."""

    def __init__(self, scheme: Scheme, pair: QuantizedPair) -> None:
        super().__init__(scheme, pair)
        assert scheme.activation_bits is not None  # else the scheme has no such stage
        self.width = scheme.activation_bits
        self._called: set[str] = set()

    def ranges(self) -> Mapping[str, float | None]:
        """Layer name to the end of its inputs' grid, None for one of each token."""
        if self.scheme.per_token:
            return dict.fromkeys(layer.name for layer in self.pair.layers)
        return {} if self.pair.made is None else self.pair.made.ranges()

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Inside, the layers that forward passes call are noted: only their inputs can be quantized."""
        layers = self.pair.layers
        with (
            plain_products(self.pair.modules),
            hooked_inputs([], layers, lambda number, *_: self._called.add(layers[number].name)),
        ):
            yield

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, inputs are rounded."""
        with quantized_inputs(self.pair.modules, self.pair.layers, self.ranges(), self.width) as seen:
            yield
        self._called.update(seen)

    def key(self) -> str:
        """The bits and the ranges."""
        return f"{self.width} {sorted(self.ranges().items())}"

    def record(self) -> Mapping[str, Any]:
        """The layers that it covers, and those that it does not."""
        covered = {*self.ranges()}
        if self.scheme.per_token:  # a layer with a fixed range was called in calibration; of the others, what ran tells
            covered &= self._called
        names = [layer.name for layer in self.pair.layers]
        record = {
            "bits": self.width,
            "scale": "token" if self.scheme.per_token else "tensor",
            "layers_covered": len(covered),
            "layers": len(names),
            "not_covered": [name for name in names if name not in covered],
        }
        return {STAGE.part: record}
