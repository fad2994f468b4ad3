"""Reference and candidate as one resident model.

The candidate is made in place and undone: the full-precision weights are put aside, quantized ones
take their place, and on leaving they come back bit for bit. So a pair fits where one model fits.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from quantdrift.bits import BitsReport, count_bits
from quantdrift.errors import RunError, UnsupportedError
from quantdrift.measurement.disk import reserve
from quantdrift.models.layers import LinearLayer, WeightUse, find_linears, weights_fingerprint
from quantdrift.quantizers import layer_quantizer
from quantdrift.spec import Scheme

__all__ = ["Arm", "QuantizedPair"]

Arm = Literal["reference", "candidate"]


class QuantizedPair:
    """A model that can be its own quantized candidate.

    >>> pair = QuantizedPair([nn.Sequential(nn.Linear(8, 4))], parse_scheme("W4"))  # doctest: +SKIP
    >>> with pair.candidate():  # doctest: +SKIP
    ...     ...  # the model's linear layers hold 4-bit weights here

    Attributes:
        scheme: how the candidate is made.
        layers: the linear layers that are quantized.
    """

    def __init__(
        self, modules: Sequence[nn.Module], scheme: Scheme, *, name: str = "model"
    ) -> None:
        """Find the layers and check that the scheme can be made.

        Args:
            modules: the outermost torch modules of the model.
            scheme: how the candidate is made.
            name: of the model, for messages.

        Raises:
            UnsupportedError: the scheme is not available, or there is nothing to quantize.
        """
        self._quantizer = layer_quantizer(scheme)
        self._modules = list(modules)
        self.scheme = scheme
        self.layers: list[LinearLayer] = find_linears(self._modules)
        if not self.layers:
            raise UnsupportedError(
                f"{name} has no nn.Linear layer, so there is nothing to quantize; a pair needs a "
                "torch model with linear layers (not bm25, a static embedding or an API)"
            )
        for layer in self.layers:
            if not layer.weight.dtype.is_floating_point or layer.weight.is_meta:
                state = "not loaded" if layer.weight.is_meta else str(layer.weight.dtype)
                raise UnsupportedError(
                    f"the layer {layer.name} of {name} is {state}; a pair starts from a model "
                    "with floating-point weights, not one that is already quantized or offloaded"
                )
        self._reached: set[str] = set()
        self._active = False

    @property
    def fingerprint(self) -> str:
        """Digest of the full-precision weights.

        Raises:
            RuntimeError: asked for while the candidate is in place.
        """
        if self._active:
            raise RuntimeError("the fingerprint is of the reference; leave candidate() first")
        return weights_fingerprint(self._modules)

    def candidate_fingerprint(self) -> str:
        """Digest of the candidate's weights; only inside `candidate()`."""
        if not self._active:
            raise RuntimeError("there is no candidate outside candidate()")
        return weights_fingerprint(self._modules)

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.layers[0].weight.device

    @property
    def runtime(self) -> dict[str, str]:
        """What decides embeddings beside weights and inputs: libraries, device, dtype."""
        names = ("torch", "transformers", "sentence-transformers")
        installed = {name: _version(name) for name in names}
        return {**installed, "device": self.device.type, "dtype": str(self.layers[0].weight.dtype)}

    @property
    def never_reached(self) -> list[str]:
        """Names of layers that no observed forward pass used; all of them before the first."""
        return [layer.name for layer in self.layers if layer.name not in self._reached]

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Note which layers the forward passes inside use."""
        with WeightUse(self.layers) as use:
            yield
        self._reached |= use.used

    @contextmanager
    def candidate(self) -> Iterator[None]:
        """Inside, the model is the candidate; on leaving, the reference again, bit for bit.

        Raises:
            RuntimeError: the candidate is in place already.
        """
        if self._active:
            raise RuntimeError("the candidate is in place already")
        self._active = True
        try:
            with _put_aside(self.layers) as originals:
                try:
                    for layer in self.layers:
                        assert self._quantizer is not None
                        quantized = self._quantizer.quantize(layer.weight, None)
                        layer.weight.data.copy_(quantized.dequantize(layer.weight.dtype))
                    yield
                finally:
                    for layer, original in zip(self.layers, originals, strict=True):
                        layer.weight.data.copy_(original)
        finally:
            self._active = False

    def bits(self) -> BitsReport:
        """Bits per weight of the candidate, over its linear layers and over all parameters."""
        return count_bits(self._modules, self.layers, self.scheme)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@contextmanager
def _put_aside(layers: Sequence[LinearLayer]) -> Iterator[list[Tensor]]:
    """Copies of the layers' weights, for as long as the block runs.

    Weights of an accelerator go to main memory. Weights that are in main memory already go to a
    mapped temporary file: the system keeps it in memory while there is room, and a model that fills
    the memory still fits.
    """
    if all(layer.weight.device.type != "cpu" for layer in layers):
        yield [layer.weight.detach().cpu() for layer in layers]
        return
    copies: list[Tensor] = []
    for layer in layers:
        copies.append(_mapped_copy(layer.weight.detach()))
    yield copies


def _mapped_copy(weight: Tensor) -> Tensor:
    """A copy in a temporary file that is gone when the copy is, also after a kill."""
    handle, name = tempfile.mkstemp(prefix="quantdrift-weights-")
    os.close(handle)
    path = Path(name)
    try:
        try:
            reserve(path, weight.numel() * weight.element_size())
        except OSError as error:
            raise RunError(
                f"no room in {path.parent} to put {weight.numel():,} weights aside: {error}. "
                "Set TMPDIR to a folder on a disk with as much room as the model takes"
            ) from error
        mapped = torch.from_file(name, shared=True, size=weight.numel(), dtype=weight.dtype)
        return mapped.view(weight.shape).copy_(weight)
    finally:
        with suppress(PermissionError):  # Windows keeps a mapped file until it is closed
            path.unlink()
