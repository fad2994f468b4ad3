"""Adam on scales, biases and norms of a model whose codes stay: their numbers lie behind one another in one vector."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.base.cache import cache_file, read_cache
from quantdrift.base.records import parse_json
from quantdrift.engine.calibration.in_order import LayerCandidate, put_in_place
from quantdrift.engine.layers import LinearLayer, named_modules
from quantdrift.engine.quantizers.base import QuantizedWeight, n_groups
from quantdrift.engine.sensitivity.gaps import asking_gradients
from quantdrift.engine.store import keeping

SCALE_RATE, OTHER_RATE = 5e-3, 2.5e-3
"""Learning rates, relative to the scale and to the root mean square of a bias or norm."""
_FIRST, _SECOND, _EPSILON = 0.9, 0.99, 1e-12  # Adam's; few steps are taken
_CHECKS = 4
"""Looks at what is held out, beside that at the start."""
_PATIENCE = 2
"""Looks without a new best after which it ends."""
_LEAST = 1e-3
"""Root mean square of a bias below which its steps are as of this one."""


# --- what is tuned --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scales:
    """The scales of a layer, the model's `number`th; their numbers x are log(scale / start).

    A weight is linear in its group's scale, W = code * scale, so d loss / d x is the sum over the group of
    d loss / d W * W, whatever the codes stand for: levels, zero points and input scalings are in W.
    """

    layer: LinearLayer
    quantized: QuantizedWeight
    place: slice
    number: int = 0

    def at(self, numbers: Tensor) -> QuantizedWeight:
        """The weight with these numbers, all of the vector."""
        scale = self.quantized.scale
        factor = numbers[self.place].view(scale.shape).exp().to(scale)
        return replace(self.quantized, scale=scale * factor)

    def put(self, numbers: Tensor) -> None:
        """Give the layer its weights."""
        put_in_place(self.layer, self.at(numbers))

    def slope(self, gradient: Tensor) -> Tensor:
        """The gradient by the numbers, of that by the parameter which holds the layer."""
        gradient = gradient if self.layer.expert is None else gradient[self.layer.expert]
        product = (gradient.t() if self.layer.transposed else gradient).float() * self.layer.weight.float()
        if self.quantized.permutation is not None:
            product = product[:, self.quantized.permutation]
        n_in, size = product.shape[1], self.quantized.group_size or product.shape[1]
        missing = n_groups(n_in, self.quantized.group_size) * size - n_in
        return nn.functional.pad(product, (0, missing)).view(len(product), -1, size).sum(dim=2).flatten()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Other:
    """A bias, or the gains or offsets of a norm; its numbers x are (value - start) / unit."""

    name: str
    parameter: nn.Parameter
    start: Tensor
    unit: float
    place: slice

    def at(self, numbers: Tensor) -> Tensor:
        """The parameter's value with these numbers."""
        return (self.start + self.unit * numbers[self.place]).to(self.parameter.dtype)

    def put(self, numbers: Tensor) -> None:
        """Give the parameter its value."""
        self.parameter.detach().copy_(self.at(numbers))

    def slope(self, gradient: Tensor) -> Tensor:
        """The gradient by the numbers, of that by the parameter."""
        return self.unit * gradient.float()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Free:
    """All that is tuned, and the number of its numbers."""

    scales: tuple[Scales, ...]
    others: tuple[Other, ...]
    size: int

    @property
    def n_scales(self) -> int:
        """How many of them are scales, which come first."""
        return self.scales[-1].place.stop if self.scales else 0

    def put(self, numbers: Tensor) -> None:
        """Give the model these numbers."""
        parts: list[Scales | Other] = [*self.scales, *self.others]
        for part in parts:
            part.put(numbers)


def free_parameters(
    modules: Sequence[nn.Module],
    layers: Sequence[LinearLayer],
    made: Sequence[LayerCandidate],
    *,
    scales: bool,
    but: Collection[str],
) -> Free:
    """The scales of quantized layers, unless a format's are on a grid, and parameters of one dimension.

    Those of the modules `but`, and below them, stay: heads.
    """
    parts: list[Scales] = []
    at = 0
    for number, (layer, candidate) in enumerate(zip(layers, made, strict=True)):
        if scales and candidate.quantized is not None:
            quantized = candidate.quantized.to(layer.weight.device)
            place = slice(at, at + quantized.scale.numel())
            parts.append(Scales(layer=layer, quantized=quantized, place=place, number=number))
            at = place.stop
    others: dict[nn.Parameter, Other] = {}
    for path, module in named_modules(modules):
        if any(path == name or path.startswith(f"{name}.") for name in but):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 1 and parameter.is_floating_point() and parameter not in others:
                start = parameter.detach().float().clone()
                unit = max(float(start.square().mean().sqrt()), _LEAST)
                place = slice(at, at + start.numel())
                named = f"{path}.{name}" if path else name
                others[parameter] = Other(name=named, parameter=parameter, start=start, unit=unit, place=place)
                at = place.stop
    return Free(scales=tuple(parts), others=tuple(others.values()), size=at)


@contextmanager
def slopes(modules: Sequence[nn.Module], free: Free) -> Iterator[Callable[[Tensor], Tensor]]:
    """Inside, what is tuned asks for gradients, and a function gives those of a loss by all numbers, float32 [size].

    A weight's own gradient is gone as soon as its sums are taken, so there is room for one of them.
    """
    parts: dict[Tensor, list[Scales | Other]] = defaultdict(list)
    for scales in free.scales:
        for parameter in dict.fromkeys([scales.layer.parameter, *(module.weight for module in scales.layer.modules)]):
            parts[parameter].append(scales)  # type: ignore[index]  # a linear module's weight is a tensor
    for other in free.others:
        parts[other.parameter].append(other)
    total = torch.zeros(free.size, device=next(iter(parts)).device)

    def arrived(parameter: Tensor) -> None:
        assert parameter.grad is not None  # it has just arrived
        for part in parts[parameter]:
            total[part.place] += part.slope(parameter.grad)
        parameter.grad = None

    def gradient(loss: Tensor) -> Tensor:
        total.zero_()
        torch.autograd.backward(loss, inputs=list(parts))
        return total

    with asking_gradients(modules, parts), ExitStack() as stack:
        for parameter in parts:
            hook = parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]  # in torch
            stack.callback(hook.remove)
        yield gradient


@contextmanager
def restoring(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """When the block is left, the parameters have their values back, bit for bit."""
    copies = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    finally:
        for parameter, copy in zip(parameters, copies, strict=True):
            parameter.detach().copy_(copy)


# --- the steps ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """Where tuning stands.

    Attributes:
        vectors: float32 [4, size]: the numbers, Adam's moments of them, and the best numbers so far.
        step: steps that were taken.
        losses: steps to the loss on what is held out, as far as it was looked at.
        finished: whether no step is left.
    """

    vectors: Tensor
    step: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    finished: bool = False

    @property
    def best(self) -> int:
        """The number of steps that was best, the first of equals."""
        return min(self.losses, key=lambda step: (self.losses[step], step))


def descend(
    free: Free,
    start: State,
    *,
    steps: int,
    gradient: Callable[[int], Tensor],
    look: Callable[[], float],
    keep: Callable[[State], None],
    tell: Callable[[int], None],
) -> State:
    """Take the steps that are left; the model has what the last one gave.

    Step sizes fall along half a cosine. After a start, and `_CHECKS` times, what is held out is looked at, and the
    state is kept; it ends early where that has not become better for `_PATIENCE` looks.
    """
    numbers, first, second, best = start.vectors.clone()
    losses, every = dict(start.losses), max(1, steps // _CHECKS)
    rate = torch.full_like(numbers, OTHER_RATE)
    rate[: free.n_scales] = SCALE_RATE
    free.put(numbers)
    if not losses:
        losses[0] = look()
    state = replace(start, losses=losses)
    for step in range(start.step + 1, steps + 1):
        slope = gradient(step - 1)
        first.lerp_(slope, 1 - _FIRST)
        second.lerp_(slope.square(), 1 - _SECOND)
        cosine = (1 + math.cos(math.pi * (step - 1) / steps)) / 2
        unbiased = first / (1 - _FIRST**step) / ((second / (1 - _SECOND**step)).sqrt() + _EPSILON)
        numbers -= cosine * rate * unbiased
        free.put(numbers)
        tell(1)
        if step % every and step != steps:
            continue
        losses[step] = look()
        if losses[step] < min(loss for at, loss in losses.items() if at < step):
            best.copy_(numbers)
        state = State(vectors=torch.stack([numbers, first, second, best]), step=step, losses=dict(losses))
        stale = sum(at > state.best for at in losses)
        state = replace(state, finished=step == steps or stale >= _PATIENCE)
        keep(state)
        if state.finished:
            break
    return state


# --- kept -----------------------------------------------------------------------------------------


def read_state(path: Path, size: int) -> State | None:
    """The state that a file holds; None where there is none, or a damaged one."""

    def decode(content: memoryview) -> State:
        from safetensors.torch import load  # noqa: PLC0415 -- comes with transformers

        length = int.from_bytes(content[:8], "little")
        header: Any = parse_json(bytes(content[8 : 8 + length]))
        facts = parse_json(header["__metadata__"]["state"])
        vectors = load(bytes(content))["vectors"]
        if vectors.shape != (4, size) or vectors.dtype != torch.float32:
            raise ValueError(f"{vectors.dtype} of shape {list(vectors.shape)}")
        losses = {int(step): float(loss) for step, loss in facts["losses"].items()}
        return State(vectors=vectors, step=int(facts["step"]), losses=losses, finished=bool(facts["finished"]))

    return read_cache(path, decode)


def write_state(path: Path, state: State) -> None:
    """Keep a state; RunError if there is no space."""
    from safetensors.torch import save_file  # noqa: PLC0415 -- as above

    facts = {"step": state.step, "losses": state.losses, "finished": state.finished}
    with keeping(path.parent), cache_file(path) as partial:
        save_file({"vectors": state.vectors.cpu()}, partial, metadata={"state": json.dumps(facts)})
