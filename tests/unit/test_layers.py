"""Which layers a result depends on, through whatever way a forward pass takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from quantdrift.models.layers import find_linears
from quantdrift.models.reach import WeightUse
from quantdrift.pair import QuantizedPair
from quantdrift.spec import parse_scheme

Mode = Callable[[], AbstractContextManager[object]]
MODES = [nullcontext, torch.no_grad, torch.inference_mode]


def used(model: nn.Module, *inputs: Tensor, mode: Mode = torch.no_grad) -> set[str]:
    with WeightUse(find_linears([model])) as use, mode():
        model(*inputs)
    return set(use.used)


class DeadEnd(nn.Module):
    """The embedding is a mean over tokens; a pooler runs beside it, another is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.pooler, self.unused = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        self.pooler(hidden[:, 0]).tanh()
        return nn.functional.normalize(hidden.mean(dim=1))


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_called_for_nothing_is_not_reached(mode: Mode) -> None:
    model = DeadEnd()
    pair = QuantizedPair([model], parse_scheme("W4"))
    assert pair.never_reached == ["layer", "pooler", "unused"]  # nothing was observed yet
    with pair.observed(), mode():
        model(torch.randn(2, 3, 4))
    assert pair.never_reached == ["pooler", "unused"]


def test_what_one_of_several_passes_reaches_is_reached() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    pair = QuantizedPair([first, second], parse_scheme("W4"))
    for part in (first, second):
        with pair.observed():
            part(torch.randn(1, 4))
    assert pair.never_reached == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [False, True])
def test_attention_takes_its_output_weight_without_a_call(mode: Mode, training: bool) -> None:
    """In eval mode one fused operation does it all; otherwise the weights go to functions."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True).train(training)
    x = torch.randn(2, 3, 8)
    assert used(attention, x, x, x, mode=mode) == {"in_proj_weight", "out_proj"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [False, True])
def test_a_fused_encoder_reaches_all_its_layers(mode: Mode, training: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).train(training)
    names = {layer.name for layer in find_linears([encoder])}
    assert len(names) == 2 * 4
    assert used(encoder, torch.randn(2, 3, 8), mode=mode) == names


class Halves(nn.Module):
    """Two layers write into the halves of one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty(len(x), 8)
        out[:, :4] = self.left(x)
        out[:, 4:].copy_(self.right(x))
        return out.clone()


class Through(nn.Module):
    """What is written into a tensor is read through a view that was made before."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.left(x).detach()
        view = out.view(-1)
        out.add_(self.right(x))
        return view * 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", [Halves(), Through()])
def test_writing_into_a_part_is_writing_into_the_whole(mode: Mode, model: nn.Module) -> None:
    assert used(model, torch.randn(3, 4), mode=mode) == {"left", "right"}


def test_weights_made_on_the_way_count() -> None:
    """A weight that is transposed and scaled before it is used (a low-rank merge, say)."""

    class Derived(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.inner.weight.t() * 2)

    assert used(Derived(), torch.randn(2, 4)) == {"inner"}


def test_an_operation_on_whole_numbers_is_no_result() -> None:
    """Token ids and lengths are counted after the pass, too."""

    class Counts(DeadEnd):
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            torch.arange(3).sum()
            return result

    assert used(Counts(), torch.randn(2, 3, 4)) == {"layer"}
