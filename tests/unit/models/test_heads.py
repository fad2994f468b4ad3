"""The classification head: where it is, that it stays as it is, and how to say otherwise."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from quantdrift.base.errors import UnknownNameError
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.models.heads import find_head, named_head
from quantdrift.spec.grammar import parse_scheme

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
