"""A pair: what the candidate changes, that the reference comes back bit for bit, what it costs."""

import pytest
import torch
from torch import Tensor, nn

from quantdrift.builtin.rtn.work import RoundToNearest
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.candidate.quantized import Moments, QuantizedWeight
from quantdrift.models.weights import weights_fingerprint
from quantdrift.spec.grammar import parse_scheme

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
