"""Quantized activations: the grid by hand, and which layers get it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from quantdrift.engine.calibration.in_order import fake_quantize
from quantdrift.engine.calibration.sample import Sample
from quantdrift.engine.pair import QuantizedPair
from quantdrift.errors import DataError
from quantdrift.progress import Silent
from quantdrift.spec import parse_scheme


def sample_of(model: nn.Module, *batches: Tensor) -> Sample:
    works = [lambda batch=batch: model(batch) for batch in batches]
    return Sample(batches=works, key=None, record={"source": "corpus"})


def prepared(model: nn.Module, scheme: str, *batches: Tensor) -> QuantizedPair:
    pair = QuantizedPair([model], parse_scheme(scheme))
    pair.prepare(sample_of(model, *batches), root=None, progress=Silent())
    return pair


def test_the_grid_by_hand() -> None:
    """127 levels up to 12.7: steps of 0.1, halves to even, and what is beyond is clipped."""
    x = torch.tensor([0.04, 0.26, -0.26, 12.7, 13.0, -99.0])
    found = fake_quantize(x, absmax=12.7, bits=8)
    assert found.tolist() == pytest.approx([0, 0.3, -0.3, 12.7, 12.7, -12.7])
    assert fake_quantize(torch.ones(3), absmax=0.0, bits=8).tolist() == [0, 0, 0]
    assert fake_quantize(x.half(), absmax=12.7, bits=4).dtype == torch.float16


def test_every_layer_has_the_range_of_its_own_input() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    batches = [torch.randn(8, 6), 3 * torch.randn(8, 6)]
    pair = prepared(model, "W16A8", *batches)
    largest = max(float(batch.abs().max()) for batch in batches)
    hidden = max(float(model[1](model[0](batch)).abs().max()) for batch in batches)
    x = 5 * torch.randn(20, 6)  # beyond the range too
    first = model[1](model[0](fake_quantize(x, absmax=largest, bits=8)))
    wanted = model[2](fake_quantize(first, absmax=hidden, bits=8))
    exact = model(x)
    with pair.candidate():
        found = model(x)
    assert torch.allclose(found, wanted, atol=1e-6)
    assert not torch.allclose(found, exact)
    assert torch.equal(model(x), exact)  # nothing stays behind


def test_ranges_are_those_of_the_quantized_model() -> None:
    """With W2 the second layer's input is not what it is at full precision."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    batch = torch.randn(50, 6)
    pair = prepared(model, "W2A8-channel-rtn", batch)
    ranges = {layer["name"]: layer["input_absmax"] for layer in pair.describe()["layers"]}
    exact = float(model[1](model[0](batch)).abs().max())
    with QuantizedPair([model], parse_scheme("W2-channel-rtn")).candidate():
        low = float(model[1](model[0](batch)).abs().max())
    assert ranges["2"] == pytest.approx(low, rel=1e-5)
    assert abs(low - exact) > 1e-3


def test_a_run_says_which_layers_are_not_covered() -> None:
    """Attention uses its output weight without a call, so no input of it can be replaced."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    pair = prepared(model, "W8A8-channel", torch.randn(2, 3, 8))
    said = pair.describe()["activations"]
    assert said["bits"] == 8
    assert said["layers"] == len(pair.layers)
    assert set(said["not_covered"]) == {"self_attn.in_proj_weight", "self_attn.out_proj"}
    assert said["layers_covered"] == 2


def test_the_candidates_fingerprint_depends_on_the_ranges() -> None:
    torch.manual_seed(0)
    model, batch = nn.Linear(6, 5), torch.randn(8, 6)
    prints = set()
    for scheme, factor in (("W16A8", 1), ("W16A8", 2), ("W16A4", 1)):
        pair = prepared(model, scheme, factor * batch)
        with pair.candidate():
            prints.add(pair.candidate_fingerprint())
    assert len(prints) == 3


def test_a_layer_called_again_has_the_range_of_all_its_calls() -> None:
    """The second call of the first layer gets five times what its first one got."""
    torch.manual_seed(0)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.layer(x)
            return self.layer(5 * x)

    batch = torch.randn(8, 4)
    pair = prepared(Twice(), "W16A8", batch)
    (layer,) = pair.describe()["layers"]
    assert layer["input_absmax"] == pytest.approx(5 * float(batch.abs().max()))


def test_an_input_given_by_name_is_quantized_too() -> None:
    class ByName(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(input=x)  # type: ignore[no-any-return]  # a Tensor

    torch.manual_seed(0)
    model, batch = ByName(), torch.randn(8, 4)
    pair = prepared(model, "W16A4", batch)
    wanted = model.layer(fake_quantize(batch, absmax=float(batch.abs().max()), bits=4))
    with pair.candidate():
        assert torch.equal(model(batch), wanted)


def test_an_endless_input_has_no_range() -> None:
    batch = torch.tensor([[1.0, float("inf"), 0, 0]])
    with pytest.raises(DataError, match="is not finite on the calibration data"):
        prepared(nn.Linear(4, 3), "W16A8", batch)
