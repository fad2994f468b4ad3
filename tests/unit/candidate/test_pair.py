"""A pair: what the candidate changes, what it costs, that the reference comes back; and `MODEL@allocation.json`."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quantdrift.allocation.record import Allocation
from quantdrift.base.errors import DataError, SpecError
from quantdrift.builtin.rtn.work import RoundToNearest, quantize_rtn
from quantdrift.candidate.calibration.candidate import summary
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.candidate.quantized import Moments, QuantizedWeight
from quantdrift.models.weights import weights_fingerprint
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import parse, parse_scheme
from support import allocations

W4 = parse_scheme("W4-g64")


class Network(nn.Module):
    """Three linear layers, two of them with one weight, between other things."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 100)
        self.first = nn.Linear(100, 100)
        self.norm = nn.LayerNorm(100)
        self.second = nn.Linear(100, 8, bias=False)
        self.again = nn.Linear(100, 100)
        self.again.weight = self.first.weight
        self.register_buffer("offset", torch.randn(8))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.again(self.norm(self.first(self.embedding(tokens))))
        return self.second(hidden) + self.offset


def bits_of(model: nn.Module) -> dict[str, bytes]:
    return {
        name: tensor.detach().flatten().view(torch.uint8).numpy().tobytes()
        for name, tensor in model.state_dict().items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_reference_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    model = Network().to(dtype)
    with torch.no_grad():
        model.second.weight[0, :3] = torch.tensor([-0.0, 6e-8, 1e-3]).to(dtype)
    before, parameters = bits_of(model), [id(p) for p in model.parameters()]
    pair = QuantizedPair([model], W4)
    for _ in range(2):
        with pair.candidate():
            assert bits_of(model) != before
        assert bits_of(model) == before
    assert [id(p) for p in model.parameters()] == parameters  # in place
    assert all(p.requires_grad for p in model.parameters())


def test_the_reference_comes_back_when_a_later_layer_cannot_be_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Network()
    before = bits_of(model)
    pair = QuantizedPair([model], W4)
    done: list[Tensor] = []

    class FirstOnly(RoundToNearest):
        def quantize(self, weight: Tensor, moments: Moments | None = None) -> QuantizedWeight:
            if done:
                raise MemoryError
            done.append(weight)
            return super().quantize(weight)

    monkeypatch.setitem(pair._methods, 4, FirstOnly(bits=4, group_size=128))
    with pytest.raises(MemoryError), pair.candidate():
        pytest.fail("there is no candidate")
    assert bits_of(model) == before


def test_fingerprints_tell_weights_apart() -> None:
    model, twin = Network(), Network()
    pair = QuantizedPair([model], W4)
    whole = pair.fingerprint
    assert whole == weights_fingerprint([twin])
    assert whole != weights_fingerprint([twin.to(torch.bfloat16)])
    with pair.candidate():
        assert pair.candidate_fingerprint() != whole
        with pytest.raises(RuntimeError, match="leave candidate"):
            _ = pair.fingerprint
    assert pair.fingerprint == whole
    with pytest.raises(RuntimeError, match="no candidate outside"):
        pair.candidate_fingerprint()
    model.offset[0] += 1  # buffers count
    assert pair.fingerprint != whole


# --- a spec that names a file ------------------------------------------------------------------------


WIDTHS = {"a": 4, "b": 3, "c": 16, "d": 6}
"""Two that were chosen, one that is not quantized, and one kept at a width that is not offered."""


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(OrderedDict((name, nn.Linear(8, 8, bias=False)) for name in WIDTHS))


def allocation(**changes: Any) -> Allocation:
    fields = {"fingerprint": weights_fingerprint([model()]), "group_size": 8, "quantizer": "rtn", "budget": 3.5}
    return allocations.allocation(WIDTHS, shape=(8, 8), **{**fields, "input_ids": ("q1", "q2"), **changes})


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    allocation().write(Path("a.json"))
    return Path("a.json")


@pytest.mark.parametrize(
    ("changes", "short", "full"),
    [
        ({}, "a.json", "W3.5-g8-rtn+gap+allocation=a.json"),
        ({}, "a.json-gptq", "W3.5-g8-gptq+gap+allocation=a.json"),
        ({"group_size": None}, "a.json+query", "W3.5-channel-rtn+query+gap+allocation=a.json"),
        ({"budget": 4.0, "quantizer": "hqq"}, "a.json", "W4-g8-hqq+gap+allocation=a.json+widths=3,4"),
    ],
)
def test_a_file_is_short_for_its_scheme(changes: dict[str, Any], short: str, full: str, file: Path) -> None:
    allocation(**changes).write(file)
    spec = parse(f"org/tiny@{short}")
    assert (str(spec), parse(str(spec))) == (f"org/tiny@{full}", spec)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nowhere.json", r"nowhere\.json, which cannot be read"),
        ("my file.json", "without spaces, .* rename it"),
        ("a.json-gtpq", "unknown part 'gtpq'.* gptq"),
        ("a.json+allocation=b.json", "second allocation"),
    ],
)
def test_what_does_not_go_with_a_file_is_refused(text: str, said: str, file: Path) -> None:
    with pytest.raises(SpecError, match=said):
        parse(f"tiny@{text}")


def test_layers_get_their_widths_kept_ones_too() -> None:
    """16 is left alone; 6 bits are not among the widths to choose from, and still possible."""
    network = model()
    pair = QuantizedPair([network], Scheme(weight_bits=3.5, group_size=8, criterion="gap"))
    pair.choose(list(WIDTHS.values()), by=allocation())
    originals = {name: layer.weight.clone() for name, layer in network.named_children()}
    with pair.candidate():
        for name, layer in network.named_children():
            expected = originals[name]
            if WIDTHS[name] != 16:
                expected = quantize_rtn(expected, bits=WIDTHS[name], group_size=8).dequantize(expected.dtype)
            assert torch.equal(layer.weight, expected), name


def test_a_pair_of_a_file_has_its_widths_from_the_start_and_says_so(file: Path) -> None:
    pair = QuantizedPair([model()], parse("tiny@a.json").scheme)
    assert not pair.needs_widths
    assert pair.bits().n_quantized == 3 * 64
    record = pair.describe()["allocation"]
    assert (record, record["widths"]) == (summary(allocation()), WIDTHS)
    assert (record["bits_per_weight"], record["calibration_inputs"]) == (3.5, 2)
    json.dumps(record)


@pytest.mark.parametrize(
    ("scheme", "said"),
    [("W3.25-g8+gap", r"\(.*3.5, 8\), and .* says \(.*3.25, 8\)"), ("W3.5-g8+sqnr", r"\('gap', .* says \('sqnr', .*")],
)
def test_a_scheme_that_says_otherwise_than_the_file_is_refused(scheme: str, said: str, file: Path) -> None:
    with pytest.raises(DataError, match=f"{said}; write MODEL@FILE.json"):
        QuantizedPair([model()], parse(f"tiny@{scheme}+allocation=a.json").scheme)
