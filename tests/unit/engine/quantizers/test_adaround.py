"""AdaRound by hand: errors that cancel, weights that have nothing to learn, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quantdrift.engine.quantizers.adaround import AdaRound
from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.errors import DataError
from support.quantizer_samples import moments_by_hand


def correlated(in_features: int) -> Moments:
    """Of inputs that are mixtures of fewer causes, around a mean."""
    generator = torch.Generator().manual_seed(0)
    causes = torch.randn(8 * in_features, in_features // 2, generator=generator)
    mixing = torch.randn(in_features // 2, in_features, generator=generator)
    inputs = causes @ mixing + torch.randn(in_features, generator=generator)
    return moments_by_hand(inputs.T @ inputs / len(inputs))


def gaussian(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def codes(row: list[float], second: Tensor) -> list[int]:
    """At four bits; a largest weight of 7 makes the scale 1."""
    made = AdaRound(bits=4, group_size=None).quantize(torch.tensor([row]), moments_by_hand(second))
    assert made.scale.tolist() == [[1]]
    return made.codes[0].tolist()


EQUAL, OPPOSITE = torch.ones(3, 3), torch.tensor([[1.0, 0, 0], [0, 1, -1], [0, -1, 1]])


@pytest.mark.parametrize(
    ("row", "second", "wanted"),
    [
        # with x = (t, t, t) the output is t times the sum, so the sum of codes should be near it
        ([7, 0.4, 0.3], EQUAL, [7, 1, 0]),  # nearest would be 0.7 short; this is 0.3 over
        ([7, 0.6, 0.7], EQUAL, [7, 0, 1]),  # nearest would be 0.7 over; this is 0.3 short
        ([7, 0.4, -0.4], EQUAL, [7, 0, 0]),  # nearest: errors cancel already
        ([7, 0.4, 0.4], OPPOSITE, [7, 0, 0]),
        ([7, 0.4, -0.3], OPPOSITE, [7, 1, 0]),
        ([7, 0.4, 0.6, -2.3, -2.8, 0.49, 0.51], torch.diag(torch.arange(1.0, 8)), [7, 0, 1, -2, -3, 0, 1]),
    ],
)
def test_errors_cancel_where_inputs_correlate(row: list[float], second: Tensor, wanted: list[int]) -> None:
    assert codes(row, second) == wanted


@pytest.mark.parametrize(("bits", "group_size"), [(2, None), (3, 16)])
def test_the_scale_is_that_of_rtn_and_the_output_nearer(bits: int, group_size: int | None) -> None:
    """Groups of 16 leave 8 for the last."""
    weight, moments = gaussian(12, 40), correlated(40)
    made = AdaRound(bits=bits, group_size=group_size).quantize(weight, moments)
    nearest = quantize_rtn(weight, bits=bits, group_size=group_size)
    assert torch.equal(made.scale, nearest.scale)
    errors = [quantized.dequantize(torch.float32) - weight for quantized in (made, nearest)]
    ours, theirs = (((error @ moments.second) * error).sum().item() for error in errors)
    assert ours < 0.5 * theirs
    assert made.notes["soft"] == 0


def test_a_layer_without_finite_moments_is_refused() -> None:
    with pytest.raises(DataError, match="adaround needs"):
        AdaRound(bits=4, group_size=None).quantize(
            torch.ones(2, 2), moments_by_hand(torch.tensor([[1, torch.nan]] * 2))
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_the_result_stays_there() -> None:
    weight, moments, method = gaussian(16, 64), correlated(64), AdaRound(bits=3, group_size=16)
    made = method.quantize(weight.cuda(), moments_by_hand(moments.second.cuda()))
    assert made.codes.is_cuda
    assert made.scale.is_cuda
    assert (made.codes.cpu() == method.quantize(weight, moments).codes).float().mean() > 0.99
