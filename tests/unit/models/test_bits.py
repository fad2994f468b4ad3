"""Bits per weight, by hand."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from quantdrift.candidate.pair import QuantizedPair
from quantdrift.kinds.quantizer import QUANTIZERS, group_bits
from quantdrift.models.bits import BitsReport, count_bits
from quantdrift.models.layers import LinearLayer, find_linears
from quantdrift.runs.words import candidate_lines
from quantdrift.spec.grammar import parse_scheme


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


@pytest.mark.parametrize("as_parameter", [False, True])
def test_tied_weights_are_stored_once(as_parameter: bool) -> None:
    """Whether the tie is one parameter in two modules or two parameters on one memory."""
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = nn.Parameter(first.weight.detach()) if as_parameter else first.weight
    for modules in ([nn.Sequential(first, second)], [first, second]):
        report = counted(modules, "W4-channel")
        assert (report.n_quantized, report.n_parameters) == (16, 16)
        assert report.all_parameters == 4 + 16 * 4 / 16


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
