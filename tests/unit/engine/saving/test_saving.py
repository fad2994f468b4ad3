"""A candidate in its model's place, and the record of one that is saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from quantdrift.engine.bits import BitsReport
from quantdrift.engine.calibration.in_order import LayerCandidate
from quantdrift.engine.layers import find_linears
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.engine.saving.candidate import Candidate, in_place
from quantdrift.errors import UnsupportedError
from quantdrift.models.named import ModelSource
from quantdrift.models.saved import check_savable
from quantdrift.spec import parse, parse_scheme

BITS = BitsReport(linear=4.0, linear_with_scales=4.1, all_parameters=9.0, n_quantized=10, n_parameters=20)


class Network(nn.Module):
    """Two layers with one weight, one other, and things that are not quantized."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 48)
        self.first = nn.Linear(48, 48)
        self.again = nn.Linear(48, 48)
        self.again.weight = self.first.weight
        self.second = nn.Linear(48, 8)
        self.register_buffer("offset", torch.randn(8))

    def save_pretrained(self, folder: str) -> None:
        torch.save(self.state_dict(), Path(folder) / "weights.pt")


def candidate(model: nn.Module, scheme: str = "W4-g32") -> Candidate:
    spec = parse(f"tiny@{scheme}")
    return Candidate(
        model=model,
        source=ModelSource(name="tiny", canonical="org/tiny", kind="hub", location="org/tiny"),
        spec=spec,
        layers=[
            LayerCandidate(
                name=layer.name,
                quantized=quantize_rtn(layer.weight, bits=4, group_size=spec.scheme.group_size),
                output_error=0.25,
                fallback="no token" if layer.name == "second" else None,
            )
            for layer in find_linears([model])
        ],
        fingerprint="f" * 32,
        bits=BITS,
        revision="main",
        calibration={"n_inputs": 512},
    )


def tensors(model: nn.Module) -> dict[str, tuple[int, bytes]]:
    return {
        name: (tensor.data_ptr(), tensor.flatten().view(torch.uint8).numpy().tobytes())
        for name, tensor in model.state_dict().items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inside_the_weights_are_the_codes_and_afterwards_the_tensors_are_back(dtype: torch.dtype) -> None:
    model = Network().to(dtype)
    before = tensors(model)
    given = candidate(model)
    with in_place(given):
        for layer in given.layers:
            weight = model.get_submodule(layer.name).weight
            assert torch.equal(weight, layer.quantized.dequantize(dtype))
        assert model.again.weight is model.first.weight
        inside = tensors(model)
        changed = {name for name in before if inside[name][1] != before[name][1]}
        assert changed == {"first.weight", "again.weight", "second.weight"}
    assert tensors(model) == before  # the same memory, the same bytes


@pytest.mark.parametrize(
    ("scheme", "reason"), [("W4A8", "quantizes activations"), ("W16A8", "activations"), ("W4+query", "queries alone")]
)
def test_what_no_file_of_weights_can_carry_is_refused(scheme: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        check_savable(parse_scheme(scheme))
