"""Backward passes through a batch, and what each row's gradient says of a change of weights.

For a layer y = x W^T the gradient by W of one row of the batch is the product of the gradient that
arrives at y with the x that went in, both seen by hooks. Where no module is called for a weight, or
its input does not keep the rows apart, the gradient by the weight is taken row by row instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn.functional import normalize

from quantdrift.engine.calibration.in_order import plain_products
from quantdrift.engine.layers import LinearLayer
from quantdrift.engine.sensitivity.criteria import Setting, rounding_error
from quantdrift.engine.sensitivity.problem import Batch, GapProblem
from quantdrift.errors import UnsupportedError

# --- The changes that rounding makes to weights, kept while there is room -------------------------

_ROOM = 2 * 2**30
"""Bytes; a change that does not fit is made again each time it is needed."""


class WeightChanges:
    """What is added to a layer's weight when it is rounded to a width; by number of the layer.

    Args:
        layers: in the reference arm, as long as this is used.
        widths: bits per weight.
        group_size: input weights that share a scale, None for a whole output channel.
    """

    def __init__(self, layers: Sequence[LinearLayer], widths: tuple[int, ...], group_size: int | None) -> None:
        self._layers, self._widths, self._group_size = layers, widths, group_size
        self._kept: dict[int, Tensor] = {}
        self._room = _ROOM

    def __getitem__(self, number: int) -> Tensor:
        """float32 [n_widths, out_features * in_features], on the weight's device."""
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        layer = self._layers[number]
        with torch.no_grad():
            changes = torch.stack([-rounding_error(layer, bits, self._group_size).flatten() for bits in self._widths])
        size = changes.numel() * changes.element_size()
        if size <= self._room:
            self._kept[number] = changes
            self._room -= size
        return changes


# --- A forward pass as a harness makes it, with gradients -----------------------------------------

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


def run_with_gradients(modules: Sequence[nn.Module], run: Callable[[], NDArray[np.float32]]) -> Traced:
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


# --- Hooks on a model's linear layers that see what goes in and which gradients come back ---------

Arrived = Callable[[int, Tensor, Tensor], None]
"""Called with a layer's number, its input [..., in_features] and the gradient by its output."""


class GradientWatch:
    """One forward pass that is watched, and backward passes through it; a context.

    Gradients begin at the outputs of the first layers, which become leaves: no gradient by a weight
    is computed, and nothing before these layers is passed through. Layers that hooks cannot see
    have gradients by their weights instead.

    Args:
        layers: of a model none of whose parameters asks for gradients.
        unseen: numbers of the layers whose weights shall have gradients.
    """

    def __init__(self, layers: Sequence[LinearLayer], unseen: set[int]) -> None:
        self._layers, self._unseen = layers, sorted(unseen)
        self._leaves: list[Tensor] = []
        self._called: set[int] = set()
        self._overwritten: set[int] = set()
        self._arrived: Arrived | None = None
        self._stack = ExitStack()

    def __enter__(self) -> GradientWatch:
        for number in self._unseen:
            self._layers[number].parameter.requires_grad_(True)
        for number, layer in enumerate(self._layers):
            for module in layer.modules:
                hook = module.register_forward_hook(partial(self._ran, number), with_kwargs=True)
                self._stack.callback(hook.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._leaves.clear()
        for number in self._unseen:
            self._layers[number].parameter.requires_grad_(False)

    def called(self) -> set[int]:
        """Layers that a module was called for."""
        return set(self._called)

    def uncalled(self) -> set[int]:
        """The others."""
        return set(range(len(self._layers))) - self._called

    def overwritten(self) -> set[int]:
        """Layers whose input was written over, in place, before a gradient came back."""
        return set(self._overwritten)

    def backward(self, outputs: Tensor, seed: Tensor, arrived: Arrived) -> list[int]:
        """Pass gradients back.

        Args:
            outputs: what the forward pass gave.
            seed: gradients by them, of the same shape.
            arrived: called for every layer that a gradient comes back to, once per call of it.

        Returns:
            Of the unseen layers those whose weights the outputs depend on.
        """
        parameters = self._parameters()
        self._arrived = arrived
        try:
            found = self._gradients(outputs, seed, [*self._leaves, *parameters])
        finally:
            self._arrived = None
        reached = {
            id(parameter)
            for parameter, gradient in zip(parameters, found[len(self._leaves) :], strict=True)
            if gradient is not None
        }
        return [n for n in self._unseen if id(self._layers[n].parameter) in reached]

    def by_weights(self, outputs: Tensor, seed: Tensor, numbers: Sequence[int]) -> dict[int, Tensor]:
        """The gradients of <seed, outputs> by the weights of unseen layers.

        Args:
            outputs: as for `backward`.
            seed: likewise.
            numbers: of the layers.

        Returns:
            Number to [out_features, in_features]; none for layers that have no part in it.
        """
        parameters = self._parameters()
        found = self._gradients(outputs, seed, parameters)
        of = {id(p): gradient for p, gradient in zip(parameters, found, strict=True)}
        gradients = {}
        for number in numbers:
            layer = self._layers[number]
            gradient = of[id(layer.parameter)]
            if gradient is not None:
                gradient = gradient if layer.expert is None else gradient[layer.expert]
                gradients[number] = gradient.t() if layer.transposed else gradient
        return gradients

    def _gradients(self, outputs: Tensor, seed: Tensor, by: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        if not (by and outputs.requires_grad):
            return (None,) * len(by)
        return torch.autograd.grad(outputs, by, grad_outputs=seed, retain_graph=True, allow_unused=True)

    def _parameters(self) -> list[nn.Parameter]:
        """Those of the unseen layers, each once; experts share one."""
        found = {id(p): p for p in (self._layers[n].parameter for n in self._unseen)}
        return list(found.values())

    def _ran(
        self, number: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Tensor | None:
        if not isinstance(output, Tensor):
            return None  # a router, which gives more than its product
        x: Tensor = args[0] if args else kwargs["input"]
        self._called.add(number)
        leaf = None
        if not output.requires_grad:
            output = leaf = output.detach().requires_grad_()
            self._leaves.append(leaf)
        version = x._version

        def hook(gradient: Tensor) -> None:
            if self._arrived is not None:
                if x._version != version:
                    self._overwritten.add(number)
                self._arrived(number, x, gradient)

        output.register_hook(hook)
        return leaf


# --- Backward passes through a batch, and what each row's gradient says of a change of weights ----

_MEMORY = {"cpu": 8 * 2**20, "other": 256 * 2**20}
"""Bytes of single rows' gradients that are held at once: what a processor's cache holds, or enough
to keep an accelerator busy."""


class BackwardPasses:
    """Takes gradients of one batch after another, and learns which layers hooks can see."""

    def __init__(self, setting: Setting) -> None:
        self._modules, self._layers = setting.modules, setting.layers
        self._changes = WeightChanges(setting.layers, setting.widths, setting.group_size)
        self._n_widths = len(setting.widths)
        self._unseen = {n for n, layer in enumerate(setting.layers) if not layer.modules}
        self._apart: set[int] = set()  # layers whose input is known to keep rows apart

    def of(self, batch: Batch, vectors: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float64]]:
        """What the layers do to the rows of a batch.

        Args:
            batch: what to run.
            vectors: of every pass the gradients by the outputs, float32 [n_batch, dim].

        Returns:
            Of every pass float64 [n_batch, n_layers, n_widths]: row by row, the first-order change
            of <vector, output> when one layer is rounded to a width.

        Raises:
            UnsupportedError: no gradient can be taken through this model or harness.
        """
        while True:
            with GradientWatch(self._layers, self._unseen) as watch:
                traced = run_with_gradients(self._modules, batch.run)
                unseen = watch.uncalled() | self._mixed(watch, traced)
                if unseen <= self._unseen:
                    return [self._pass(watch, traced, torch.from_numpy(part)) for part in vectors]
            self._unseen |= unseen

    def _mixed(self, watch: GradientWatch, traced: Traced) -> set[int]:
        """Layers through whose input or output one row of the batch has to do with another."""
        n = len(traced.outputs)
        new = watch.called() - self._apart - self._unseen
        if not new:
            return set()
        seed = torch.zeros_like(traced.outputs)
        # of ones nothing would come back through a layer norm, whose outputs add up to a constant
        drawn = torch.randn(seed.shape[1], generator=torch.Generator().manual_seed(0))
        seed[0] = drawn.to(seed)
        mixed: set[int] = set()

        def look(number: int, x: Tensor, gradient: Tensor) -> None:
            if x.shape[:-1] != gradient.shape[:-1] or gradient.numel() % n or gradient.reshape(n, -1)[1:].any():
                mixed.add(number)

        watch.backward(traced.outputs, seed, look)
        mixed |= watch.overwritten()
        if n > 1:  # a single row has no other to be mixed with
            self._apart |= new - mixed
        return mixed

    def _pass(self, watch: GradientWatch, traced: Traced, vectors: Tensor) -> NDArray[np.float64]:
        n = len(vectors)
        total = torch.zeros(n, len(self._layers), self._n_widths, dtype=torch.float64)
        seed = torch.zeros_like(traced.outputs)
        seed[traced.order] = vectors.to(seed)

        def arrived(number: int, x: Tensor, gradient: Tensor) -> None:
            if number not in self._unseen:
                total[:, number] += _by_row(x, gradient, n, self._changes[number]).cpu()

        reached = watch.backward(traced.outputs, seed, arrived)
        ordered = total[traced.order.cpu()].numpy()
        if reached:
            for row, place in enumerate(traced.order.tolist()):
                single = torch.zeros_like(seed)
                single[place] = seed[place]
                for number, gradient in watch.by_weights(traced.outputs, single, reached).items():
                    part = gradient.float().reshape(1, -1) @ self._changes[number].T
                    ordered[row, number] = part.double().cpu().numpy()
        return ordered


def _by_row(x: Tensor, gradient: Tensor, n: int, changes: Tensor) -> Tensor:
    """<G, dW> of every row and width, with G = gradient^T x over the row's tokens.

    Args:
        x: input of a layer, [n, ..., in_features].
        gradient: by its output, [n, ..., out_features].
        n: rows.
        changes: float32 [n_widths, out_features * in_features].

    Returns:
        float64 [n, n_widths].
    """
    inputs = x.detach().reshape(n, -1, x.shape[-1]).float()
    gradients = gradient.reshape(n, -1, gradient.shape[-1]).float()
    memory = _MEMORY.get(changes.device.type, _MEMORY["other"])
    size = max(1, memory // (4 * changes.shape[1]))
    parts = [
        torch.bmm(gradients[at : at + size].mT, inputs[at : at + size]).flatten(1) @ changes.T
        for at in range(0, n, size)
    ]
    return torch.cat(parts).double()


# --- The gradients of gaps by what the model puts out: where backward passes begin ----------------


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """What one backward pass over a batch begins with: at most one gradient for each row.

    Attributes:
        vectors: float32 [n_batch, dim]; zeros for rows that have none.
        gaps: of every row in the batch the gaps it belongs to, (input, contender).
    """

    vectors: NDArray[np.float32]
    gaps: list[list[tuple[int, int]]] = field(default_factory=list)

    def add(self, total: NDArray[np.float64], parts: NDArray[np.float64]) -> None:
        """Add what came out of the pass to the gaps it belongs to.

        Args:
            total: float64 [n_inputs, n_contenders, ...], changed.
            parts: float64 [n_batch, ...].
        """
        for gaps, part in zip(self.gaps, parts, strict=True):
            for of_input, contender in gaps:
                total[of_input, contender] += part


class Cotangents:
    """Of every row the gradients by its output of all gaps it has to do with, each once.

    The first document of a query is in the gaps with all contenders, and its gradient is the same
    in all of them: what is the same is propagated once.
    """

    def __init__(self, problem: GapProblem, outputs: NDArray[np.float32]) -> None:
        """Take the gradients.

        Args:
            problem: whose gaps.
            outputs: float32 [n_rows, dim], of the reference.
        """
        chosen = torch.from_numpy(outputs[np.maximum(problem.rows, 0)]).double()
        with torch.inference_mode(False), torch.enable_grad():
            leaves = chosen.clone().requires_grad_()
            problem.gap(leaves)[torch.from_numpy(problem.valid)].sum().backward()  # type: ignore[no-untyped-call]  # untyped in torch
        assert leaves.grad is not None  # some gap is valid
        gradients = leaves.grad.float().numpy()
        self._dim = outputs.shape[1]
        self._of_row: list[dict[bytes, tuple[NDArray[np.float32], list[tuple[int, int]]]]]
        self._of_row = [{} for _ in range(len(outputs))]
        for of_input, contender in np.argwhere(problem.valid).tolist():
            for role, row in enumerate(problem.rows[of_input, contender].tolist()):
                vector = gradients[of_input, contender, role]
                _, gaps = self._of_row[row].setdefault(vector.tobytes(), (vector, []))
                gaps.append((of_input, contender))

    def slots(self, rows: NDArray[np.int64]) -> list[Slot]:
        """The backward passes that a batch needs, as few as its busiest row has gradients.

        Args:
            rows: int64 [n_batch], the batch's.
        """
        found = [list(self._of_row[row].values()) for row in rows.tolist()]
        slots = []
        for number in range(max(map(len, found))):
            slot = Slot(vectors=np.zeros((len(rows), self._dim), dtype=np.float32))
            for at, entries in enumerate(found):
                vector, gaps = entries[number] if number < len(entries) else (0.0, [])
                slot.vectors[at] = vector
                slot.gaps.append(gaps)
            slots.append(slot)
        return slots


# --- What every layer at every width does to every gap, from one forward and one backward pass ----

_NAME = "contributions"


def contributions(setting: Setting) -> NDArray[np.float64]:
    """How far each gap moves when one layer is rounded to nearest, to first order, with its sign.

    Contributions of several layers add up to the shift that they make together, as far as the model
    is linear in the change.

    Args:
        setting: model, widths and calibration inputs.

    Returns:
        float64 [n_inputs, n_contenders, n_layers, n_widths], in units of the score; nan where there
        is no contender, 0 for layers that no input reaches.

    Raises:
        UnsupportedError: no gradient can be taken through this model or harness.
    """
    problem = setting.problem
    assert problem is not None  # the criterion needs inputs
    name = f"{_NAME}-{'-'.join(map(str, setting.widths))}"
    kept = None if setting.kept is None else setting.kept.get(name)
    if kept is not None:
        return kept
    known = problem.reference
    total = np.zeros((*problem.valid.shape, len(setting.layers), len(setting.widths)))
    with (
        setting.progress.stage("gap of every layer, one backward pass", problem.n_rows) as tell,
        _parameters_without_gradients(setting.modules),
        plain_products(setting.modules),
    ):
        cotangents = Cotangents(problem, problem.outputs() if known is None else known)
        passes = BackwardPasses(setting)
        for batch in problem.batches:
            slots = cotangents.slots(batch.rows)
            if slots:
                parts = passes.of(batch, [slot.vectors for slot in slots])
                for slot, part in zip(slots, parts, strict=True):
                    slot.add(total, part)
            tell(len(batch.rows))
    total[~problem.valid] = np.nan
    if setting.kept is not None:
        setting.kept.put(name, total)
    return total


@contextmanager
def _parameters_without_gradients(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, no parameter asks for a gradient: those of single rows are made by hand."""
    asking = [p for module in modules for p in module.parameters() if p.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)
