"""What is seen of an input: by name, under a mask, beside sparse products, changed in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from quantdrift.engine.calibration.in_order import LayerCandidate, TorchSettings, quantize_in_order
from quantdrift.engine.layers import find_linears
from quantdrift.engine.quantizers.base import Moments, QuantizedWeight
from quantdrift.engine.quantizers.rtn import RoundToNearest, quantize_rtn


class Watching(RoundToNearest):
    """Round to nearest that keeps the moments it is given."""

    needs_moments = True

    def quantize(self, weight: Tensor, moments: Moments | None = None) -> QuantizedWeight:
        assert moments is not None
        SEEN.append(moments)
        return quantize_rtn(weight, bits=8, group_size=None)


SEEN: list[Moments] = []


def moments(model: nn.Module, *works: Callable[[], object]) -> tuple[list[Moments], list[str]]:
    """Moments in calling order, and names of the layers that no token reached."""
    SEEN.clear()
    made: list[LayerCandidate] = []
    layers = find_linears([model])
    quantize_in_order(
        [model],
        layers,
        works,
        quantizers=[Watching(bits=8, group_size=None)] * len(layers),
        fallbacks=[RoundToNearest(bits=8, group_size=None)] * len(layers),
        known={},
        done=lambda _, layer: made.append(layer),
    )
    return list(SEEN), [layer.name for layer in made if layer.fallback]


def test_an_input_given_by_name_is_seen() -> None:
    layer = nn.Linear(2, 2)
    (found,), _ = moments(layer, lambda: layer(input=torch.tensor([[1.0, -3.0]])))
    assert found.mean_abs.tolist() == [1, 3]


def test_one_vector_is_one_token() -> None:
    layer = nn.Linear(2, 2)
    (found,), _ = moments(layer, lambda: layer(torch.tensor([1.0, -3.0])))
    assert (found.n_tokens, found.absmax) == (1, 3)


class Towers(nn.Module):
    """A tower that is given a mask, and one that is not but has inputs of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.image = Tower(), Tower()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.text(x, attention_mask=mask) + self.image(x)  # type: ignore[no-any-return]


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        output: Tensor = self.layer(x)
        return output


def test_a_mask_counts_for_the_module_that_is_given_it() -> None:
    model = Towers()
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    (text, image), _ = moments(model, lambda: model(torch.randn(2, 3, 2), mask))
    assert (text.n_tokens, image.n_tokens) == (3, 6)


def test_an_input_changed_in_place_is_another() -> None:
    """The same tensor, and by chance the same sum, but rolled between the two layers."""

    class Rolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.first(x)
            x.copy_(x.roll(1, -1))
            return self.second(x)  # type: ignore[no-any-return]  # a Tensor

    model = Rolled()
    (first, second), _ = moments(model, lambda: model(torch.tensor([[1.0, 4.0]])))
    assert first.mean_abs.tolist() == [1, 4]
    assert second.mean_abs.tolist() == [4, 1]


def test_sparse_products_on_the_way_do_no_harm() -> None:
    layer = nn.Linear(3, 3)

    def run() -> None:
        torch.sparse.mm(torch.eye(3).to_sparse(), layer(torch.ones(3, 3)))

    found, without = moments(layer, run)
    assert len(found) == 1
    assert not without


def test_experts_that_are_multiplied_all_at_once_see_their_own_tokens() -> None:
    """One product over the whole stack; tokens of other experts come as zeros."""

    class Experts(nn.Module):
        has_gate, is_transposed = False, True

        def __init__(self) -> None:
            super().__init__()
            self.up_proj = nn.Parameter(torch.randn(2, 3, 4))
            self.down_proj = nn.Parameter(torch.randn(2, 4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.bmm(torch.bmm(x, self.up_proj), self.down_proj)

    model = Experts()
    x = torch.zeros(2, 5, 3)
    x[0, :4] = 1.0
    x[1, 4] = 2.0
    found, without = moments(model, lambda: model(x))
    assert not without
    assert sorted(one.n_tokens for one in found) == [1, 1, 4, 4]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batches_run_under_the_autocast_of_the_caller(dtype: torch.dtype) -> None:
    """The second layer's input is what the first gives there: numbers of half the width."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    kinds: list[torch.dtype] = []
    model[1].register_forward_pre_hook(lambda _, args: kinds.append(args[0].dtype))
    with torch.autocast("cpu", dtype=dtype):
        moments(model, lambda: model(torch.ones(1, 4)))
    assert kinds == [dtype]


def test_settings_of_a_thread_are_had_again() -> None:
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
        settings = TorchSettings.present()
    assert torch.get_default_device().type == "cpu"
    with settings.again():
        assert torch.get_default_device().type == "meta"
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
    assert torch.get_default_device().type == "cpu"
    assert not torch.is_autocast_enabled("cpu")
