"""The weight matrices of a model's linear layers, however it stores them, and which of them a result depends on."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_SEARCH_DEPTH = 3
_STORAGES = 64
"""Number of storages beyond which those of freed tensors are forgotten."""
_MATRIX, _STACK = 2, 3
"""Dimensions of a weight matrix, and of a parameter that holds one matrix for each expert."""
_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""The weights that torch's attention multiplies its inputs by."""

MemoryRange = tuple[torch.device, int, int]
"""Device, address of the first byte, address after the last byte."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearLayer:
    """One weight matrix that inputs are multiplied by; layers that share a weight count as one.

    Attributes:
        name: path in the model: the first of tied layers; "...gate_up_proj.3" for an expert.
        parameter: the parameter of the model: the matrix, its transpose, or a stack of either.
        modules: the modules, all tied ones, that multiply by this weight when they are called; empty for experts and
            for torch's attention, which multiply by themselves.
        inside: the module whose forward multiplies by an expert or by a weight of torch's attention; else None.
        expert: index into a stack; None if the parameter is one matrix.
        transposed: whether the parameter keeps the matrix as [in_features, out_features].
    """

    name: str
    parameter: nn.Parameter
    modules: tuple[nn.Module, ...] = ()
    inside: nn.Module | None = None
    expert: int | None = None
    transposed: bool = False

    @property
    def weight(self) -> Tensor:
        """The matrix [out_features, in_features], a view: writing to it changes the model."""
        return self.part(self.parameter.detach())

    @property
    def owners(self) -> dict[Tensor, None]:
        """The parameters that hold the weight: several where layers are tied by equal memory."""
        return dict.fromkeys([self.parameter, *(module.get_parameter("weight") for module in self.modules)])

    def part(self, tensor: Tensor) -> Tensor:
        """The view [out_features, in_features] of this layer in a tensor of the parameter's shape."""
        matrix = tensor if self.expert is None else tensor[self.expert]
        return matrix.t() if self.transposed else matrix


def modules_of(model: object) -> list[nn.Module]:
    """Find the outermost torch modules in a model object of any harness, in its attributes, lists and dicts.

    There are none in an API client or bm25.
    """
    outermost: list[nn.Module] = []
    seen: set[int] = set()

    def search(value: object, depth: int) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            outermost.append(value)
        elif depth < _SEARCH_DEPTH:
            held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
            for part in value if isinstance(value, list | tuple) else list(held.values()):
                search(part, depth + 1)

    search(model, 0)
    inner = {id(child) for root in outermost for child in root.modules() if child is not root}
    return [module for module in outermost if id(module) not in inner]


def named_modules(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules by path; with more than one outermost module, paths start with its number."""
    for number, root in enumerate(modules):
        yield from root.named_modules(prefix=str(number) if len(modules) > 1 else "")


def find_linears(modules: Sequence[nn.Module]) -> list[LinearLayer]:
    """Find every linear layer of the modules, tied ones once, in order of definition.

    Beside nn.Linear these are GPT-2's Conv1D, the projections inside nn.MultiheadAttention, and the experts of a
    mixture. With more than one outermost module, names start with its number.
    """
    return _survey(modules)[0]


def left_out(modules: Sequence[nn.Module]) -> dict[str, str]:
    """Map the names of the linear layers that `find_linears` passes over to the reasons."""
    return _survey(modules)[1]


def memory_range(tensor: Tensor) -> MemoryRange | None:
    """Return the memory that a tensor spans, including gaps between its elements.

    None for a tensor without memory of its own: empty, meta, sparse, or a wrapper of other tensors.
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
    named = list(named_modules(modules))
    embeddings = [(name, module.weight) for name, module in named if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    layers: dict[object, LinearLayer] = {}
    omitted: dict[str, str] = {}
    for name, module in named:
        for layer in _linears_in(name, module):
            if isinstance(layer, tuple):
                omitted[layer[0]] = layer[1]
                continue
            shared = next((other for other, weight in embeddings if _overlap(layer, weight)), None)
            key = memory_range(layer.weight) or (id(layer.parameter), layer.expert)
            first = layers.get(key)
            if shared is not None:
                omitted[layer.name] = f"shares its weight with the embedding {shared}"
            elif first is None:
                layers[key] = layer
            elif (first.weight.shape, first.weight.stride()) != (layer.weight.shape, layer.weight.stride()):
                omitted[layer.name] = f"shares its weight, transposed, with {first.name}"
            else:
                layers[key] = replace(first, modules=tuple(dict.fromkeys(first.modules + layer.modules)))
    return list(layers.values()), omitted


def _linears_in(name: str, module: nn.Module) -> Iterator[LinearLayer | tuple[str, str]]:
    """Yield the matrices of a module without its children; for one that is passed over, its name and the reason."""
    parameters = dict(module.named_parameters(recurse=False))
    conv1d = type(module).__name__ == "Conv1D" and hasattr(module, "nf")  # known without transformers
    if isinstance(module, nn.Linear) or conv1d:
        weight = parameters.get("weight")
        called = () if isinstance(module, NonDynamicallyQuantizableLinear) else (module,)
        if weight is None or isinstance(weight, UninitializedParameter):
            yield name, "its weight is made from other parameters, or in the first forward pass"
        else:
            yield LinearLayer(name=name, parameter=weight, modules=called, transposed=conv1d)
    elif isinstance(module, nn.MultiheadAttention):
        path = f"{name}." if name else ""
        parameters["out_proj"] = module.out_proj.get_parameter("weight")
        for part in (*_ATTENTION, "out_proj"):
            if part in parameters:
                yield LinearLayer(name=path + part, parameter=parameters[part], inside=module)
    else:
        yield from _experts_in(f"{name}." if name else "", module, parameters)


def _experts_in(
    path: str, module: nn.Module, parameters: Mapping[str, nn.Parameter]
) -> Iterator[LinearLayer | tuple[str, str]]:
    kind, stacks = type(module).__name__, _expert_stacks(module, parameters)
    # one expert after another, as they run: calibration takes layers in this order
    for expert in range(len(parameters[next(iter(stacks))]) if stacks else 0):
        for part, parameter in parameters.items():
            if part in stacks:
                yield LinearLayer(
                    name=f"{path}{part}.{expert}",
                    parameter=parameter,
                    inside=module,
                    expert=expert,
                    transposed=stacks[part],
                )
    for part, parameter in parameters.items():
        name = path + part
        if part not in stacks and parameter.dim() >= _MATRIX and not part.endswith("bias"):
            if "Expert" in kind:
                yield name, f"how {kind} keeps its experts is not known"
            elif "Router" in kind:
                yield name, "chooses the experts; not an nn.Linear"


def _expert_stacks(module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> dict[str, bool]:
    """Map parameters with one matrix per expert to whether they store it as [in, out].

    Known are modules with the attributes of transformers' experts interface (`has_gate`, `is_transposed`); those with
    a `gate_up_proj` and a `down_proj`, where the shapes tell; and those that hold `num_experts` times a `weight`
    [`output_size`, `input_size`].
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items() if parameter.dim() == _STACK}
    up, down = shapes.get("gate_up_proj"), shapes.get("down_proj")
    transposed = getattr(module, "is_transposed", None) if hasattr(module, "has_gate") else None
    if not isinstance(transposed, bool) and up is not None and down is not None:
        # With hidden size h and width w: (2w, h) and (h, w), or (h, 2w) and (w, h). No sizes fit both.
        straight, turned = up[1:] == (2 * down[2], down[1]), up[1:] == (down[2], 2 * down[1])
        transposed = turned if straight or turned else None
    if isinstance(transposed, bool):
        return dict.fromkeys(shapes.keys() & {"gate_up_proj", "up_proj", "down_proj"}, transposed)
    sizes = tuple(getattr(module, name, None) for name in ("num_experts", "output_size", "input_size"))
    return {"weight": False} if shapes.get("weight") == sizes else {}


def _overlap(layer: LinearLayer, weight: Tensor) -> bool:
    place, other = memory_range(layer.weight), memory_range(weight)
    if place is None or other is None:
        return layer.parameter is weight
    return place[0] == other[0] and place[1] < other[2] and other[1] < place[2]


# --- Which weights the result of a forward pass depends on ----------------------------------------


class WeightUse(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Finds the weights that a result depends on.

    It follows the data through the operations inside it; the result is the output of the last operation on
    floating-point numbers. So a layer that is called for nothing (BERT's pooler, where the embedding is a mean over
    tokens) does not count, and one whose weight a fused operation takes without calling the layer does.
    """

    def __init__(self, layers: Sequence[LinearLayer]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._names = [layer.name for layer in layers]
        # a set of layers is a number, with bit i for the i-th: every operation joins sets
        ranges = [(memory_range(layer.weight), 1 << i) for i, layer in enumerate(layers)]
        self._places = sorted((*place[1:], bit) for place, bit in ranges if place is not None)
        self._starts = [start for start, _, _ in self._places]
        # nothing before the first place where this exceeds an address reaches that address
        self._ends = list(accumulate((end for _, end, _ in self._places), max))
        # by storage, as one view may read what another wrote
        self._sources: dict[Any, int] = {}
        self._last = 0

    @property
    def used(self) -> frozenset[str]:
        """Names of the layers that the result depends on."""
        return frozenset(name for i, name in enumerate(self._names) if self._last >> i & 1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sources = 0
        if len(self._sources) > _STORAGES:  # entries of freed tensors would keep holes in the heap open
            self._sources = {storage: of for storage, of in self._sources.items() if not storage.expired()}
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor) and tensor.numel():  # none: an expert's answer to no tokens
                sources |= self._shown(tensor) or self._sources.get(_storage(tensor), 0)
        for output in tree_leaves(result):
            if isinstance(output, Tensor):
                # a view of weights depends on what it shows, not on all that it was taken from
                shown, storage = self._shown(output), _storage(output)
                if storage is not None and not shown:
                    self._sources[storage] = self._sources.get(storage, 0) | sources
                if output.is_floating_point():
                    self._last = shown or sources
        return result

    def _shown(self, tensor: Tensor) -> int:
        """The layers whose weight overlaps the memory of a tensor."""
        layers, place = 0, memory_range(tensor)
        if place is not None:
            _, start, end = place
            for _, its_end, layer in self._places[bisect_right(self._ends, start) : bisect_left(self._starts, end)]:
                if its_end > start:
                    layers |= layer
        return layers


def _storage(tensor: Tensor) -> Any:
    """Return a reference to a tensor's storage (for a sparse one, that of its values); None for a fake tensor."""
    try:
        if tensor.layout is not torch.strided:
            tensor = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
        storage = tensor.untyped_storage()
        storage.data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # untyped in torch
