"""The classification head: where it is, that it stays as it is, and how to say otherwise."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quantdrift.allocation.record import AllocatedLayer, Allocation
from quantdrift.engine.calibration.sample import Sample
from quantdrift.engine.heads import find_head, named_head
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.errors import DataError, UnknownNameError, UnsupportedError
from quantdrift.progress import Silent
from quantdrift.spec import parse, parse_scheme

N_CLASSES = 3
W4 = parse_scheme("W4-channel")


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


class Timm(nn.Module):
    """What makes a model one of timm's."""

    def __init__(self, *heads: nn.Module) -> None:
        super().__init__()
        self.default_cfg = {"classifier": "head"}
        self.body = body()
        self.head = heads[0]
        if len(heads) > 1:
            self.head_dist = heads[1]

    def get_classifier(self) -> Any:
        return (self.head, self.head_dist) if hasattr(self, "head_dist") else self.head


def names(model: nn.Module) -> tuple[str, ...] | None:
    head = find_head([model])
    return None if head is None else head.names


def layers(pair: QuantizedPair) -> list[str]:
    return [layer.name for layer in pair.layers]


@pytest.mark.parametrize("name", ["classifier", "score", "head", "fc", "logits_proj", "of_my_own"])
def test_a_head_is_what_gives_one_number_per_class(name: str) -> None:
    assert names(ToyForSequenceClassification(name=name)) == (name,)


def test_all_layers_of_a_head_module_belong_to_it() -> None:
    head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, N_CLASSES))
    pair = QuantizedPair([ToyForSequenceClassification(head)], W4)
    assert layers(pair) == ["body.0", "body.2", "pooler"]
    assert list(pair.left_out) == ["classifier.0", "classifier.2"]


def test_a_classifier_inside_of_something_is_found() -> None:
    """As in sentence-transformers' CrossEncoder, and behind another outermost module."""
    wrapped = nn.Sequential(nn.ModuleDict({"model": ToyForSequenceClassification()}))
    assert names(wrapped) == ("0.model.classifier",)
    found = find_head([body(), ToyForSequenceClassification()])
    assert found is not None
    assert found.names == ("1.classifier",)
    pair = QuantizedPair([body(), ToyForSequenceClassification()], W4)
    assert list(pair.left_out) == ["1.classifier"]


def test_timm_says_it_itself_twice_for_distilled_models() -> None:
    linear = [nn.Linear(8, N_CLASSES), nn.Linear(8, N_CLASSES)]
    assert names(Timm(*linear)) == ("head", "head_dist")
    nested = nn.ModuleDict({"norm": nn.LayerNorm(8), "fc": nn.Linear(8, N_CLASSES)})
    model = Timm(nested)
    model.get_classifier = lambda: nested["fc"]  # type: ignore[method-assign]  # as of ConvNeXt
    assert names(model) == ("head.fc",)
    assert names(nn.Sequential(Timm(linear[0]))) == ("0.head",)


def test_what_is_no_classifier_has_no_head() -> None:
    """Any module, timm without classes, and an image tower: its last layer gives an embedding."""
    assert names(body()) is None
    assert names(Timm(nn.Identity())) is None
    assert names(nn.ModuleDict({"image": Timm(nn.Linear(8, 5)), "text": body()})) is None
    assert QuantizedPair([body()], W4).describe()["layers_left_out"] == {}


def test_the_candidate_has_the_head_of_the_reference() -> None:
    model = ToyForSequenceClassification()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    original = weights_fingerprint([model])
    pair = QuantizedPair([model], W4)
    assert pair.describe()["layers_left_out"] == {"classifier": "classification head"}
    with pair.candidate():
        inside = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    changed = {name for name, tensor in before.items() if not torch.equal(inside[name], tensor)}
    assert changed == {"body.0.weight", "body.2.weight", "pooler.weight"}
    rounded = quantize_rtn(before["pooler.weight"], bits=4, group_size=None)
    assert torch.equal(inside["pooler.weight"], rounded.dequantize(torch.float32))
    assert weights_fingerprint([model]) == original


def test_bits_per_weight_by_hand() -> None:
    """Quantized: 4x8 + 8x8 + 8x8 = 160 weights in 24 channels. The head: 3x8 at 32 bits, as all 27
    biases; among the linear layers it does not count."""
    report = QuantizedPair([ToyForSequenceClassification()], W4).bits()
    assert (report.linear, report.n_quantized, report.n_parameters) == (4, 160, 160 + 24 + 27)
    assert report.linear_with_scales == pytest.approx(4 + 24 * 16 / 160)
    assert report.all_parameters == pytest.approx((160 * 4 + 24 * 16 + 51 * 32) / 211)


def test_another_module_can_be_named_or_none() -> None:
    model = ToyForSequenceClassification()

    def left_out(head: str, of: nn.Module = model) -> list[str]:
        return list(QuantizedPair([of], parse_scheme(f"W4-channel+head={head}")).left_out)

    assert left_out("none") == []
    assert left_out("pooler") == ["pooler"]
    assert left_out("body") == ["body.0", "body.2"]
    assert left_out("classifier,body.2") == ["body.2", "classifier"]
    assert left_out("2", body()) == ["2"]  # where none would have been found
    assert left_out("none", body()) == []


def test_a_name_that_is_none_gets_the_nearest() -> None:
    model = ToyForSequenceClassification()
    with pytest.raises(UnknownNameError, match=r"unknown module 'clasifier'; did you mean classif"):
        QuantizedPair([model], parse_scheme("W4+head=clasifier"))
    wrapped = nn.Sequential(nn.ModuleDict({"model": model}))
    with pytest.raises(UnknownNameError, match=r"there is 0\.model\.classifier"):
        named_head([wrapped], "classifier")
    with pytest.raises(UnknownNameError, match="unknown module ''"):
        named_head([model], "classifier,")


def test_a_name_without_effect_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"\+head=body\.1: there is no linear layer in it"):
        QuantizedPair([ToyForSequenceClassification()], parse_scheme("W4+head=body.1"))


def test_a_model_that_is_nothing_but_a_head_is_refused() -> None:
    model = Timm(nn.Linear(8, N_CLASSES))
    model.body = nn.Sequential(nn.Conv2d(3, 8, 3))
    with pytest.raises(UnsupportedError, match=r"but its classification head \(head\).*head=none"):
        QuantizedPair([model], W4, name="resnet")
    assert layers(QuantizedPair([model], parse_scheme("W4+head=none"))) == ["head"]


def test_a_weight_that_the_head_shares_stays_at_full_precision() -> None:
    model = ToyForSequenceClassification()
    model.body[2] = nn.Linear(8, N_CLASSES)
    model.pooler = nn.Linear(N_CLASSES, 8)
    model.classifier.weight = model.body[2].weight
    pair = QuantizedPair([model], W4)
    assert (layers(pair), list(pair.left_out)) == (["body.0", "pooler"], ["body.2"])


def test_attention_inside_of_a_head_belongs_to_it() -> None:
    head = nn.ModuleDict({"mix": nn.MultiheadAttention(8, 2), "out": nn.Linear(8, N_CLASSES)})
    pair = QuantizedPair([ToyForSequenceClassification(head)], W4)
    assert layers(pair) == ["body.0", "body.2", "pooler"]


def test_the_input_of_the_head_is_not_quantized_either() -> None:
    model = ToyForSequenceClassification()
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    pair = QuantizedPair([model], parse_scheme("W16A4"))
    sample = Sample(batches=[lambda: model(x)], key=None, record={"source": "corpus"})
    pair.prepare(sample, root=None, progress=Silent())
    assert pair.describe()["activations"]["layers"] == 3
    seen: list[Tensor] = []
    model.classifier.register_forward_hook(lambda _, args, out: seen.extend([args[0], out]))
    with pair.candidate(), torch.no_grad():
        model(x)
    given, found = seen
    assert torch.equal(found, nn.functional.linear(given, *model.classifier.parameters()))
    assert len(given.unique()) > 15  # there are no more on a 4-bit grid


def allocation(model: nn.Module, pair: QuantizedPair) -> Allocation:
    return Allocation(
        model="toy",
        fingerprint=weights_fingerprint([model]),
        group_size=None,
        criterion="gap",
        widths=(3, 4),
        budget=3.9,
        method="knapsack",
        status="optimal",
        bound=None,
        layers=tuple(
            AllocatedLayer(name=layer.name, shape=tuple(layer.weight.shape), width=3, loss=(1.0, 0.5))
            for layer in pair.layers
        ),
        n_others=0,
        others_bits=0,
    )


def test_an_allocation_fits_the_head_that_it_was_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = ToyForSequenceClassification()
    unchosen = parse_scheme("W3.5-channel+gap")
    without = allocation(model, QuantizedPair([model], unchosen))
    whole = parse_scheme("W3.5-channel+gap+head=none")
    without.write(Path("without.json"))
    allocation(model, QuantizedPair([model], whole)).write(Path("with.json"))
    for text, n_layers in (("without.json", 3), ("with.json+head=none", 4)):
        pair = QuantizedPair([model], parse(f"toy@{text}").scheme)
        assert len(pair.layers) == n_layers
        assert not pair.needs_widths
        assert pair.bits().linear == 3
    with pytest.raises(DataError, match=r"layer classifier, which .* full precision .*\+head=none"):
        QuantizedPair([model], parse("toy@with.json").scheme)
    with pytest.raises(DataError, match="says nothing of some of this model's layers: classifier"):
        QuantizedPair([model], parse("toy@without.json+head=none").scheme)
