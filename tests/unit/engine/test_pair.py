"""A pair: what the candidate changes, that the reference comes back bit for bit, what it costs."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from quantdrift.engine import weights as aside
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.quantizers.base import Moments, QuantizedWeight
from quantdrift.engine.quantizers.rtn import RoundToNearest, quantize_rtn
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.errors import RunError, SpecError, UnsupportedError
from quantdrift.spec import parse_scheme

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


def test_the_candidate_differs_in_its_linear_weights_alone() -> None:
    model = Network()
    before, wanted = bits_of(model), quantize_rtn(model.first.weight, bits=4, group_size=64)
    pair = QuantizedPair([model], W4)
    with pair.candidate():
        inside = bits_of(model)
        assert torch.equal(model.first.weight, wanted.dequantize(torch.float32))
    changed = {name for name in before if inside[name] != before[name]}
    assert changed == {"first.weight", "again.weight", "second.weight"}


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


def test_the_reference_comes_back_when_the_block_fails() -> None:
    model = Network()
    before = bits_of(model)
    pair = QuantizedPair([model], W4)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), pair.candidate():
            raise error
        assert bits_of(model) == before
    with pair.candidate():  # and the pair can be used again
        assert bits_of(model) != before


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


def test_a_candidate_inside_a_candidate_is_refused() -> None:
    model = Network()
    before = bits_of(model)
    pair = QuantizedPair([model], W4)
    with pair.candidate(), pytest.raises(RuntimeError, match="is in place"), pair.candidate():
        pytest.fail("entered twice")
    assert bits_of(model) == before


def test_weights_put_aside_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with QuantizedPair([Network()], W4).candidate():
        pass
    assert list(tmp_path.iterdir()) == []


def test_no_room_to_put_weights_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, n_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(aside, "reserve", full)
    model = Network()
    before = bits_of(model)
    with pytest.raises(RunError, match=r"no room in .* 10,000 weights aside.*TMPDIR"):
        QuantizedPair([model], W4).candidate().__enter__()
    assert bits_of(model) == before
    assert list(tmp_path.iterdir()) == []


# --- layers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("modules", [[], [nn.Sequential(nn.Conv1d(3, 3, 1), nn.Embedding(4, 3))]])
def test_nothing_to_quantize(modules: list[nn.Module]) -> None:
    with pytest.raises(UnsupportedError, match=r"bm25 has no nn\.Linear layer"):
        QuantizedPair(modules, W4, name="bm25")


def test_weights_that_are_not_there_or_no_floats() -> None:
    with pytest.raises(UnsupportedError, match="layer 0 of big is not loaded"):
        QuantizedPair([nn.Sequential(nn.Linear(2, 2, device="meta"))], W4, name="big")
    integers = nn.Linear(2, 2)
    integers.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedError, match=r"torch\.int8.*already quantized"):
        QuantizedPair([nn.Sequential(integers)], W4)


def test_a_scheme_that_cannot_be_made_is_refused_at_once() -> None:
    with pytest.raises(SpecError, match="gap"):
        QuantizedPair([Network()], parse_scheme("W4+gap"))


# --- fingerprints ----------------------------------------------------------------------------


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


# --- bits ------------------------------------------------------------------------------------


def test_bits_by_hand() -> None:
    """W4-g64 on rows of 100 weights: 2 groups, so 2 scales of 16 bits a row."""
    report = QuantizedPair([Network()], W4).bits()
    linear = 100 * 100 + 8 * 100
    scales = (100 + 8) * 2
    others = 10 * 100 + 2 * 100 + 2 * 100  # embedding, two biases, norm; the buffer is no parameter
    assert report.n_quantized == linear == 10_800
    assert report.n_parameters == linear + others
    assert report.linear == 4
    assert report.linear_with_scales == pytest.approx(4 + scales * 16 / linear)
    assert report.all_parameters == pytest.approx((4 * linear + 16 * scales + 32 * others) / (linear + others))
    assert report.to_json()["n_quantized"] == linear


def test_layers_get_the_widths_that_are_chosen_for_them() -> None:
    """The third is left alone; the candidate is each layer's own round to nearest."""
    model = Network()
    pair = QuantizedPair([model], parse_scheme("W3.5-g64+gap+widths=2,3,4"))
    assert pair.needs_widths
    originals = [layer.weight.clone() for layer in pair.layers]
    pair.choose([4, 2])
    assert not pair.needs_widths
    with pair.candidate():
        for layer, weight, bits in zip(pair.layers, originals, (4, 2), strict=True):
            expected = quantize_rtn(weight, bits=bits, group_size=64).dequantize(weight.dtype)
            assert torch.equal(layer.weight, expected)
    pair.choose([16, 3])
    with pair.candidate():
        assert torch.equal(pair.layers[0].weight, originals[0])
    assert pair.bits().n_quantized == originals[1].numel()


def test_widths_have_to_be_chosen_and_to_fit() -> None:
    pair = QuantizedPair([Network()], parse_scheme("W3.5+gap"))
    with pytest.raises(UnsupportedError, match=r"chooses the layers' widths, .* choose"):
        pair.candidate().__enter__()
    for widths in ([3, 9], [3]):
        with pytest.raises(UnsupportedError, match="2 layers of 2 to 8 bits, or 16; got"):
            pair.choose(widths)
    with pytest.raises(UnsupportedError, match="layers of one width; got 2"):
        QuantizedPair([Network()], W4).choose([4, 4])
    pair.choose([3, 4])
    with pair.candidate(), pytest.raises(RuntimeError, match="leave"):
        pair.choose([3, 4])
