"""The classification head of a model: its last linear layer, which stays at full precision.

If the head is one module with several layers (dense and output projection), all belong to it; layers before the head,
such as BERT's pooler, do not. Embedding models, CLIP and causal language models have no head: an embedding's projection
and the logits of a vocabulary are no classes.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from quantdrift.base.errors import UnknownNameError, UnsupportedError
from quantdrift.models.layers import LinearLayer, find_linears, left_out, named_modules
from quantdrift.scheme import Scheme

NO_HEAD = "none"
"""Given in place of a head's name, so that every layer is quantized."""
HEAD, NO_MODULE = "classification head", "no nn.Linear of its own"
"""Reasons why a layer is left out."""
_CLASSIFIER = re.compile(r"For(Sequence|Image|Audio|Video|Token)Classification")
_NAME = re.compile(r"classif|score|logits_proj|head|^fc$|sequence_summary")
"""Names that transformers gives to heads."""
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Number types of full-precision weights; 8-bit floats are quantized."""


def find_head(modules: Sequence[nn.Module]) -> tuple[str, ...]:
    """Find the modules of the head that timm or transformers gave a classifier, by path; none for other models.

    A distilled model has two.
    """
    for number, root in enumerate(modules):
        for path, module in root.named_modules(prefix=str(number) if len(modules) > 1 else ""):
            if names := _of_timm(root, module) or _of_transformers(module):
                return tuple(f"{path}.{name}" if path else name for name in names)
    return ()


def named_head(modules: Sequence[nn.Module], names: str) -> tuple[str, ...]:
    """Read the head that a user names: paths of modules, separated by commas, or "none"."""
    wanted = () if names == NO_HEAD else tuple(dict.fromkeys(names.split(",")))
    paths = [name for name, _ in named_modules(modules) if name]
    for name in wanted:
        if name not in paths:
            raise UnknownNameError("module", name, paths, hint=f"(the path of a module of the model, or {NO_HEAD})")
    return wanted


def head_modules(modules: Sequence[nn.Module], head: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of a head, and all modules inside them, with their paths."""
    for name, module in named_modules(modules):
        if any(name == top or name.startswith(f"{top}.") for top in head):
            yield name, module


def _of_timm(root: nn.Module, module: Any) -> list[str]:
    """Return the paths of the classifier that a timm model names.

    None if it is part of a larger model, such as the image tower of CLIP: its last layer then gives no classes.
    """
    if not _is_timm(module) or _size(module) != _size(root):
        return []
    said = module.get_classifier()
    heads = {id(head) for head in (said if isinstance(said, tuple | list) else (said,))}
    return [path for path, part in module.named_modules() if id(part) in heads and _size(part)]


def _of_transformers(module: Any) -> list[str]:
    """Return the paths of the head in a classifier of transformers; none for other models."""
    n_labels = getattr(getattr(module, "config", None), "num_labels", None)
    if n_labels is None or not _is_a(module, _CLASSIFIER):
        return []
    inside = [part for part in module.modules() if part is not module]
    if any(_is_a(part, _CLASSIFIER) or _is_timm(part) for part in inside):
        return []  # a wrapper, whose inner model comes next
    fits = [
        name
        for name, child in module.named_children()
        if not any(_is_a(part, "^PreTrainedModel$") for part in child.modules())
        and any(_width(part) == n_labels for part in child.modules())
    ]
    # some have it inside the body, or under another name
    last = [path for path, part in module.named_modules() if _width(part) == n_labels]
    return [name for name in fits if _NAME.search(name)] or fits[-1:] or last[-1:]


def _is_a(module: nn.Module, pattern: str | re.Pattern[str]) -> bool:
    return any(re.search(pattern, kind.__name__) for kind in type(module).__mro__)


def _is_timm(module: nn.Module) -> bool:
    return hasattr(module, "get_classifier") and hasattr(module, "default_cfg")


def _width(module: Any) -> int | None:
    """Return the number of outputs of a linear layer; None for other modules."""
    if isinstance(module, nn.Linear):
        return module.out_features
    return int(module.nf) if type(module).__name__ == "Conv1D" and hasattr(module, "nf") else None


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# --- the layers that a pair quantizes ------------------------------------------------------------


def quantizable_layers(
    modules: Sequence[nn.Module], name: str, scheme: Scheme
) -> tuple[list[LinearLayer], dict[str, str]]:
    """Return the linear layers to quantize, in order of definition, and a mapping of those left out to the reasons.

    Their weights are floating-point numbers in memory. A classification head is left out; with `+layers=linear` so is
    every layer that is no nn.Linear. There may be none if the scheme quantizes no linear layer.
    """
    linears = find_linears(modules)
    if adapter := next((path for path, module in named_modules(modules) if hasattr(module, "lora_A")), None):
        raise UnsupportedError(
            f"{name} has an adapter beside its weights ({adapter}), which is not quantized by itself; merge it first: "
            "model.merge_and_unload()"
        )
    if not linears and scheme.full_precision:
        refuse_broken(modules, name)
        return [], {}
    if not linears:
        raise UnsupportedError(
            f"{name} has no nn.Linear layer to quantize; expected a torch model with linear layers (not bm25 or an "
            "API), or for a static embedding its embedding matrix alone: fp+table=8"
        )
    head = scheme.option("head")
    head_paths = find_head(modules) if head is None else named_head(modules, head)
    in_head = _in_head(linears, modules, head_paths)
    out = {layer.name: HEAD for layer in in_head}
    if scheme.option("layers") is not None:
        kept = {id(part.weight) for _, part in named_modules(modules) if isinstance(part, nn.Linear)}
        out |= {layer.name: NO_MODULE for layer in linears if id(layer.parameter) not in kept}
    layers = [layer for layer in linears if layer.name not in out]
    if not layers or (head_paths and head is not None and not in_head):
        held = ", ".join(layer.name for layer in in_head) or "none"
        raise UnsupportedError(
            f"of the nn.Linear layers of {name} its head holds {held}, and {len(layers)} are left to quantize; "
            f"expected some of both. +head={NO_HEAD} quantizes the head, +head=NAME names another"
        )
    refuse_unfit(layers, name)
    refuse_broken(modules, name)
    return layers, left_out(modules) | out


def refuse_broken(modules: Sequence[nn.Module], name: str) -> None:
    """Refuse NaN and infinity among the weights, as in a damaged or overflowed checkpoint."""
    for path, parameter in (named for module in modules for named in module.named_parameters()):
        if parameter.numel() and parameter.is_floating_point() and not parameter.is_meta:
            ends = torch.stack(torch.aminmax(parameter.detach()))
            if not bool(ends.isfinite().all()):
                raise UnsupportedError(
                    f"{path} of {name} holds NaN or infinity; expected finite weights. Copy the model again, or load "
                    "it in float32"
                )


def refuse_unfit(layers: Sequence[LinearLayer], name: str) -> None:
    """Refuse layers whose weights are quantized already or not in memory."""
    for layer in layers:
        if layer.parameter.dtype not in _DTYPES or layer.parameter.is_meta:
            raise UnsupportedError(
                f"the layer {layer.name} of {name} is {layer.parameter.dtype} on {layer.parameter.device}; a pair "
                "starts from a model with floating-point weights, not one that is already quantized or offloaded"
            )


def _in_head(linears: Sequence[LinearLayer], modules: Sequence[nn.Module], head: Sequence[str]) -> list[LinearLayer]:
    """Return the layers of a head, including one that shares its weight with a layer elsewhere."""
    inside = dict(head_modules(modules, head))
    modules_inside = {id(module) for module in inside.values()}
    return [
        layer
        for layer in linears
        if any(id(module) in modules_inside for module in layer.modules)
        # experts and the projections of attention have no module of their own
        or any(layer.name.startswith(f"{path}.") for path in inside)
    ]
