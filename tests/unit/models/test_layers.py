"""Which weight matrices a model has and a result depends on, their bits, and the head that stays as it is."""

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.parametrizations import weight_norm

from quantdrift.base.errors import UnknownNameError
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.kinds.quantizer import QUANTIZERS, group_bits
from quantdrift.models.bits import BitsReport, count_bits
from quantdrift.models.heads import find_head, named_head
from quantdrift.models.layers import LinearLayer, WeightUse, find_linears, left_out
from quantdrift.runs.words import candidate_lines
from quantdrift.spec.grammar import parse_scheme


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
def test_a_tied_layer_names_all_its_modules_and_is_stored_once(as_parameter: bool) -> None:
    """Whether the tie is one parameter in two modules or two parameters on one memory."""
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = nn.Parameter(first.weight.detach()) if as_parameter else first.weight
    layer = only(nn.Sequential(first, second, nn.Sequential(first)))
    assert (layer.name, layer.modules) == ("0", (first, second))
    for modules in ([nn.Sequential(first, second)], [first, second]):
        report = counted(modules, "W4-channel")
        assert (report.n_quantized, report.n_parameters) == (16, 16)
        assert report.all_parameters == 4 + 16 * 4 / 16


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


# --- bits by hand ------------------------------------------------------------------------------------


def counted(
    modules: Sequence[nn.Module], scheme: str, layers: Sequence[LinearLayer] | None = None, *, zero_points: bool = False
) -> BitsReport:
    parsed, layers = parse_scheme(scheme), layers or find_linears(modules)
    widths = [int(parsed.weight_bits)] * len(layers)
    beside = QUANTIZERS["hqq" if zero_points else "rtn"].overhead_bits
    return count_bits(modules, layers, widths, scale_bits=lambda n, m: beside(n, m, parsed.group_size))


class Experts(nn.Module):
    """Three experts of [6, 5] and [5, 3], kept transposed, and a bias each."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(3, 5, 6))
        self.down_proj = nn.Parameter(torch.zeros(3, 3, 5))
        self.down_proj_bias = nn.Parameter(torch.zeros(3, 5))


def test_experts_count_each_with_its_own_scales_and_those_left_alone_keep_their_width() -> None:
    """Groups of 4 over 5 inputs are two, over 3 one: 12 and 5 scales an expert."""
    model, linear, bias = Experts(), 3 * (30 + 15), 15
    report, scales = counted([model], "W4-g4"), 3 * (6 * 2 + 5 * 1) * 16
    assert (report.n_quantized, report.n_parameters, report.linear) == (linear, linear + bias, 4)
    assert report.linear_with_scales == pytest.approx((4 * linear + scales) / linear)
    assert report.all_parameters == pytest.approx((4 * linear + scales + 32 * bias) / (linear + 15))
    some = [layer for layer in find_linears([model.to(torch.bfloat16)]) if layer.expert == 1]
    report = counted([model], "W4-channel", some)
    assert report.n_quantized == 30 + 15
    assert report.all_parameters == pytest.approx((4 * 45 + 16 * (6 + 5) + 16 * (2 * (30 + 15) + 15)) / 150)


def test_layers_of_different_widths_count_by_their_weights() -> None:
    """16 weights of 4 bits, 32 of 3 and 8 left alone in float32, with a scale per channel."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 8, bias=False), nn.Linear(8, 1, bias=False))
    report = count_bits([model], find_linears([model]), [4, 3, 16], scale_bits=lambda n, m: group_bits(n, m, None))
    codes = 16 * 4 + 32 * 3 + 8 * 32
    assert (report.linear, report.linear_with_scales) == (codes / 56, (codes + 16 * (4 + 8)) / 56)
    assert report.n_quantized == 48


def test_what_is_no_linear_layer_is_named_with_its_share() -> None:
    """Ten by four of an embedding, four by one by three of a convolution in each of two blocks; a norm is a vector."""
    block = nn.ModuleDict({"conv1d": nn.Conv1d(4, 4, 3, groups=4), "layer": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})
    model = nn.ModuleDict({"embed": nn.Embedding(10, 4), "blocks": nn.ModuleList([block, copy.deepcopy(block)])})
    pair = QuantizedPair(model, "W4-channel")
    others = pair.describe()["not_quantized"]
    assert others == {"embed.weight": 40, "blocks.*.conv1d.weight": 24}
    record = {"quantization": {"not_quantized": others}, "bits_per_weight": pair.bits().to_json()}
    (line,) = candidate_lines(record)
    none = {**record["bits_per_weight"], "n_quantized": 0}
    assert not list(candidate_lines({**record, "bits_per_weight": none}))  # as where embeddings alone are stored
    assert line.startswith(f"{100 * 64 / (n := 128):.1f} % of all parameters are no linear layers")  # 40 + 2 x 44
    assert f"embed.weight {100 * 40 / n:.1f} %" in line


# --- heads -------------------------------------------------------------------------------------------


N_CLASSES = 3


def body(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 8))


class ToyForSequenceClassification(nn.Module):
    """Named as transformers names its classifiers, with a pooler before the head."""

    def __init__(self, head: nn.Module | None = None, name: str = "classifier") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(num_labels=N_CLASSES)
        self.body, self.pooler = body(), nn.Linear(8, 8)
        self.add_module(name, nn.Linear(8, N_CLASSES) if head is None else head)

    def forward(self, x: Tensor) -> Tensor:
        *_, (_, head) = self.named_children()
        logits: Tensor = head(self.pooler(self.body(x)))
        return logits


@pytest.mark.parametrize("name", ["classifier", "score", "head", "fc", "logits_proj", "of_my_own"])
def test_a_head_is_what_gives_one_number_per_class(name: str) -> None:
    assert find_head([ToyForSequenceClassification(name=name)]) == (name,)


def test_another_module_can_be_named_or_none() -> None:
    model = ToyForSequenceClassification()

    def left_out(head: str, of: nn.Module = model) -> list[str]:
        return list(QuantizedPair([of], parse_scheme(f"W4-channel+head={head}")).left_out)

    assert (left_out("none"), left_out("pooler")) == ([], ["pooler"])
    assert left_out("body") == ["body.0", "body.2"]
    assert left_out("classifier,body.2") == ["body.2", "classifier"]
    assert left_out("2", body()) == ["2"]  # where none would have been found
    assert left_out("none", body()) == []


def test_a_name_that_is_none_gets_the_nearest() -> None:
    model = ToyForSequenceClassification()
    with pytest.raises(UnknownNameError, match="'clasifier'; did you mean classif"):
        QuantizedPair([model], parse_scheme("W4+head=clasifier"))
    with pytest.raises(UnknownNameError, match="unknown module ''"):
        named_head([model], "classifier,")


def test_what_is_no_module_of_its_own_can_be_left_alone() -> None:
    # as open_clip's towers: torch's attention keeps three projections in one parameter
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 4))
    everything, pair = QuantizedPair(model, "W4"), QuantizedPair(model, "W4+layers=linear")
    modules = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    assert [layer.name for layer in pair.layers] == modules
    assert (
        {layer.name for layer in everything.layers} - {*modules} == {"0.self_attn.in_proj_weight"} == {*pair.left_out}
    )
