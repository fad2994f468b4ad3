"""The weight matrices of a model's linear layers, however the model keeps them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

# --- Experts of a mixture that are kept as one three-dimensional parameter, a matrix for each -----

ExpertStack = tuple[str, nn.Parameter, bool]
"""Name within its module, parameter [n_experts, ...], and whether matrices are [in, out] in it."""

_UP, _GATED_UP, _DOWN = "up_proj", "gate_up_proj", "down_proj"


def expert_stacks(module: nn.Module) -> Iterator[ExpertStack]:
    """The parameters of a module, not of its children, that hold one matrix per expert.

    Which they are and which way round they are kept is known of three kinds of module:
    those with the attributes of transformers' experts interface (`has_gate`, `is_transposed`);
    those with a `gate_up_proj` and a `down_proj`, where the shapes tell (the first has twice the
    width of the second); and those that hold `num_experts` times a `weight` [`output_size`,
    `input_size`].
    """
    parameters = {
        name: parameter
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3  # noqa: PLR2004 -- experts, rows and columns
    }
    transposed = _is_transposed(module, parameters)
    if transposed is not None:
        for name in (_GATED_UP, _UP, _DOWN):
            if name in parameters:
                yield name, parameters[name], transposed
    elif "weight" in parameters:
        sizes = tuple(getattr(module, name, None) for name in ("num_experts", "output_size", "input_size"))
        if tuple(parameters["weight"].shape) == sizes:
            yield "weight", parameters["weight"], False


def _is_transposed(module: nn.Module, parameters: dict[str, nn.Parameter]) -> bool | None:
    """Whether up and down projections are kept as [in, out]; None if that cannot be told."""
    declared = getattr(module, "is_transposed", None)
    if isinstance(declared, bool) and hasattr(module, "has_gate"):
        return declared
    if _GATED_UP not in parameters or _DOWN not in parameters:
        return None
    _, *up = parameters[_GATED_UP].shape
    _, *down = parameters[_DOWN].shape
    # With hidden size h and width w: (2w, h) and (h, w), or (h, 2w) and (w, h). No sizes fit both.
    if up == [2 * down[1], down[0]]:
        return False
    if up == [down[1], 2 * down[0]]:
        return True
    return None


# --- The weight matrices of a model's linear layers, however the model keeps them -----------------

_SEARCH_DEPTH = 3

MemoryRange = tuple[torch.device, int, int]
"""Device, address of the first byte, address after the last byte."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearLayer:
    """One weight matrix that inputs are multiplied by; layers that share a weight are one.

    Attributes:
        name: path in the model; of tied layers the first, of an expert "...gate_up_proj.3".
        parameter: what the model keeps: the matrix, its transpose, or a stack of either.
        modules: those whose forward takes this weight when they are called; all tied ones. Empty
            for what belongs to a larger module: experts, the input projections of attention.
        expert: index into a stack, None if the parameter is one matrix.
        transposed: whether the parameter keeps the matrix as [in_features, out_features].
    """

    name: str
    parameter: nn.Parameter
    modules: tuple[nn.Module, ...] = ()
    expert: int | None = None
    transposed: bool = False

    @property
    def weight(self) -> Tensor:
        """The matrix [out_features, in_features], a view: what is written to it the model has."""
        matrix = self.parameter.detach()
        if self.expert is not None:
            matrix = matrix[self.expert]
        return matrix.t() if self.transposed else matrix


def modules_of(model: object) -> list[nn.Module]:
    """The torch modules of a model object of any harness: itself, or what its attributes hold.

    Args:
        model: a module, or an object that keeps modules in attributes, lists or dicts.

    Returns:
        Outermost modules, each once; empty if there is none (an API client, bm25).
    """
    found: list[nn.Module] = []
    seen: set[int] = set()

    def search(value: object, depth: int) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            found.append(value)
        elif depth < _SEARCH_DEPTH:
            if isinstance(value, dict):
                parts: Sequence[object] = list(value.values())
            elif isinstance(value, list | tuple):
                parts = value
            else:
                parts = list(getattr(value, "__dict__", {}).values())
            for part in parts:
                search(part, depth + 1)

    search(model, 0)
    inner = {id(child) for root in found for child in root.modules() if child is not root}
    return [module for module in found if id(module) not in inner]


def find_linears(modules: Sequence[nn.Module]) -> list[LinearLayer]:
    """Every linear layer of the modules, tied ones once, in order of definition.

    Beside nn.Linear these are GPT-2's Conv1D, which keeps the transpose; the input projections of
    nn.MultiheadAttention, which are parameters of its own; and the experts of a mixture, of which
    one parameter keeps many (see `expert_stacks`). What is a linear layer and yet not here
    `left_out` names.

    Args:
        modules: outermost modules; with more than one, names start with its number.
    """
    return _survey(modules)[0]


def left_out(modules: Sequence[nn.Module]) -> dict[str, str]:
    """Linear layers that `find_linears` passes over.

    Args:
        modules: as for `find_linears`.

    Returns:
        Name of the layer to the reason, in order of definition.
    """
    return _survey(modules)[1]


def memory_range(tensor: Tensor) -> MemoryRange | None:
    """From where to where a tensor lies in memory; gaps between its elements count.

    Returns:
        None for a tensor without memory of its own: empty, meta, sparse, or a wrapper of others.
    """
    try:
        start = tensor.data_ptr()
        strides = tensor.stride()
    except (RuntimeError, NotImplementedError):
        return None
    if start == 0 or tensor.numel() == 0:
        return None
    last = sum((size - 1) * step for size, step in zip(tensor.shape, strides, strict=True))
    return tensor.device, start, start + (last + 1) * tensor.element_size()


def _survey(modules: Sequence[nn.Module]) -> tuple[list[LinearLayer], dict[str, str]]:
    embeddings = [
        (prefix + name, module.weight)
        for prefix, root in _numbered(modules)
        for name, module in root.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    ]
    layers: dict[object, LinearLayer] = {}
    omitted: dict[str, str] = {}
    for prefix, root in _numbered(modules):
        for path, module in root.named_modules():
            name = prefix + path
            omitted.update(_not_understood(name, module))
            for layer in _layers_of(name, module):
                shared = next((n for n, other in embeddings if _share(layer, other)), None)
                if shared is not None:
                    omitted[layer.name] = f"shares its weight with the embedding {shared}"
                    continue
                key = memory_range(layer.weight) or (id(layer.parameter), layer.expert)
                known = layers.get(key)
                if known is not None and not _alike(known.weight, layer.weight):
                    omitted[layer.name] = f"shares its weight, transposed, with {known.name}"
                    continue
                layers[key] = layer if known is None else _tied(known, layer)
    return list(layers.values()), omitted


def _numbered(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    for number, root in enumerate(modules):
        yield (f"{number}." if len(modules) > 1 else ""), root


def _layers_of(name: str, module: nn.Module) -> Iterator[LinearLayer]:
    """The matrices that a module itself keeps, children not included."""
    own = dict(module.named_parameters(recurse=False))
    if isinstance(module, nn.Linear) or _is_conv1d(module):
        weight = own.get("weight")
        if weight is not None and not isinstance(weight, UninitializedParameter):
            yield LinearLayer(
                name=name, parameter=weight, modules=(module,), transposed=not isinstance(module, nn.Linear)
            )
    elif isinstance(module, nn.MultiheadAttention):
        for part in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if part in own:
                yield LinearLayer(name=_join(name, part), parameter=own[part])
    else:
        for part, stack, transposed in expert_stacks(module):
            for expert in range(len(stack)):
                yield LinearLayer(
                    name=f"{_join(name, part)}.{expert}", parameter=stack, expert=expert, transposed=transposed
                )


def _is_conv1d(module: nn.Module) -> bool:
    """Transformers' Conv1D, a linear layer that keeps [in, out]; known without transformers."""
    weight = getattr(module, "weight", None)
    return (
        type(module).__name__ == "Conv1D" and hasattr(module, "nf") and isinstance(weight, Tensor) and weight.dim() == 2  # noqa: PLR2004 -- a matrix
    )


def _not_understood(name: str, module: nn.Module) -> Iterator[tuple[str, str]]:
    """Names and reasons of what is a linear layer but cannot be one of ours."""
    own = dict(module.named_parameters(recurse=False))
    if isinstance(module, nn.Linear):
        if "weight" not in own:
            yield name, "its weight is made from other parameters"
        elif isinstance(own["weight"], UninitializedParameter):
            yield name, "its weight has no shape before the first forward pass"
        return
    kind = type(module).__name__
    known = {part for part, _, _ in expert_stacks(module)}
    for part, parameter in own.items():
        if part in known or part.endswith("bias") or parameter.dim() < 2:  # noqa: PLR2004 -- vectors
            continue
        if "Expert" in kind:
            yield _join(name, part), f"how {kind} keeps its experts is not known"
        elif "Router" in kind:
            yield _join(name, part), "chooses the experts; not an nn.Linear"


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.stride() == other.stride()


def _tied(first: LinearLayer, again: LinearLayer) -> LinearLayer:
    """One layer of two with the same weight, which a model can also hold twice as one module."""
    modules = first.modules + tuple(m for m in again.modules if m not in first.modules)
    return LinearLayer(
        name=first.name, parameter=first.parameter, modules=modules, expert=first.expert, transposed=first.transposed
    )


def _share(layer: LinearLayer, weight: Tensor) -> bool:
    one, other = memory_range(layer.weight), memory_range(weight)
    if one is None or other is None:
        return layer.parameter is weight
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# --- Which weights the result of a forward pass depends on ----------------------------------------

Layers = int
"""A set of layers: bit i for the i-th. A mixture has thousands, and every operation joins sets."""


class WeightUse(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Notes which weights the result of what runs inside it depends on.

    It follows the data from operation to operation, and the result is what the last operation on
    floating-point numbers gives. So a layer that is called for nothing (BERT's pooler, where the
    embedding is a mean over tokens) does not count, and one whose weight a fused operation takes
    without calling the layer (attention output projections) does. Of a stack of experts only those
    count that a token was sent to, if only one of zeros.
    """

    def __init__(self, layers: Sequence[LinearLayer]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._names = [layer.name for layer in layers]
        self._weights = _WeightMap(layers)
        # By storage: what is written through one view is read through another.
        self._sources: dict[StorageWeakRef, Layers] = {}
        self._last: Layers = 0

    @property
    def used(self) -> frozenset[str]:
        """Names of the layers that the result depends on."""
        return frozenset(name for i, name in enumerate(self._names) if self._last >> i & 1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        sources: Layers = 0
        stack, experts = self._chosen(func, args, kwargs)
        for tensor in _tensors((args, kwargs)):
            if tensor is stack:
                for expert in experts:
                    sources |= self._of(tensor[expert])
            else:
                sources |= self._of(tensor)
        for output in _tensors(result):
            # A view of weights depends on what it shows, not on all that it was taken from.
            shown = self._weights.within(memory_range(output))
            storage = _storage(output)
            if storage is not None and not shown:
                key = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # untyped in torch
                self._sources[key] = self._sources.get(key, 0) | sources
            if output.is_floating_point():
                self._last = shown or sources
        return result

    def _chosen(self, func: Any, args: Any, kwargs: Any) -> tuple[Tensor | None, Sequence[int]]:
        """The stack of experts of which an operation takes only some, and which; mostly none."""
        names = _TAKES_SOME.get(func._schema.name)
        if names is None:
            return None, ()
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        stack, choice = given[names[0]], given.get(names[1])
        if not self._weights.within(memory_range(stack)) or given.get("dim", 0) != 0:
            return None, ()
        if names[1] == "indices":
            choice = choice[0]
        if choice is None or choice.dtype in (torch.bool, torch.uint8):
            return None, ()
        if names[1] == "offs":  # where each expert's rows end
            rows = pairwise([0, *choice.tolist()])
            return stack, [expert for expert, (start, end) in enumerate(rows) if start < end]
        return stack, choice.unique().tolist()

    def _of(self, tensor: Tensor) -> Layers:
        if tensor.numel() == 0:  # an expert's answer to no tokens
            return 0
        weights = self._weights.within(memory_range(tensor))
        if weights:
            return weights
        storage = _storage(tensor)
        if storage is None:
            return 0
        key = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # untyped in torch
        return self._sources.get(key, 0)


class _WeightMap:
    """Where the layers' weights lie in memory."""

    def __init__(self, layers: Sequence[LinearLayer]) -> None:
        places: dict[torch.device, list[tuple[int, int, Layers]]] = {}
        for i, layer in enumerate(layers):
            place = memory_range(layer.weight)
            if place is not None:
                places.setdefault(place[0], []).append((*place[1:], 1 << i))
        self._places = {device: sorted(found) for device, found in places.items()}
        self._starts = {device: [start for start, _, _ in found] for device, found in self._places.items()}
        # Nothing before the first place where this exceeds an address reaches that address.
        self._ends = {
            device: list(accumulate((end for _, end, _ in found), max)) for device, found in self._places.items()
        }

    def within(self, place: MemoryRange | None) -> Layers:
        """The layers that have a part of their weight in a range."""
        layers: Layers = 0
        if place is None or place[0] not in self._places:
            return layers
        device, start, end = place
        first = bisect_right(self._ends[device], start)
        behind = bisect_left(self._starts[device], end)
        for _, its_end, layer in self._places[device][first:behind]:
            if its_end > start:
                layers |= layer
        return layers


# Experts run in a loop, or by an operation that gets the whole stack: a selection of a matrix for
# every token, or a grouped product where each expert takes the next few rows of the input. Names of
# the arguments that are the stack and the choice.
_TAKES_SOME = {
    "aten::index": ("self", "indices"),
    "aten::index_select": ("self", "index"),
    "aten::_grouped_mm": ("mat2", "offs"),
    "transformers::grouped_mm_fallback": ("weight", "offs"),
}


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    try:
        storage = tensor.untyped_storage()
        storage.data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and fake tensors have none
        return None
    return storage


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
