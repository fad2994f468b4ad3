"""What a library changes on a model is taken back, also where it stops in the middle."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from quantdrift.engine.weights import restoring


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    made.config = SimpleNamespace(use_cache=True)  # type: ignore[assignment]  # as in transformers
    return made.eval()


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_attributes_hooks_modules_and_settings_come_back(error: type[BaseException] | None) -> None:
    changed, seen = model(), []
    first = changed[0]
    first.register_forward_hook(lambda *_: seen.append("mine"))
    with nullcontext() if error is None else pytest.raises(error), restoring(changed):
        changed.train()
        changed.is_quantized = True  # type: ignore[assignment]  # what quantizers of transformers set
        changed.config.use_cache = False
        changed.config.quantization_config = {"bits": 4}
        first.register_forward_hook(lambda *_: seen.append("theirs"))
        first.target_device = "cpu"  # type: ignore[assignment]  # what gptqmodel sets
        changed[0] = nn.Identity()
        del changed[1].eps
        if error is not None:
            raise error
    assert changed[0] is first
    changed(torch.zeros(1, 2))
    assert seen == ["mine"]
    assert not any(module.training for module in changed.modules())
    assert not hasattr(changed, "is_quantized")
    assert not hasattr(first, "target_device")
    assert vars(changed.config) == {"use_cache": True}
    assert changed[1].eps == 1e-5
