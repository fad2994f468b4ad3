"""The weight matrices of a model's linear layers, however the model keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from quantdrift.models.experts import expert_stacks

__all__ = [
    "LinearLayer",
    "MemoryRange",
    "find_linears",
    "left_out",
    "memory_range",
    "modules_of",
]

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
                name=name,
                parameter=weight,
                modules=(module,),
                transposed=not isinstance(module, nn.Linear),
            )
    elif isinstance(module, nn.MultiheadAttention):
        for part in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if part in own:
                yield LinearLayer(name=_join(name, part), parameter=own[part])
    else:
        for part, stack, transposed in expert_stacks(module):
            for expert in range(len(stack)):
                yield LinearLayer(
                    name=f"{_join(name, part)}.{expert}",
                    parameter=stack,
                    expert=expert,
                    transposed=transposed,
                )


def _is_conv1d(module: nn.Module) -> bool:
    """Transformers' Conv1D, a linear layer that keeps [in, out]; known without transformers."""
    weight = getattr(module, "weight", None)
    return (
        type(module).__name__ == "Conv1D"
        and hasattr(module, "nf")
        and isinstance(weight, Tensor)
        and weight.dim() == 2  # noqa: PLR2004 -- a matrix
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
        name=first.name,
        parameter=first.parameter,
        modules=modules,
        expert=first.expert,
        transposed=first.transposed,
    )


def _share(layer: LinearLayer, weight: Tensor) -> bool:
    one, other = memory_range(layer.weight), memory_range(weight)
    if one is None or other is None:
        return layer.parameter is weight
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
