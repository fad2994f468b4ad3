"""A forward pass as a harness makes it, with gradients.

Harnesses embed under `torch.inference_mode`, behind tokenizers, prompts and pooling of their own.
The model is called with gradients in the middle of that, and what the harness returned is found
again in what the model put out, so that nothing has to be known of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn.functional import normalize

from quantdrift.errors import UnsupportedError

__all__ = ["Traced", "run_with_gradients"]

_TOLERANCE = 1e-2
"""Of a row found again, relative to its length: a length in bfloat16 is off by up to 0.4 %."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traced:
    """What a model put out, with the graph behind it.

    Attributes:
        outputs: [n_batch, dim], as the harness returned them: of unit length, if it makes them so.
        order: int64 [n_batch], the row of `outputs` for each input of the batch; a permutation, as
            harnesses sort by length.
    """

    outputs: Tensor
    order: Tensor


def run_with_gradients(
    modules: Sequence[nn.Module], run: Callable[[], NDArray[np.float32]]
) -> Traced:
    """Run a batch and keep the graph behind its outputs.

    Args:
        modules: the model's outermost modules.
        run: puts a batch through the model, float32 [n_batch, dim].

    Raises:
        UnsupportedError: the batch is not one call of one module, or what it returned is not a part
            of what the module put out, as it is or made of unit length; says so.
    """
    calls: list[Any] = []
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(_traced(module, calls))
        wanted = torch.from_numpy(np.array(run(), dtype=np.float32))
    way_out = "use the criterion gap_exact, which needs no gradients"
    if len(calls) != 1:
        raise UnsupportedError(
            f"expected one call of the model per batch, got {len(calls)}: its gap has no gradient "
            f"that could be taken; {way_out}"
        )
    for tensor in _tensors(calls[0]):
        order = _rows_of(wanted, tensor)
        if order is None:
            continue
        outputs = _as_long(wanted, tensor[:, : wanted.shape[1]], order)
        if outputs is not None:
            return Traced(outputs=outputs, order=order)
    raise UnsupportedError(
        f"what was returned, shape {tuple(wanted.shape)}, is not among the outputs of "
        f"{type(modules[0]).__name__}: something is computed after the model; {way_out}"
    )


@contextmanager
def _traced(module: nn.Module, calls: list[Any]) -> Iterator[None]:
    """Inside, calls of the module make a graph; also those that go to `forward` past its hooks."""
    forward = module.forward
    own = module.__dict__.get("forward")

    def traced(*args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            returned = forward(*_mapped(args, torch.clone), **_mapped(kwargs, torch.clone))
            calls.append(returned)
            return _mapped(returned, torch.detach)

    module.__dict__["forward"] = traced
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same containers anew, with every tensor changed; an inference tensor has no gradients."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        parts = {key: _mapped(part, change) for key, part in value.items()}
        if type(value) is dict:
            return parts
        same: Any = type(value)
        # transformers' outputs take keywords, its BatchEncoding and UserDicts a mapping
        return same(**parts) if hasattr(value, "to_tuple") else same(parts)
    if type(value) in (tuple, list):
        return type(value)(_mapped(part, change) for part in value)
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in what a model returned; the last ones first."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for key in reversed(list(value)):
            yield from _tensors(value[key])
    elif isinstance(value, list | tuple):
        for part in reversed(value):
            yield from _tensors(part)


def _rows_of(wanted: Tensor, found: Tensor) -> Tensor | None:
    """Which row of `found` each wanted row is, up to its length; None if they are not there."""
    n, dim = wanted.shape
    if found.dim() != 2 or not found.is_floating_point():  # noqa: PLR2004 -- a row per input
        return None
    if len(found) != n or found.shape[1] < dim or not found.requires_grad:
        return None
    with torch.no_grad():
        rows = found.detach().float().cpu()[:, :dim]
        if dim > 1:
            distance = torch.cdist(_unit(wanted), _unit(rows))
        else:  # a single number has no direction
            distance = (wanted - rows.T).abs() / wanted.abs().clamp(min=1e-6)
    # a permutation, although equal inputs have equal rows
    _, order = linear_sum_assignment(distance.numpy())
    farthest = float(distance[torch.arange(n), torch.from_numpy(order)].max())
    return torch.from_numpy(order).to(found.device) if farthest <= _TOLERANCE else None


def _as_long(wanted: Tensor, outputs: Tensor, order: Tensor) -> Tensor | None:
    """Outputs of the lengths that the harness returned; None if it made them of other lengths.

    A vector of unit length changes otherwise than the one that it is made of: never along itself.
    """
    with torch.no_grad():
        lengths = outputs.float().cpu()[order.cpu()].norm(dim=1)
        returned = wanted.norm(dim=1)
        limit = _TOLERANCE * lengths + 1e-30
        as_they_are = bool(((returned - lengths).abs() <= limit).all())
        of_unit_length = bool(((returned - 1.0).abs() <= _TOLERANCE).all())
    if as_they_are:
        return outputs
    if not of_unit_length:
        return None
    with torch.inference_mode(False), torch.enable_grad():
        return normalize(outputs, dim=1)


def _unit(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return unit
