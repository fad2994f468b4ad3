"""The classification head of a model: its last linear layer, which stays at full precision.

Of a head that is several layers in one module (dense and output projection) all belong to it; what a model computes
before its head, as BERT's pooler, does not. Embedding models, CLIP and causal language models have none: an
embedding's projection and a vocabulary's logits are no classes.
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
"""In place of a head's name: every layer is quantized."""
HEAD, NO_MODULE = "classification head", "no nn.Linear of its own"
"""Why a layer is left out."""
_CLASSIFIER = re.compile(r"For(Sequence|Image|Audio|Video|Token)Classification")
_NAME = re.compile(r"classif|score|logits_proj|head|^fc$|sequence_summary")
"""What transformers calls heads; a distilled model has two."""
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Number types of full-precision weights; an 8-bit float is a quantized one."""


def find_head(modules: Sequence[nn.Module]) -> tuple[str, ...]:
    """Paths of the head's modules that timm or transformers gave a model; none if neither did, or it is no classifier.

    There are several of a distilled model.
    """
    for number, root in enumerate(modules):
        for path, module in root.named_modules(prefix=str(number) if len(modules) > 1 else ""):
            if names := _of_timm(root, module) or _of_transformers(module):
                return tuple(f"{path}.{name}" if path else name for name in names)
    return ()


def named_head(modules: Sequence[nn.Module], names: str) -> tuple[str, ...]:
    """The head that a user names, by paths of modules with commas between; none for "none"."""
    wanted = () if names == NO_HEAD else tuple(dict.fromkeys(names.split(",")))
    paths = [name for name, _ in named_modules(modules) if name]
    for name in wanted:
        if name not in paths:
            raise UnknownNameError("module", name, paths, hint=f"(the path of a module of the model, or {NO_HEAD})")
    return wanted


def head_modules(modules: Sequence[nn.Module], head: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a head with their paths, those inside included."""
    for name, module in named_modules(modules):
        if any(name == top or name.startswith(f"{top}.") for top in head):
            yield name, module


def _of_timm(root: nn.Module, module: Any) -> list[str]:
    """Paths in a timm model of what it says is its classifier.

    As part of something larger (an image tower of CLIP) its last layer gives no classes.
    """
    if not _is_timm(module) or _size(module) != _size(root):
        return []
    said = module.get_classifier()
    heads = {id(head) for head in (said if isinstance(said, tuple | list) else (said,))}
    return [path for path, part in module.named_modules() if id(part) in heads and _size(part)]


def _of_transformers(module: Any) -> list[str]:
    """Paths of the head in a classifier of transformers; of nothing else."""
    n_labels = getattr(getattr(module, "config", None), "num_labels", None)
    if n_labels is None or not _is_a(module, _CLASSIFIER):
        return []
    inside = [part for part in module.modules() if part is not module]
    if any(_is_a(part, _CLASSIFIER) or _is_timm(part) for part in inside):
        return []  # a wrapper; what it holds comes next
    fits = [
        name
        for name, child in module.named_children()
        if not any(_is_a(part, "^PreTrainedModel$") for part in child.modules())
        and any(_width(part) == n_labels for part in child.modules())
    ]
    # some keep it inside of the body, or under a name of their own
    last = [path for path, part in module.named_modules() if _width(part) == n_labels]
    return [name for name in fits if _NAME.search(name)] or fits[-1:] or last[-1:]


def _is_a(module: nn.Module, pattern: str | re.Pattern[str]) -> bool:
    return any(re.search(pattern, kind.__name__) for kind in type(module).__mro__)


def _is_timm(module: nn.Module) -> bool:
    return hasattr(module, "get_classifier") and hasattr(module, "default_cfg")


def _width(module: Any) -> int | None:
    """The number of outputs of a linear layer; None for anything else."""
    if isinstance(module, nn.Linear):
        return module.out_features
    return int(module.nf) if type(module).__name__ == "Conv1D" and hasattr(module, "nf") else None


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# --- the layers that a pair quantizes, and those that it leaves alone -----------------------------


def quantizable_layers(
    modules: Sequence[nn.Module], name: str, scheme: Scheme
) -> tuple[list[LinearLayer], dict[str, str]]:
    """The linear layers that are quantized, in order of definition, and name to reason of those left out.

    All have floating-point weights in memory; a classification head is out, and with `+layers=linear` what no nn.Linear
    keeps. Where the scheme leaves layers alone, there may be none.
    """
    linears = find_linears(modules)
    if adapter := next((path for path, module in named_modules(modules) if hasattr(module, "lora_A")), None):
        raise UnsupportedError(
            f"{name} has an adapter beside its weights ({adapter}), which nobody rounds by itself; merge it into them "
            "first: model.merge_and_unload()"
        )
    if not linears and scheme.full_precision:
        refuse_broken(modules, name)
        return [], {}
    if not linears:
        raise UnsupportedError(
            f"{name} has no nn.Linear layer, which a width is of; expected a torch model with linear layers (not bm25 "
            "or an API), or of a static embedding its embedding matrix alone: fp+table=8"
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
    """Refuse weights that are no numbers, of which a damaged or overflowed checkpoint is made."""
    for path, parameter in (named for module in modules for named in module.named_parameters()):
        if parameter.numel() and parameter.is_floating_point() and not parameter.is_meta:
            ends = torch.stack(torch.aminmax(parameter.detach()))
            if not bool(ends.isfinite().all()):
                raise UnsupportedError(
                    f"{path} of {name} holds NaN or infinity; expected finite weights. Copy the model again, or load "
                    "it in float32"
                )


def refuse_unfit(layers: Sequence[LinearLayer], name: str) -> None:
    """Refuse weights that are quantized already, or not in memory."""
    for layer in layers:
        if layer.parameter.dtype not in _DTYPES or layer.parameter.is_meta:
            raise UnsupportedError(
                f"the layer {layer.name} of {name} is {layer.parameter.dtype} on {layer.parameter.device}; a pair "
                "starts from a model with floating-point weights, not one that is already quantized or offloaded"
            )


def _in_head(linears: Sequence[LinearLayer], modules: Sequence[nn.Module], head: Sequence[str]) -> list[LinearLayer]:
    """The layers of a head; one whose weight a layer elsewhere shares is among them."""
    inside = dict(head_modules(modules, head))
    modules_inside = {id(module) for module in inside.values()}
    return [
        layer
        for layer in linears
        if any(id(module) in modules_inside for module in layer.modules)
        # experts and the projections of attention have no module of their own
        or any(layer.name.startswith(f"{path}.") for path in inside)
    ]
