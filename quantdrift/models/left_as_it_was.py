"""A model that is as it was when others are done with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

__all__ = ["left_as_it_was"]


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """When the block is left, by an error too, the model's modules have what they had before.

    That is: submodules, attributes, hooks, training or evaluation mode, the memory and device of
    every parameter and buffer, and the attributes of configurations. What was written into the same
    memory stays.

    Args:
        model: the outermost module that the block may change.
    """
    modules = list(model.modules())
    configs = {id(c): c for m in modules if (c := getattr(m, "config", None)) is not None}
    objects: list[Any] = [*modules, *configs.values()]
    attributes = [(vars(one), dict(vars(one))) for one in objects]
    parts = [
        (inner, dict(inner)) for one in modules for inner in vars(one).values() if _is_dict(inner)
    ]
    tensors = [(one, one.data) for one in (*model.parameters(), *model.buffers())]
    try:
        yield
    finally:
        for now, before in (*attributes, *parts):
            now.clear()
            now.update(before)
        for tensor, data in tensors:
            tensor.data = data


def _is_dict(value: object) -> bool:
    """Of hooks, parameters, buffers and submodules, which modules keep in dictionaries."""
    return isinstance(value, dict)
