"""What a whole-model quantizer runs: texts without padding, and blocks one after another.

It gives the model token ids and an attention mask, and nothing else. It gives every block the
hidden states that the block before it put out, and the keyword inputs of the first block. A model
that needs more would be calibrated on something that it never sees; it is found out here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.errors import UnsupportedError

__all__ = ["Example", "block_list", "check_blocks", "examples_of", "transformers_model"]

Example = dict[str, Tensor]
"""Texts of one length: "input_ids" and "attention_mask", int64 [n, n_tokens], on the CPU."""

_INSTEAD = "use +backend=gptqmodel, which calibrates on whatever the model is run with"
_TOLERANCE = 1e-3
_LOW_PRECISION_TOLERANCE = 0.1


def transformers_model(modules: Sequence[nn.Module]) -> nn.Module:
    """The one transformers model among the modules.

    Raises:
        UnsupportedError: there is none, or there are several, or it has an encoder and a decoder.
    """
    from transformers import PreTrainedModel  # noqa: PLC0415 -- comes with the library

    found: list[nn.Module] = []
    inner: set[nn.Module] = set()
    for root in modules:
        for module in root.modules():
            if isinstance(module, PreTrainedModel) and module not in inner:
                found.append(module)
                inner.update(module.modules())
    if len(found) != 1:
        kinds = ", ".join(type(one).__name__ for one in found) or "none"
        raise UnsupportedError(f"optimum quantizes one transformers model, got {kinds}; {_INSTEAD}")
    model = found[0]
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise UnsupportedError(
            f"optimum quantizes one list of blocks, and {type(model).__name__} has an encoder and "
            f"a decoder; {_INSTEAD}"
        )
    return model


def block_list(model: nn.Module) -> str:
    """Path of the model's blocks: of the outermost lists of modules, that with most parameters.

    Raises:
        UnsupportedError: the model has no list of modules.
    """
    lists: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        nested = any(name.startswith(f"{outer}.") for outer in lists)
        if isinstance(module, nn.ModuleList) and len(module) and not nested:
            lists[name] = module
    if not lists:
        raise UnsupportedError(
            f"optimum quantizes a list of blocks, and {type(model).__name__} has none; {_INSTEAD}"
        )
    return max(lists, key=lambda name: sum(p.numel() for p in lists[name].parameters()))


def examples_of(
    model: nn.Module, blocks: nn.ModuleList, batches: Sequence[Callable[[], object]]
) -> list[Example]:
    """Run the batches, and take what the model was given apart into examples without padding.

    Args:
        model: a transformers model.
        blocks: its blocks.
        batches: each runs the model on one batch of calibration inputs.

    Returns:
        Texts of the same batch and length are one example; each has at least one token.

    Raises:
        UnsupportedError: the model was given something that optimum does not pass on, or its blocks
            do not work as optimum runs them.
    """
    calls: list[Mapping[str, Any]] = []
    parameters = inspect.signature(model.forward)

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(parameters.bind(*args, **kwargs).arguments)
        for name, kind in parameters.parameters.items():
            if kind.kind is kind.VAR_KEYWORD:
                given |= given.pop(name, {})
        calls.append(given)

    examples: list[Example] = []
    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        for batch in batches:
            batch()
            for given in calls:
                examples += _taken_apart(model, given)
            calls.clear()
    finally:
        hook.remove()
    if not examples:
        raise UnsupportedError(
            f"optimum calls {type(model).__name__} on token ids, and no calibration input was a "
            f"call of it; {_INSTEAD}"
        )
    return examples


def _taken_apart(model: nn.Module, given: Mapping[str, Any]) -> Iterator[Example]:
    others = {name for name, value in given.items() if _matters(name, value)}
    if others or not isinstance(given.get("input_ids"), Tensor):
        what = ", ".join(sorted(others)) or "no input_ids"
        raise UnsupportedError(
            "optimum gives a model input_ids and attention_mask and drops the rest, and "
            f"{type(model).__name__} was given {what}; {_INSTEAD}"
        )
    ids: Tensor = given["input_ids"].detach().cpu()
    mask = given.get("attention_mask")
    real = torch.ones_like(ids) if mask is None else mask.detach().cpu()
    lengths = real.bool().sum(dim=1)
    for length in lengths.unique().tolist():
        if length:
            rows = lengths == length
            texts = ids[rows][real[rows].bool()].view(-1, length)
            yield {"input_ids": texts, "attention_mask": torch.ones_like(texts)}


def _matters(name: str, value: object) -> bool:
    """Whether an input beside ids and mask may change what the blocks see."""
    if name in {"input_ids", "attention_mask"} or value is None or isinstance(value, bool | int):
        return False
    return not (name == "token_type_ids" and isinstance(value, Tensor) and not bool(value.any()))
