"""Which weight matrices a model has, whatever way it keeps them, and which of them a result depends on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize
from torch.nn.utils.parametrizations import weight_norm

from quantdrift.engine.layers import LinearLayer, WeightUse, find_linears, left_out, memory_range, modules_of
from quantdrift.engine.pair import QuantizedPair


class Module(nn.Module):
    """A module of some parts and attributes that runs as it is told."""

    def __init__(self, run: Callable[..., Tensor] | None = None, **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        assert self.run is not None
        return self.run(self, *inputs)


class Conv1D(nn.Module):
    """As in transformers: x @ weight, weight [in, out]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.weight = nf, nn.Parameter(torch.randn(nx, nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def shapes(*modules: nn.Module) -> dict[str, tuple[int, ...]]:
    return {layer.name: tuple(layer.weight.shape) for layer in find_linears(modules)}


def only(module: nn.Module) -> LinearLayer:
    (layer,) = find_linears([module])
    return layer


# --- one matrix a module --------------------------------------------------------------------------


def test_a_linear_layer_is_its_weight_as_it_is_now() -> None:
    """Moving a module gives its parameter new data."""
    module = nn.Linear(3, 2)
    layer = only(nn.Sequential(module))
    assert (layer.name, layer.modules) == ("0", (module,))
    assert layer.parameter is module.weight
    assert not layer.weight.requires_grad
    module.to(torch.bfloat16)
    layer.weight.zero_()
    assert layer.weight.dtype == torch.bfloat16
    assert not module.weight.any()


def test_a_conv1d_is_seen_as_out_by_in_and_written_through() -> None:
    module = Conv1D(nf=2, nx=3)
    layer = only(nn.Sequential(module))
    assert (tuple(layer.weight.shape), layer.modules) == ((2, 3), (module,))
    layer.weight.copy_(torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
    assert module(torch.tensor([1.0, 0, 0])).tolist() == [1, 4]


def test_modules_are_found_inside_other_objects_and_numbered() -> None:
    class Wrapper:
        def __init__(self) -> None:
            self.inner = {"models": [nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)]}
            self.head = self.inner["models"][0][0]  # inside the first already
            self.itself, self.kind = self, int

    wrapper = Wrapper()
    assert modules_of(wrapper) == wrapper.inner["models"]
    assert modules_of(object()) == []
    assert list(shapes(*modules_of(wrapper))) == ["0.0", "1."]


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (nn.Sequential(nn.Conv1d(3, 2, 1), nn.Bilinear(2, 2, 2), nn.LSTM(2, 2), nn.LayerNorm(4)), {}),
        (weight_norm(nn.Linear(2, 2)), {"": "its weight is made from other parameters"}),
        (nn.LazyLinear(2), {"": "its weight has no shape before the first forward pass"}),
        (type("TopKRouter", (Module,), {})(weight=zeros(8, 4)), {"weight": "chooses the experts; not an nn.Linear"}),
        (Module(weight=zeros(2, 3, 4), cls_token=zeros(1, 1, 4)), {}),
        (  # no width is 4 and 2
            type("Experts", (Module,), {})(gate_up_proj=zeros(2, 4, 4), down_proj=zeros(2, 4, 4)),
            dict.fromkeys(["gate_up_proj", "down_proj"], "how Experts keeps its experts is not known"),
        ),
    ],
)
def test_what_is_no_layer_and_what_is_one_but_cannot_be_quantized(module: nn.Module, wanted: dict[str, str]) -> None:
    assert shapes(module) == {}
    assert left_out([module]) == wanted


# --- several matrices a module --------------------------------------------------------------------


def test_projections_of_torch_attention_are_layers_that_no_module_is_called_for() -> None:
    layers = find_linears([nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2)})])
    assert [(layer.name, layer.modules) for layer in layers] == [
        ("attention.in_proj_weight", ()),
        ("attention.out_proj", ()),
    ]
    apart = {"q_proj_weight": (4, 4), "k_proj_weight": (4, 3), "v_proj_weight": (4, 5), "out_proj": (4, 4)}
    assert shapes(nn.MultiheadAttention(4, 2, kdim=3, vdim=5)) == apart


H, W = 5, 3
STACKS = {
    "as transformers says": Module(
        up_proj=zeros(2, W, H), down_proj=zeros(2, H, W), has_gate=False, is_transposed=False
    ),
    "transposed, as transformers says": Module(
        up_proj=zeros(2, H, W), down_proj=zeros(2, W, H), has_gate=False, is_transposed=True
    ),
    "by their shapes": Module(gate_up_proj=zeros(2, 2 * W, H), down_proj=zeros(2, H, W)),
    "transposed, by their shapes": Module(gate_up_proj=zeros(2, H, 2 * W), down_proj=zeros(2, W, H)),
    "of named sizes": Module(weight=zeros(2, W, H), num_experts=2, input_size=H, output_size=W),
}


@pytest.mark.parametrize("module", STACKS.values(), ids=STACKS)
def test_every_expert_of_a_stack_is_a_layer(module: nn.Module) -> None:
    layers = find_linears([nn.ModuleDict({"experts": module})])
    up, *down = dict(module.named_parameters())
    height = 2 * W if up == "gate_up_proj" else W
    wanted = [(f"experts.{up}.{i}", (height, H)) for i in (0, 1)]
    wanted += [(f"experts.{name}.{i}", (H, W)) for name in down for i in (0, 1)]
    assert [(layer.name, tuple(layer.weight.shape)) for layer in layers] == wanted
    assert not any(layer.modules for layer in layers)
    layers[1].weight.fill_(1)
    assert layers[1].parameter.detach().mean(dim=(1, 2)).tolist() == [0, 1]
    layers[1].weight.zero_()


# --- shared weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("as_parameter", [False, True])
def test_a_tied_layer_names_all_its_modules(as_parameter: bool) -> None:
    """Whether the tie is one parameter in two modules or two parameters on one memory."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = nn.Parameter(first.weight.detach()) if as_parameter else first.weight
    layer = only(nn.Sequential(first, second, nn.Sequential(first)))
    assert (layer.name, layer.modules) == ("0", (first, second))


def test_the_same_memory_the_other_way_round_is_left_out() -> None:
    """Quantizing both would round what is rounded already, in other groups."""
    encoder, decoder = nn.Linear(2, 4), nn.Linear(4, 2)
    decoder.weight = nn.Parameter(encoder.weight.detach().t())
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    assert list(shapes(model)) == ["encoder"]
    assert left_out([model]) == {"decoder": "shares its weight, transposed, with encoder"}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_head_tied_to_token_embeddings_is_left_out(device: str) -> None:
    parts = {"embed": nn.Embedding(9, 4, device=device), "head": nn.Linear(4, 9, device=device)}
    model = nn.ModuleDict({**parts, "other": nn.Linear(4, 4, device=device)})
    assert list(shapes(model)) == ["head", "other"]  # those on no device are told apart
    model["head"].weight = model["embed"].weight
    assert list(shapes(model)) == ["other"]
    assert left_out([model]) == {"head": "shares its weight with the embedding embed"}


def test_memory_ranges_by_hand() -> None:
    x = torch.zeros(4, 3, dtype=torch.float16)
    start = x.data_ptr()
    assert memory_range(x) == memory_range(x.t()) == (torch.device("cpu"), start, start + 4 * 3 * 2)
    assert memory_range(x[:, 1]) == (torch.device("cpu"), start + 1 * 2, start + 11 * 2)  # elements 1 to 10
    for without in (x[:0], x.to_sparse(), torch.empty(2, device="meta")):
        assert memory_range(without) is None


# --- which a result depends on --------------------------------------------------------------------

Mode = Callable[[], AbstractContextManager[object]]
every_mode = pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
CHOICE = torch.tensor([2, 2, 0])


def used(model: nn.Module, *inputs: Tensor, mode: Mode = torch.no_grad) -> set[str]:
    with WeightUse(find_linears([model])) as use, mode():
        model(*inputs)
    return set(use.used)


def mean_of_tokens(self: Any, x: Tensor) -> Tensor:
    """A pooler runs beside the mean; another is never called. Token ids are counted after the pass."""
    hidden = self.layer(x)
    self.pooler(hidden[:, 0]).tanh()
    result = normalize(hidden.mean(dim=1))
    torch.arange(3).sum()
    return result


@every_mode
def test_a_layer_called_for_nothing_is_not_reached(mode: Mode) -> None:
    model = Module(mean_of_tokens, **{name: nn.Linear(4, 4) for name in ("layer", "pooler", "unused")})
    pair = QuantizedPair([model], "W4")
    assert pair.never_reached == ["layer", "pooler", "unused"]  # nothing was observed yet
    with pair.observed(), mode():
        model(torch.randn(2, 3, 4))
    assert pair.never_reached == ["pooler", "unused"]
    with pair.observed():
        model.unused(torch.randn(2, 4))
    assert pair.never_reached == ["pooler"]


@every_mode
@pytest.mark.parametrize("training", [False, True])
def test_fused_attention_and_encoders_reach_all_their_layers(mode: Mode, training: bool) -> None:
    """In eval mode one fused operation does it all; otherwise the weights go to functions."""
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 3, 8)
    encoder = nn.TransformerEncoder(layer, 2).train(training)
    assert used(encoder, x, mode=mode) == set(shapes(encoder))
    attention = nn.MultiheadAttention(8, 2, batch_first=True).train(training)
    assert used(attention, x, x, x, mode=mode) == {"in_proj_weight", "out_proj"}


def halves(self: Any, x: Tensor) -> Tensor:
    """Two layers write into the halves of one buffer."""
    out = torch.empty(len(x), 8)
    out[:, :4] = self.left(x)
    out[:, 4:].copy_(self.right(x))
    return out.clone()


def through(self: Any, x: Tensor) -> Tensor:
    """What is written into a tensor is read through a view that was made before."""
    out = self.left(x).detach()
    view = out.view(-1)
    out.add_(self.right(x))
    return view * 2


def derived(self: Any, x: Tensor) -> Tensor:
    """Weights that are transposed, scaled and cut before they are used (a low-rank merge, say)."""
    return x @ (self.left.weight.t() * 2) * self.right.weight[0]


@every_mode
@pytest.mark.parametrize("run", [halves, through, derived])
def test_data_is_followed_through_memory(mode: Mode, run: Callable[..., Tensor]) -> None:
    model = Module(run, left=nn.Linear(4, 4), right=nn.Linear(4, 4))
    assert used(model, torch.randn(3, 4), mode=mode) == {"left", "right"}


def one_by_one(self: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for expert in CHOICE.unique():
        rows = expert == CHOICE
        out[rows] = linear(x[rows], self.weight[expert])
    return out * 2


def in_turn(self: Any, x: Tensor) -> Tensor:
    """The second expert too, on no token."""
    return torch.cat([x[i == CHOICE] @ self.weight[i].t() for i in range(3)])


def a_matrix_a_token(self: Any, x: Tensor) -> Tensor:
    return torch.bmm(self.weight[CHOICE], x.unsqueeze(-1)).squeeze(-1)


def whole(self: Any, x: Tensor) -> Tensor:
    return x @ self.weight.sum(0)


@every_mode
@pytest.mark.parametrize(
    ("run", "wanted"), [(one_by_one, "02"), (in_turn, "02"), (a_matrix_a_token, "012"), (whole, "012")]
)
def test_experts_are_reached_by_their_tokens_or_all_at_once(
    run: Callable[..., Tensor], wanted: str, mode: Mode
) -> None:
    """Three experts of [4, 4]; tokens 0 and 1 go to the last, token 2 to the first."""
    stack = nn.Parameter(torch.randn(3, 4, 4))
    model = Module(run, weight=stack, num_experts=3, input_size=4, output_size=4)
    assert used(model, torch.randn(3, 4), mode=mode) == {f"weight.{expert}" for expert in wanted}


def with_weights(first: Tensor, second: Tensor, run: Callable[..., Tensor]) -> nn.Module:
    """Two weights cut from one buffer, as a loader may do; and a pass that uses some of them."""
    parts = {name: nn.Linear(*w.shape[::-1], bias=False) for name, w in (("first", first), ("second", second))}
    parts["first"].weight, parts["second"].weight = nn.Parameter(first), nn.Parameter(second)
    return Module(run, **parts)


def test_a_neighbour_in_the_same_storage_is_not_reached() -> None:
    buffer = torch.randn(40)
    first, second, rest = buffer[:16].view(4, 4), buffer[16:32].view(4, 4), buffer[36:]
    x = torch.randn(2, 4)
    assert used(with_weights(first, second, lambda self, x: self.first(x) + rest), x) == {"first"}
    for_nothing = with_weights(first, second, lambda self, x: (self.first(x), self.second(x) + rest)[1])
    assert used(for_nothing, x) == {"second"}
    # the last row of the first begins after the second has ended
    rows = torch.randn(8, 8)
    between = with_weights(rows[:, :4], rows[:2, 4:], lambda self, x: x * self.first.weight[-1])
    assert used(between, x) == {"first"}
