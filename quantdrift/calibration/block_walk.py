"""Which models optimum can walk: their blocks, run one after another, are the model.

optimum gives every block the hidden states that the block before it put out, and the keyword inputs
of the first block. A model whose blocks need more (a mask or positions of their own, something by
position) would be calibrated on activations that it never has; it is found out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from quantdrift.calibration.text_examples import INSTEAD, Example, calls_of, taken_apart
from quantdrift.errors import UnsupportedError

__all__ = ["block_list", "check_blocks", "transformers_model"]

_ONLY_IDS = "optimum gives a model token ids and their attention mask only, without padding"
_ALONE = (
    "optimum runs each block by itself, on the output of the one before and the keyword inputs of "
    "the first"
)
_IN_A_BATCH, _ON_ONE_TEXT = (1e-3, 0.1), (1e-3, 0.01)
"""Relative difference of hidden states up to which they are the same, in full and low precision;
the same text without padding goes through other kernels than in a batch."""


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
        raise UnsupportedError(f"optimum quantizes one transformers model, got {kinds}; {INSTEAD}")
    model = found[0]
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise UnsupportedError(
            f"optimum quantizes one list of blocks, and {type(model).__name__} has an encoder and "
            f"a decoder; {INSTEAD}"
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
            f"optimum quantizes a list of blocks, and {type(model).__name__} has none; {INSTEAD}"
        )
    return max(lists, key=lambda name: sum(p.numel() for p in lists[name].parameters()))


def check_blocks(model: nn.Module, name: str, batch: Callable[[], object]) -> bool:
    """Check on one text that what optimum runs is what the model does.

    Twice: a call with nothing but token ids and mask against the batch's own call, and the blocks
    one after another against that call.

    Args:
        model: a transformers model, set as optimum sets it.
        name: path of its blocks.
        batch: runs the model on calibration inputs; the first text is compared.

    Returns:
        Whether there was a text to compare.

    Raises:
        UnsupportedError: a block cannot be run by itself, or gives other outputs.
    """
    blocks = list(cast(nn.ModuleList, model.get_submodule(name)))
    with calls_of(model) as calls, _first_outputs(blocks) as in_batch:
        batch()
    text = {key: _first_row(value) for key, value in calls[0].items()} if calls else {}
    for example in taken_apart(model, text) if calls else ():  # at most one
        with _first_outputs(blocks) as in_model:
            hidden, shared = _first_inputs(model, blocks[0], example)
        mask = text.get("attention_mask")
        for number in range(len(blocks)):
            wanted = in_batch.get(number)
            if wanted is not None and mask is not None and mask.shape == wanted.shape[:-1]:
                wanted = wanted[:, mask[0].bool()]
            _expect(wanted, in_model.get(number), _ONLY_IDS, number, _IN_A_BATCH)
        for number, block in enumerate(blocks):
            try:
                output = block(hidden, **shared)
            except Exception as error:
                raise UnsupportedError(
                    f"{_ALONE}; block {number} of {name} cannot be run so "
                    f"({type(error).__name__}: {error}); {INSTEAD}"
                ) from error
            hidden = output[0] if isinstance(output, tuple) else output
            _expect(in_model.get(number), hidden, _ALONE, number, _ON_ONE_TEXT)
        return True
    return False


def _first_inputs(
    model: nn.Module, block: nn.Module, example: Example
) -> tuple[Tensor, dict[str, Any]]:
    """What optimum takes of the first call of a block: hidden states and keyword inputs."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = block.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True
    )
    device = next(model.parameters()).device
    try:
        model(**{key: value.to(device) for key, value in example.items()})
    finally:
        hook.remove()
    args, kwargs = seen[0]
    shared = {key: value for key, value in kwargs.items() if key != "hidden_states"}
    return kwargs.get("hidden_states", *args[:1]), shared


@contextmanager
def _first_outputs(blocks: Sequence[nn.Module]) -> Iterator[dict[int, Tensor]]:
    """Number of a block to what it put out for the first text of its first call inside."""
    outputs: dict[int, Tensor] = {}

    def keep(number: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            if number not in outputs and isinstance(hidden, Tensor):
                outputs[number] = hidden[:1].detach().clone()

        return hook

    with ExitStack() as stack:
        for number, block in enumerate(blocks):
            stack.callback(block.register_forward_hook(keep(number)).remove)
        yield outputs


def _first_row(value: Any) -> Any:
    return value[:1] if isinstance(value, Tensor) and value.dim() else value


def _expect(
    wanted: Tensor | None, found: Tensor | None, how: str, number: int, same: tuple[float, float]
) -> None:
    """Compare hidden states [1, n_tokens, dim], token by token; None is like nothing."""
    difference, (most, most_in_low_precision) = math.inf, same
    if wanted is not None and found is not None and wanted.shape == found.shape:
        exact = wanted.float()
        apart = (found.float() - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-12)
        difference = float(apart.max())
        if found.dtype not in {torch.float32, torch.float64}:
            most = most_in_low_precision
    if not difference < most:
        raise UnsupportedError(
            f"{how}; block {number} then gives outputs that differ by {difference:.1%} from those "
            f"in the model; {INSTEAD}"
        )
