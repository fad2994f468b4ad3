"""What a library changes on a model is taken back, also where it stops in the middle."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from quantdrift.engine.weights import left_as_it_was


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    made.config = SimpleNamespace(use_cache=True)  # type: ignore[assignment]  # as in transformers
    return made.eval()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_attributes_hooks_modules_and_settings_come_back(error: type[BaseException] | None) -> None:
    found, seen = model(), []
    first = found[0]
    first.register_forward_hook(lambda *_: seen.append("mine"))
    with nullcontext() if error is None else pytest.raises(error), left_as_it_was(found):
        found.train()
        found.is_quantized = True  # type: ignore[assignment]  # what optimum sets
        found.config.use_cache = False
        found.config.quantization_config = {"bits": 4}
        first.register_forward_hook(lambda *_: seen.append("theirs"))
        first.target_device = "cpu"  # type: ignore[assignment]  # what gptqmodel sets
        found[0] = nn.Identity()
        del found[1].eps
        if error is not None:
            raise error
    assert found[0] is first
    found(torch.zeros(1, 2))
    assert seen == ["mine"]
    assert not any(module.training for module in found.modules())
    assert not hasattr(found, "is_quantized")
    assert not hasattr(first, "target_device")
    assert vars(found.config) == {"use_cache": True}
    assert found[1].eps == 1e-5


def test_parameters_and_buffers_come_back_to_their_memory_and_what_is_written_there_stays() -> None:
    """A library that moves a block to another device and back leaves it in another place."""
    found = model()
    tensors = [*found.parameters(), *found.buffers()]
    before = [(id(tensor), tensor.data_ptr(), tensor.dtype) for tensor in tensors]
    with torch.no_grad(), left_as_it_was(found):
        found[0].weight.fill_(3)
        found.to(torch.float64)
        assert found[0].weight.dtype == torch.float64
    again = [*found.parameters(), *found.buffers()]
    assert [(id(tensor), tensor.data_ptr(), tensor.dtype) for tensor in again] == before
    assert bool((found[0].weight == 3).all())
