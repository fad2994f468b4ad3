"""Which layers a result depends on, through whatever way a forward pass takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from quantdrift.engine.layers import WeightUse, find_linears
from quantdrift.engine.pair import QuantizedPair
from quantdrift.spec import parse_scheme

Mode = Callable[[], AbstractContextManager[object]]
Run = Callable[[Tensor, Tensor], Tensor]
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


# --- experts: several layers in one parameter ---------------------------------------------------


class Experts(nn.Module):
    """Three experts of [4, 4]; tokens 0 and 1 go to the last, token 2 to the first."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.num_experts, self.input_size, self.output_size = 3, 4, 4
        self.weight = nn.Parameter(torch.randn(3, 4, 4))
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.weight) * 2


CHOICE = torch.tensor([2, 2, 0])


def one_by_one(x: Tensor, stack: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for expert in CHOICE.unique():
        rows = expert == CHOICE
        out[rows] = nn.functional.linear(x[rows], stack[expert])
    return out


def all_in_turn(x: Tensor, stack: Tensor) -> Tensor:
    """The second expert too, on no token."""
    return torch.cat([x[i == CHOICE] @ stack[i].t() for i in range(3)])


def a_matrix_a_token(x: Tensor, stack: Tensor) -> Tensor:
    return torch.bmm(stack[CHOICE], x.unsqueeze(-1)).squeeze(-1)


def selected(x: Tensor, stack: Tensor) -> Tensor:
    return torch.bmm(stack.index_select(0, CHOICE), x.unsqueeze(-1)).squeeze(-1)


def grouped(x: Tensor, stack: Tensor) -> Tensor:
    ends = torch.tensor([1, 1, 3], dtype=torch.int32)
    order = CHOICE.argsort()
    return torch._grouped_mm(x[order], stack.transpose(1, 2), offs=ends)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("run", [one_by_one, all_in_turn])
def test_experts_that_get_no_token_are_not_reached(run: Run, mode: Mode) -> None:
    assert used(Experts(run), torch.randn(3, 4), mode=mode) == {"weight.0", "weight.2"}


def masked(x: Tensor, stack: Tensor) -> Tensor:
    return x @ stack[torch.tensor([False, True, True])].sum(0)


def whole(x: Tensor, stack: Tensor) -> Tensor:
    return x @ stack.sum(0)


def column(x: Tensor, stack: Tensor) -> Tensor:
    return x * stack[:, 0, 0].sum()


@pytest.mark.parametrize("run", [masked, whole, column, a_matrix_a_token, selected, grouped])
def test_any_other_use_of_a_stack_reaches_all_of_it(run: Run) -> None:
    assert used(Experts(run), torch.randn(3, 4)) == {"weight.0", "weight.1", "weight.2"}


class Uses(nn.Module):
    """Two weights cut from one buffer, as a loader may do; and a pass that uses some of them."""

    def __init__(self, first: Tensor, second: Tensor, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(*w.shape[::-1], bias=False) for w in (first, second))
        self.first.weight, self.second.weight = nn.Parameter(first), nn.Parameter(second)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.first, self.second)


def test_a_neighbour_in_the_same_storage_is_not_reached() -> None:
    buffer = torch.randn(40)
    first, second, rest = buffer[:16].view(4, 4), buffer[16:32].view(4, 4), buffer[36:]
    x = torch.randn(2, 4)
    assert used(Uses(first, second, lambda x, a, b: a(x) + rest), x) == {"first"}

    def for_nothing(x: Tensor, a: nn.Module, b: nn.Module) -> Tensor:
        a(x)
        return b(x) + rest

    assert used(Uses(first, second, for_nothing), x) == {"second"}


def test_weights_that_lie_between_the_rows_of_others() -> None:
    """The last row of the first begins after the second has ended."""
    buffer = torch.randn(8, 8)
    model = Uses(buffer[:, :4], buffer[:2, 4:], lambda x, a, b: x * a.weight[-1])
    assert used(model, torch.randn(2, 4)) == {"first"}


def test_a_result_can_be_a_part_of_a_weight() -> None:
    stack = Experts(whole)
    with WeightUse(find_linears([stack])) as use:
        _ = stack.weight[1]
    assert use.used == {"weight.1"}
