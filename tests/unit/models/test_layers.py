"""Which weight matrices a model has, whatever way it keeps them, and which of them a result depends on."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.parametrizations import weight_norm

from quantdrift.candidate.pair import QuantizedPair
from quantdrift.models.layers import LinearLayer, WeightUse, find_linears, left_out


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


def zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape))


def shapes(*modules: nn.Module) -> dict[str, tuple[int, ...]]:
    return {layer.name: tuple(layer.weight.shape) for layer in find_linears(modules)}


def only(module: nn.Module) -> LinearLayer:
    (layer,) = find_linears([module])
    return layer


MADE = "its weight is made from other parameters, or in the first forward pass"


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (nn.Sequential(nn.Conv1d(3, 2, 1), nn.Bilinear(2, 2, 2), nn.LSTM(2, 2), nn.LayerNorm(4)), {}),
        (weight_norm(nn.Linear(2, 2)), {"": MADE}),
        (nn.LazyLinear(2), {"": MADE}),
        (type("TopKRouter", (Module,), {})(weight=zeros(8, 4)), {"weight": "chooses the experts; not an nn.Linear"}),
        (Module(weight=zeros(2, 3, 4), cls_token=zeros(1, 1, 4)), {}),
        (  # no width is 4 and 2
            type("Experts", (Module,), {})(gate_up_proj=zeros(2, 4, 4), down_proj=zeros(2, 4, 4)),
            dict.fromkeys(["gate_up_proj", "down_proj"], "how Experts keeps its experts is not known"),
        ),
    ],
)
def test_what_is_no_layer_and_what_is_one_but_cannot_be_quantized(module: nn.Module, wanted: dict[str, str]) -> None:
    assert (shapes(module), left_out([module])) == ({}, wanted)


H, W = 5, 3
STACKS = {
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
    parts = [(up, (height, H)), *((name, (H, W)) for name in down)]
    wanted = [(f"experts.{name}.{i}", shape) for i in (0, 1) for name, shape in parts]
    assert [(layer.name, tuple(layer.weight.shape)) for layer in layers] == wanted
    assert not any(layer.modules for layer in layers)
    layers[-1].weight.fill_(1)
    assert layers[-1].parameter.detach().mean(dim=(1, 2)).tolist() == [0, 1]
    layers[-1].weight.zero_()


@pytest.mark.parametrize("as_parameter", [False, True])
def test_a_tied_layer_names_all_its_modules(as_parameter: bool) -> None:
    """Whether the tie is one parameter in two modules or two parameters on one memory."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = nn.Parameter(first.weight.detach()) if as_parameter else first.weight
    layer = only(nn.Sequential(first, second, nn.Sequential(first)))
    assert (layer.name, layer.modules) == ("0", (first, second))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_head_tied_to_token_embeddings_is_left_out(device: str) -> None:
    parts = {"embed": nn.Embedding(9, 4, device=device), "head": nn.Linear(4, 9, device=device)}
    model = nn.ModuleDict({**parts, "other": nn.Linear(4, 4, device=device)})
    assert list(shapes(model)) == ["head", "other"]  # those on no device are told apart
    model["head"].weight = model["embed"].weight
    assert list(shapes(model)) == ["other"]
    assert left_out([model]) == {"head": "shares its weight with the embedding embed"}


Mode = Callable[[], AbstractContextManager[object]]
every_mode = pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])


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


def test_what_is_gone_is_forgotten_in_the_middle_of_a_pass() -> None:
    model = nn.Sequential(nn.Linear(2, 2), *(nn.SiLU() for _ in range(400)), nn.Linear(2, 1))
    with torch.inference_mode(), WeightUse(find_linears([model])) as use:
        model(torch.ones(1, 2))
        assert len(use._sources) < 100  # each that is remembered keeps a hole in the heap open
    assert use.used == {"0", "401"}
