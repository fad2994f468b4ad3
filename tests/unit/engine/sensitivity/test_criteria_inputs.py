"""What is recorded of the layers' inputs, and what criteria make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.engine.sensitivity.criteria import criterion, input_moments
from quantdrift.errors import DataError, UnsupportedError
from support.criteria_samples import linear, setting_of

ON_INPUTS = ["activation_error", "activation_salience", "activation_norm"]


class Masked(nn.Module):
    """Calls one layer twice, the second time on twice the input, and another never."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.pooler = linear([3, 1.25]), linear([3, 1.25])

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.layer(x) + self.layer(2 * x)  # type: ignore[no-any-return]  # a Tensor


def test_tokens_of_all_calls_and_batches_count_and_padding_does_not() -> None:
    model = Masked()
    first, mask = torch.tensor([[[1.0, -2], [100, 100]], [[3, 0], [5, 6]]]), [[1, 0], [1, 1]]
    setting = setting_of(
        model, lambda: model(first, attention_mask=torch.tensor(mask)), lambda: model(torch.tensor([[[0.0, 1]]]))
    )
    reached, never = input_moments(setting)
    assert reached.n_tokens == 2 * 4
    squares, sizes = (torch.tensor([1.0 + 9 + 25, 4 + 36 + 1]), torch.tensor([1.0 + 3 + 5, 2 + 6 + 1]))
    torch.testing.assert_close(reached.mean_square, squares * (1 + 4) / 8)
    torch.testing.assert_close(reached.mean_abs, sizes * (1 + 2) / 8)
    assert never.n_tokens == 0
    assert never.mean_square.tolist() == never.mean_abs.tolist() == [0, 0]
    for name in ON_INPUTS:
        losses = criterion(name).losses(setting)
        assert losses[0, 0] > 0
        assert not losses[1].any()  # nothing is lost where nothing arrives
    assert criterion("reconstruction").losses(setting)[1, 0] > 0


class Memory(dict[str, NDArray[np.float64]]):
    """Keeps arrays for the time of a test."""

    def put(self, name: str, array: NDArray[np.float64]) -> None:
        assert array.dtype == np.float64
        self[name] = array.copy()


def test_criteria_share_one_measurement() -> None:
    model, runs, kept = Masked(), list[int](), Memory()

    def run() -> None:
        runs.append(1)
        model(torch.tensor([[[0.1, 1]]]))

    setting = setting_of(model, run)
    fresh = [criterion(name).losses(setting) for name in ON_INPUTS]
    assert len(runs) == 3
    sharing = [criterion(name).losses(replace(setting, kept=kept)) for name in ON_INPUTS]
    assert len(runs) == 4
    assert [a.tolist() for a in fresh] == [a.tolist() for a in sharing]
    one = replace(setting, layers=setting.layers[:1], kept=kept)  # other layers: another measurement
    assert len(input_moments(one)) == 1
    assert len(runs) == len(kept) + 3 == 5


def test_hooks_are_gone_afterwards() -> None:
    model = Masked()
    input_moments(setting_of(model, lambda: model(torch.ones(1, 1, 2))))
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("name", ON_INPUTS)
def test_inputs_that_are_missing_unseen_or_endless_are_named(name: str) -> None:
    model, other = Masked(), Masked()
    losses = criterion(name).losses
    with pytest.raises(DataError, match="need calibration inputs, and there are none"):
        losses(setting_of(model))
    with pytest.raises(UnsupportedError, match="no calibration input was seen at any layer"):
        losses(setting_of(model, lambda: other(torch.ones(1, 1, 2))))
    with pytest.raises(DataError, match="input of layer is not finite"):
        losses(setting_of(model, lambda: model(torch.full((1, 1, 2), torch.inf))))
