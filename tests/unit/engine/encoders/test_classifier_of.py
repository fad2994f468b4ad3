"""Any torch module as a classifier: what it is called with, and what it may return."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quantdrift.engine.encoders.classifier import Classifier, classifier_of
from quantdrift.errors import ScoreError, UnsupportedError


class Net(nn.Module):
    """A classifier of no library, in training mode as torch makes it, with dropout."""

    def __init__(self, give: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.give = give
        self.body, self.drop, self.out = nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.give(self.out(self.drop(self.body(x).relu())))


def stacked(inputs: Any) -> torch.Tensor:
    return torch.tensor(np.stack(inputs), dtype=torch.float64)  # brought to the module's dtype


GIVES: dict[str, Callable[[Any], Any]] = {
    "a tensor": lambda x: x,
    "a dict": lambda x: {"hidden": x[:, :2], "logits": x},
    "a tuple": lambda x: (x, None),
    "an object": lambda x: SimpleNamespace(logits=x),
}


@pytest.mark.parametrize("give", GIVES)
def test_any_module_that_returns_logits_is_a_classifier(give: str) -> None:
    net = Net(GIVES[give])
    classifier = classifier_of(net, classes="abc", prepare=stacked, takes="text")
    inputs = np.random.default_rng(0).normal(size=(5, 4))
    plain = Net().eval()
    with torch.no_grad():
        wanted = plain(torch.tensor(inputs, dtype=torch.float32))
    assert np.allclose(classifier.logits(inputs, 2), wanted)
    assert all(part.training for part in net.modules())  # as they were
    calls = {"a tuple of arguments": lambda x: (stacked(x),), "keywords": lambda x: {"x": stacked(x)}}
    for prepare in calls.values():
        other = classifier_of(net, classes="abc", prepare=prepare, takes="text")
        assert np.allclose(other.logits(inputs, 5), wanted)


def test_a_module_of_ones_own_is_only_kept_apart_if_it_is_not_described() -> None:
    def one(**more: Any) -> str:
        return classifier_of(Net(), classes="abc", prepare=stacked, takes="text", **more).describe()

    assert one() != one()
    assert one(description="stacked") == one(description="stacked") == "stacked"


def test_logits_that_are_none_are_refused() -> None:
    inputs = np.zeros((2, 4))

    def of(give: Callable[[Any], Any], classes: str = "abc") -> Classifier:
        return classifier_of(Net(give), classes=classes, prepare=stacked, takes="text")

    with pytest.raises(ScoreError, match=r"shape \[2, 2\] .* got logits \[2, 3\]"):
        of(lambda x: x, classes="ab").logits(inputs, 2)
    with pytest.raises(ScoreError, match="got str"):
        of(lambda _: "logits").logits(inputs, 2)
    with pytest.raises(UnsupportedError, match="two classes or more"):
        of(lambda x: x, classes="a")
    with pytest.raises(UnsupportedError, match="no parameters"):
        classifier_of(nn.ReLU(), classes="abc", prepare=stacked, takes="text")
