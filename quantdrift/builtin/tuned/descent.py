"""Adam on scales, codes, biases and norms of a model: their numbers lie behind one another in one vector."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from quantdrift.base.cache import read_cache
from quantdrift.candidate.calibration.in_order import LayerCandidate, put_in_place
from quantdrift.candidate.quantized import QuantizedWeight, in_groups
from quantdrift.models.layers import LinearLayer, named_modules
from quantdrift.models.store import keep_tensors, tensors_in
from quantdrift.sensitivity.gaps import asking_gradients

SCALE_RATE, OTHER_RATE = 5e-3, 2.5e-3
"""Learning rates, relative to the scale and to the root mean square of a bias or norm."""
CODE_RATE = 0.025
"""The same of a code, in steps of its grid, over the square root of the number of steps: what is noise goes as far."""
FEWEST = 192
"""Steps from which codes are tuned: a trend has to go farther than noise."""
_FIRST, _SECOND, _EPSILON = 0.9, 0.99, 1e-12  # Adam's; few steps are taken
_CHECKS = 4
"""Looks at what is held out, beside that at the start."""
_PATIENCE = 2
"""Looks after which it ends where none was better than the start; one that was gains most from its last steps."""
_WITHIN = 0.45
"""How far from the middle of its interval a code starts at most: so noise moves none."""
_LEAST = 1e-3
"""Root mean square of a bias below which its steps are as of this one."""


# --- what is tuned --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weight:
    """A quantized layer.

    Its numbers are x = log(scale / start) of every group, and u of every code, which is a code before it is rounded. A
    weight is linear in both, W = (round(u) - zero) scale / scaling, if rounding is taken as not there. So d loss / dx
    is the sum over the group of d loss / dW * W, also with levels of a format, and d loss / du = d loss / dW * scale /
    scaling.

    Attributes:
        exact: the reference's weight, [out_features, in_features].
        n_scales: 0 where the format has a grid of its own for scales.
        n_codes: 0 where the codes stand for levels.
    """

    layer: LinearLayer
    quantized: QuantizedWeight
    exact: Tensor
    place: slice
    n_scales: int
    n_codes: int

    def start(self) -> Tensor:
        """The numbers of the quantized weight; each u rounds to its code, as near to the exact weight as may be."""
        scales = self.exact.new_zeros(self.n_scales, dtype=torch.float32)
        if not self.n_codes:
            return scales
        exact, made = self.exact.float(), self.quantized
        apart = ((exact - made.dequantize(torch.float32)) / self._per_code(made.scale)).nan_to_num(0)
        return torch.cat([scales, (made.codes + apart.clamp(-_WITHIN, _WITHIN)).flatten()])

    def at(self, numbers: Tensor) -> QuantizedWeight:
        """The weight with these numbers, all of the vector."""
        made = replace(self.quantized, scale=self._scale(numbers))
        if self.n_codes:
            codes = numbers[self.place][self.n_scales :].view(made.codes.shape).round()
            made = replace(made, codes=codes.clamp(*made.codes.aminmax()).to(torch.int8))
        return made

    def put(self, numbers: Tensor | None) -> None:
        """Give the layer its weights; of None the reference's."""
        if numbers is None:
            self.layer.weight.detach().copy_(self.exact)
        else:
            put_in_place(self.layer, self.at(numbers))

    def slope(self, gradient: Tensor, numbers: Tensor) -> Tensor:
        """The gradient by these numbers, of that by the parameter which holds the layer."""
        gradient, parts = self.layer.part(gradient).float(), []
        if self.n_scales:
            product = gradient * self.layer.weight.float()
            if self.quantized.permutation is not None:
                product = product[:, self.quantized.permutation]
            parts.append(in_groups(product, self.quantized.group_size).sum(dim=2).flatten())
        if self.n_codes:
            parts.append((gradient * self._per_code(self._scale(numbers))).flatten())
        return torch.cat(parts)

    def _scale(self, numbers: Tensor) -> Tensor:
        """The scales with these numbers, [out_features, n_groups]."""
        scale = self.quantized.scale
        if not self.n_scales:
            return scale
        return scale * numbers[self.place][: self.n_scales].view(scale.shape).exp().to(scale)

    def _per_code(self, scale: Tensor) -> Tensor:
        """What a code more makes of a weight, [out_features, in_features]."""
        step, scaling = self.quantized.of_column(scale), self.quantized.input_scaling
        return step if scaling is None else step / scaling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Other:
    """A bias, or the gains or offsets of a norm; its numbers x are (value - exact) / unit."""

    parameter: nn.Parameter
    exact: Tensor
    unit: float
    place: slice

    def at(self, numbers: Tensor) -> Tensor:
        """The parameter's value with these numbers."""
        return (self.exact + self.unit * numbers[self.place]).to(self.parameter.dtype)

    def put(self, numbers: Tensor | None) -> None:
        """Give the parameter its value; of None the reference's."""
        self.parameter.detach().copy_(self.exact if numbers is None else self.at(numbers))

    def slope(self, gradient: Tensor, numbers: Tensor) -> Tensor:
        """The gradient by the numbers, of that by the parameter."""
        return self.unit * gradient.float()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Free:
    """All that is tuned, layers by their number in the model, and the number of its numbers."""

    weights: dict[int, Weight]
    others: tuple[Other, ...]
    size: int

    def start(self) -> Tensor:
        """The vectors of a `State` of the model as it was quantized, float32 [4, size]."""
        others = [torch.zeros_like(other.exact) for other in self.others]
        numbers = torch.cat([*(weight.start() for weight in self.weights.values()), *others])
        return torch.stack([numbers, *torch.zeros(2, self.size).to(numbers), numbers])

    def rates(self, numbers: Tensor, steps: int) -> Tensor:
        """Their learning rates, as the numbers [size]."""
        made = torch.full_like(numbers, OTHER_RATE)
        for part in self.weights.values():
            made[part.place] = CODE_RATE / math.sqrt(steps)
            made[part.place][: part.n_scales] = SCALE_RATE
        return made

    def put(self, numbers: Tensor | None) -> None:
        """Give the model these numbers; None makes it the reference."""
        for weight in self.weights.values():
            weight.put(numbers)
        for other in self.others:
            other.put(numbers)


def free_parameters(
    modules: Sequence[nn.Module],
    layers: Sequence[LinearLayer],
    made: Sequence[LayerCandidate],
    *,
    scales: bool,
    codes: bool,
    but: Collection[str],
) -> Free:
    """Scales of quantized layers, unless a format's are on a grid, their codes, and parameters of one dimension.

    Those of the modules `but`, and below them, stay: heads. The layers have the reference's weights.
    """
    weights: dict[int, Weight] = {}
    at = 0
    for number, (layer, candidate) in enumerate(zip(layers, made, strict=True)):
        if candidate.quantized is not None:
            quantized = candidate.quantized.to(layer.weight.device)
            n_scales = quantized.scale.numel() if scales else 0
            n_codes = quantized.codes.numel() if codes and quantized.levels is None else 0
            place, exact = slice(at, at + n_scales + n_codes), layer.weight.detach().clone()
            weights[number] = Weight(
                layer=layer, quantized=quantized, exact=exact, place=place, n_scales=n_scales, n_codes=n_codes
            )
            at = place.stop
    others: dict[nn.Parameter, Other] = {}
    for path, module in named_modules(modules):
        if any(path == name or path.startswith(f"{name}.") for name in but):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.dim() == 1 and parameter.is_floating_point() and parameter not in others:
                exact = parameter.detach().float().clone()
                unit = max(float(exact.square().mean().sqrt()), _LEAST)
                place = slice(at, at + exact.numel())
                others[parameter] = Other(parameter=parameter, exact=exact, unit=unit, place=place)
                at = place.stop
    return Free(weights=weights, others=tuple(others.values()), size=at)


@contextmanager
def slopes(modules: Sequence[nn.Module], free: Free, numbers: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
    """Inside, what is tuned asks for gradients, and a function of a loss gives those by the numbers as they are then.

    These are float32 [size]. A weight's own gradient is gone as soon as its sums are taken, so there is room for one.
    """
    parts: dict[Tensor, list[Weight | Other]] = defaultdict(list)
    for weight in free.weights.values():
        if weight.n_scales or weight.n_codes:
            for owner in weight.layer.owners:
                parts[owner].append(weight)
    for other in free.others:
        parts[other.parameter].append(other)
    total = torch.zeros(free.size, device=next(iter(parts)).device)

    def arrived(parameter: Tensor) -> None:
        assert parameter.grad is not None  # it has just arrived
        for part in parts[parameter]:
            total[part.place] += part.slope(parameter.grad, numbers)

    def gradient(loss: Tensor) -> Tensor:
        total.zero_()
        torch.autograd.backward(loss, inputs=list(parts))
        return total

    with asking_gradients(modules, parts, arrived):
        yield gradient


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
    state is kept; it ends early where that was better in none of the first `_PATIENCE`.
    """
    numbers, first, second, best = start.vectors  # changed in place: with codes they are four times the model
    losses, every = dict(start.losses), max(1, steps // _CHECKS)
    rate = free.rates(numbers, steps)
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
        state = State(vectors=start.vectors, step=step, losses=dict(losses))
        state = replace(state, finished=step == steps or (not state.best and len(losses) > _PATIENCE))
        keep(state)
        if state.finished:
            break
    return state


# --- kept -----------------------------------------------------------------------------------------


def read_state(path: Path, size: int) -> State | None:
    """The state that a file holds; None where there is none, or a damaged one."""

    def decode(content: memoryview) -> State:
        tensors, facts = tensors_in(content)
        vectors, finished = tensors["vectors"], bool(facts["finished"])
        if vectors.shape != (1 if finished else 4, size) or vectors.dtype != torch.float32:
            raise ValueError(f"{vectors.dtype} of shape {list(vectors.shape)}")
        losses = {int(step): float(loss) for step, loss in facts["losses"].items()}
        return State(vectors=vectors.expand(4, -1), step=int(facts["step"]), losses=losses, finished=finished)

    return read_cache(path, decode)


def write_state(path: Path, state: State) -> None:
    """Keep a state, of a finished one the best numbers; RunError if there is no space."""
    facts = {"step": state.step, "losses": state.losses, "finished": state.finished}
    vectors = state.vectors[3:] if state.finished else state.vectors
    keep_tensors(path, {"vectors": vectors.cpu().contiguous()}, facts)
