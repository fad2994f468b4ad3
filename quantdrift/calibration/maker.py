"""What becomes of a model's layers under a scheme: made when asked for, or calibrated before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from quantdrift.allocation.stored.record import Allocation
from quantdrift.allocation.stored.widths import summary
from quantdrift.bits import BitsReport, count_bits
from quantdrift.calibration.driver import LayerCandidate
from quantdrift.calibration.made import MadeLayers, make_layers
from quantdrift.calibration.sample import Sample
from quantdrift.errors import UnsupportedError
from quantdrift.models.layers import LinearLayer
from quantdrift.progress import Progress
from quantdrift.quantizers.by_layer import MethodsByLayer
from quantdrift.spec import Scheme

__all__ = ["CandidateMaker"]


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
        self,
        sample: Sample,
        *,
        fingerprint: str,
        runtime: Mapping[str, str],
        root: Path | None,
        progress: Progress,
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
