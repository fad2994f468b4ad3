"""Which weight matrices a model has, whatever way it keeps them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from quantdrift.engine.layers import LinearLayer, find_linears, left_out, memory_range


def names(*modules: nn.Module) -> list[str]:
    return [layer.name for layer in find_linears(modules)]


def only(module: nn.Module) -> LinearLayer:
    (layer,) = find_linears([module])
    return layer


# --- one matrix a module -----------------------------------------------------------------------


def test_a_linear_layer_is_its_weight() -> None:
    linear = nn.Linear(3, 2)
    layer = only(nn.Sequential(linear))
    assert layer.name == "0"
    assert layer.parameter is linear.weight
    assert layer.modules == (linear,)
    assert torch.equal(layer.weight, linear.weight)
    assert not layer.weight.requires_grad


class Conv1D(nn.Module):
    """As in transformers: x @ weight, weight [in, out]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.weight = nf, nn.Parameter(torch.randn(nx, nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_a_conv1d_is_seen_as_out_by_in_and_written_through() -> None:
    module = Conv1D(nf=2, nx=3)
    layer = only(nn.Sequential(module))
    assert layer.weight.shape == (2, 3)
    assert layer.modules == (module,)
    layer.weight.copy_(torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
    assert module(torch.tensor([1.0, 0, 0])).tolist() == [1, 4]


def test_a_weight_is_the_present_one() -> None:
    """Moving a module gives its parameter new data."""
    linear = nn.Linear(3, 2)
    layer = only(linear)
    linear.to(torch.bfloat16)
    layer.weight.zero_()
    assert layer.weight.dtype == torch.bfloat16
    assert not linear.weight.any()


def test_what_only_looks_like_a_linear_layer() -> None:
    others = nn.Sequential(nn.Conv1d(3, 2, 1), nn.Bilinear(2, 2, 2), nn.LSTM(2, 2), nn.LayerNorm(4))
    assert names(others) == []
    assert left_out([others]) == {}


# --- attention ---------------------------------------------------------------------------------


def test_projections_of_torch_attention_are_layers() -> None:
    attention = nn.MultiheadAttention(4, 2)
    into, out = find_linears([nn.ModuleDict({"attention": attention})])
    assert (into.name, into.weight.shape) == ("attention.in_proj_weight", (12, 4))
    assert into.modules == ()  # no module is called with it
    assert (out.name, out.modules) == ("attention.out_proj", ())  # nor this one, though it is there


def test_projections_of_different_widths_are_separate() -> None:
    layers = find_linears([nn.MultiheadAttention(4, 2, kdim=3, vdim=5)])
    assert {layer.name: tuple(layer.weight.shape) for layer in layers} == {
        "q_proj_weight": (4, 4),
        "k_proj_weight": (4, 3),
        "v_proj_weight": (4, 5),
        "out_proj": (4, 4),
    }


# --- experts -----------------------------------------------------------------------------------


class Experts(nn.Module):
    """Parameters of the given shapes, as a mixture keeps its experts."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], **attributes: object) -> None:
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.zeros(shape)))
        for name, value in attributes.items():
            setattr(self, name, value)


HIDDEN, WIDTH = 5, 3
STACKS = {
    "as transformers says": Experts(
        {"up_proj": (2, WIDTH, HIDDEN), "down_proj": (2, HIDDEN, WIDTH)}, has_gate=False, is_transposed=False
    ),
    "transposed, as transformers says": Experts(
        {"up_proj": (2, HIDDEN, WIDTH), "down_proj": (2, WIDTH, HIDDEN)}, has_gate=False, is_transposed=True
    ),
    "by their shapes": Experts({"gate_up_proj": (2, 2 * WIDTH, HIDDEN), "down_proj": (2, HIDDEN, WIDTH)}),
    "transposed, by their shapes": Experts({"gate_up_proj": (2, HIDDEN, 2 * WIDTH), "down_proj": (2, WIDTH, HIDDEN)}),
}


@pytest.mark.parametrize("module", STACKS.values(), ids=STACKS)
def test_every_expert_is_two_layers(module: nn.Module) -> None:
    layers = find_linears([nn.ModuleDict({"experts": module})])
    up = "gate_up_proj" if hasattr(module, "gate_up_proj") else "up_proj"
    height = 2 * WIDTH if up == "gate_up_proj" else WIDTH
    assert {layer.name: tuple(layer.weight.shape) for layer in layers} == {
        f"experts.{up}.0": (height, HIDDEN),
        f"experts.{up}.1": (height, HIDDEN),
        "experts.down_proj.0": (HIDDEN, WIDTH),
        "experts.down_proj.1": (HIDDEN, WIDTH),
    }
    assert not any(layer.modules for layer in layers)
    layers[1].weight.fill_(1)
    stack = layers[1].parameter
    assert stack.detach().mean(dim=(1, 2)).tolist() == [0, 1]
    layers[1].weight.zero_()


def test_stacks_that_name_their_sizes() -> None:
    module = Experts({"weight": (2, 4, 3)}, num_experts=2, input_size=3, output_size=4)
    assert names(module) == ["weight.0", "weight.1"]


def test_other_stacks_of_matrices_are_not_touched() -> None:
    unequal = Experts({"gate_up_proj": (2, 4, 4), "down_proj": (2, 4, 4)})  # no width is 4 and 2
    others = [unequal, Experts({"cls_token": (1, 1, 4)}), Experts({"weight": (2, 3, 4)})]
    assert names(*others) == []
    assert left_out(others[:1]) == {
        "gate_up_proj": "how Experts keeps its experts is not known",
        "down_proj": "how Experts keeps its experts is not known",
    }


# --- shared weights ----------------------------------------------------------------------------


def test_a_tied_layer_names_all_its_modules() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    assert only(nn.Sequential(first, second)).modules == (first, second)
    second.weight = nn.Parameter(first.weight.detach())  # another parameter, the same memory
    layer = only(nn.Sequential(first, second))
    assert (layer.name, layer.modules) == ("0", (first, second))


def test_a_module_in_two_places_is_called_once() -> None:
    linear = nn.Linear(3, 3)
    model = nn.ModuleList([nn.Sequential(linear), nn.Sequential(linear)])
    assert only(model).modules == (linear,)
    (layer,) = find_linears([nn.Sequential(linear), nn.Sequential(linear)])
    assert (layer.name, layer.modules) == ("0.0", (linear,))


def test_the_same_memory_the_other_way_round_is_left_out() -> None:
    """Quantizing both would round what is rounded already, in other groups."""
    encoder, decoder = nn.Linear(2, 4), nn.Linear(4, 2)
    decoder.weight = nn.Parameter(encoder.weight.detach().t())
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    assert names(model) == ["encoder"]
    assert left_out([model]) == {"decoder": "shares its weight, transposed, with encoder"}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_head_tied_to_token_embeddings_is_left_out(device: str) -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(9, 4, device=device), "head": nn.Linear(4, 9, device=device)})
    assert names(model) == ["head"]
    model["head"].weight = model["embed"].weight
    assert names(model) == []
    assert left_out([model]) == {"head": "shares its weight with the embedding embed"}


def test_layers_without_memory_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(2, 2, device="meta"), nn.Linear(2, 2, device="meta"))
    assert names(model) == ["0", "1"]
    assert memory_range(model[0].weight) is None


def test_memory_ranges_by_hand() -> None:
    x = torch.zeros(4, 3, dtype=torch.float16)
    start = x.data_ptr()
    assert memory_range(x) == (torch.device("cpu"), start, start + 4 * 3 * 2)
    assert memory_range(x.t()) == memory_range(x)
    column = x[:, 1]  # from element 1 to element 10
    assert memory_range(column) == (torch.device("cpu"), start + 1 * 2, start + 11 * 2)
    for without in (x[:0], x.to_sparse(), torch.nested.nested_tensor([x])):
        assert memory_range(without) is None


# --- what cannot be quantized in place -----------------------------------------------------------


def test_layers_without_a_weight_of_their_own_are_named() -> None:
    router = type("TopKRouter", (Experts,), {})({"weight": (8, 4)})
    model = nn.ModuleDict({"norm": weight_norm(nn.Linear(2, 2)), "lazy": nn.LazyLinear(2), "router": router})
    assert names(model) == []
    assert left_out([model]) == {
        "norm": "its weight is made from other parameters",
        "lazy": "its weight has no shape before the first forward pass",
        "router.weight": "chooses the experts; not an nn.Linear",
    }
