"""What is saved: a model, and the codes that its layers' weights become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.bits import BitsReport
from quantdrift.calibration.driver import put_in_place
from quantdrift.models.aside import put_aside
from quantdrift.models.layers import find_linears, memory_range
from quantdrift.models.resolve import ModelSource
from quantdrift.quantizers.base import QuantizedWeight
from quantdrift.spec import Spec

__all__ = ["Candidate", "CandidateLayer", "in_place"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateLayer:
    """One quantized layer.

    Attributes:
        name: as `find_linears` gives it for the model.
        quantized: codes and grid.
        error: ||X (W - Q)^T||^2 / ||X W^T||^2 over the calibration tokens; None if not known.
        fallback: why it was rounded to nearest instead; None if it was not.
    """

    name: str
    quantized: QuantizedWeight
    error: float | None = None
    fallback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A model with its reference weights, and the codes that make it the candidate.

    Attributes:
        model: a SentenceTransformer, or another torch module with `save_pretrained`.
        source: where the model came from.
        revision: of a hub model.
        spec: model and scheme.
        layers: every quantized layer.
        fingerprint: digest of the reference weights.
        bits: what the candidate costs.
        calibration: what is recorded of how the codes were made; None for a method without data.
    """

    model: Any
    source: ModelSource
    spec: Spec
    layers: Sequence[CandidateLayer]
    fingerprint: str
    bits: BitsReport
    revision: str | None = None
    calibration: Mapping[str, Any] | None = None

    @property
    def module(self) -> nn.Module:
        """The model as a torch module."""
        module: nn.Module = self.model
        return module


@contextmanager
def in_place(candidate: Candidate, *, dtype: torch.dtype | None = None) -> Iterator[None]:
    """Inside, the model is the candidate; on leaving, it is as it was, bit for bit.

    Args:
        candidate: the model and its codes.
        dtype: to hold all floating-point weights in, quantized and others; their own if None.

    Raises:
        ValueError: there is no layer of a name.
        RunError: there is no room to put the weights aside.
    """
    linears = {layer.name: layer for layer in find_linears([candidate.module])}
    missing = [layer.name for layer in candidate.layers if layer.name not in linears]
    if missing:
        raise ValueError(f"the model has no layer {missing[0]!r}")
    held = [*candidate.module.parameters(), *candidate.module.buffers()]
    others = {tensor.dtype for tensor in held if tensor.is_floating_point()} - {dtype}
    with ExitStack() as stack:
        if dtype is not None and others:
            stack.enter_context(_held_in(dtype, held))
        else:
            stack.enter_context(put_aside([linears[layer.name] for layer in candidate.layers]))
        for layer in candidate.layers:
            put_in_place(linears[layer.name], layer.quantized)
        yield


@contextmanager
def _held_in(dtype: torch.dtype, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the floating-point tensors are copies in another type; then the originals again."""
    originals = [(tensor, tensor.data) for tensor in tensors if tensor.is_floating_point()]
    # what shares memory shares it in the copy too, a matrix and its transpose included
    copies: dict[object, tuple[Tensor, Tensor]] = {}
    try:
        for tensor, data in originals:
            key = memory_range(data) or id(tensor)
            if key not in copies:
                copies[key] = (data, data.to(dtype, copy=True))
            first, copy = copies[key]
            alike = data.stride() == first.stride()
            tensor.data = copy if alike else copy.as_strided(data.shape, data.stride())
        yield
    finally:
        for tensor, data in originals:
            tensor.data = data
