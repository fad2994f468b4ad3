"""What a transformers model is given while it runs, taken apart into texts without padding."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from quantdrift.errors import UnsupportedError

__all__ = ["INSTEAD", "Example", "calls_of", "examples_of", "taken_apart"]

Example = dict[str, Tensor]
"""Texts of one length: "input_ids" and "attention_mask", int64 [n, n_tokens], on the CPU."""

INSTEAD = "use +backend=gptqmodel, which calibrates on whatever the model is run with"
"""What a message recommends for a model that optimum cannot take."""


def examples_of(model: nn.Module, batches: Sequence[Callable[[], object]]) -> list[Example]:
    """Run the batches, and take apart what the model is given.

    Args:
        model: a transformers model.
        batches: each runs the model on one batch of calibration inputs.

    Returns:
        Texts of the same call and length are one example; each has at least one token.

    Raises:
        UnsupportedError: the model was given something that optimum does not pass on.
    """
    examples: list[Example] = []
    for batch in batches:
        with calls_of(model) as calls:
            batch()
        for given in calls:
            examples += taken_apart(model, given)
    if not examples:
        raise UnsupportedError(
            f"optimum calls {type(model).__name__} on token ids, and no calibration input was a "
            f"call of it; {INSTEAD}"
        )
    return examples


@contextmanager
def calls_of(model: nn.Module) -> Iterator[list[Mapping[str, Any]]]:
    """What the model is given in each of its calls, by the names of its parameters.

    A hook would miss calls of `forward` itself, which is how sentence-transformers calls a model.
    """
    calls: list[Mapping[str, Any]] = []
    forward = model.forward
    signature = inspect.signature(forward)
    rest = [one.name for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD]

    @functools.wraps(forward)
    def noted(*args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(*args, **kwargs).arguments)
        for name in rest:
            given |= given.pop(name, {})
        calls.append(given)
        return forward(*args, **kwargs)

    before = vars(model).get("forward")
    model.forward = noted
    try:
        yield calls
    finally:
        if before is None:
            del model.forward
        else:
            model.forward = before


def taken_apart(model: nn.Module, given: Mapping[str, Any]) -> Iterator[Example]:
    """The texts of one call, those of the same length together.

    Args:
        model: for the message.
        given: as from `calls_of`.

    Raises:
        UnsupportedError: optimum would drop some of what was given.
    """
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    dropped = [name for name, value in given.items() if _matters(name, value)]
    if isinstance(mask, Tensor) and isinstance(ids, Tensor) and mask.shape != ids.shape:
        dropped.append(f"attention_mask {list(mask.shape)}")
    if dropped or not isinstance(ids, Tensor):
        raise UnsupportedError(
            "optimum gives a model token ids and their attention mask, and drops the rest; "
            f"{type(model).__name__} was given {', '.join(dropped) or 'no input_ids'}; {INSTEAD}"
        )
    real = torch.ones_like(ids).bool() if mask is None else mask.bool()
    lengths = real.sum(dim=1)
    for length in lengths.unique().tolist():
        rows = lengths == length
        if length:
            texts = ids[rows][real[rows]].view(-1, length).cpu()
            yield {"input_ids": texts, "attention_mask": torch.ones_like(texts)}


def _matters(name: str, value: object) -> bool:
    """Whether an input beside ids and mask may change what the blocks see."""
    if name in {"input_ids", "attention_mask"} or value is None or isinstance(value, bool | int):
        return False
    return not (name == "token_type_ids" and isinstance(value, Tensor) and not bool(value.any()))
