"""AdaRound by hand: errors that cancel, weights that have nothing to learn, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from quantdrift.engine.quantizers import adaround as adaround_steps
from quantdrift.engine.quantizers.adaround import AdaRound
from quantdrift.engine.quantizers.base import Moments
from quantdrift.engine.quantizers.registry import layer_quantizer
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.errors import QuantDriftError
from quantdrift.spec import parse_scheme


def moments(second: Tensor, n_tokens: int = 100) -> Moments:
    power = second.diagonal()
    return Moments(second=second, mean_abs=power.sqrt(), absmax=1.0, n_tokens=n_tokens)


def correlated(in_features: int, seed: int = 0) -> Tensor:
    """The second moment of inputs that are mixtures of fewer causes, around a mean."""
    generator = torch.Generator().manual_seed(seed)
    causes = torch.randn(8 * in_features, in_features // 2, generator=generator)
    mixing = torch.randn(in_features // 2, in_features, generator=generator)
    inputs = causes @ mixing + torch.randn(in_features, generator=generator)
    return inputs.T @ inputs / len(inputs)


def gaussian(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def codes(row: list[float], second: Tensor) -> list[int]:
    """At four bits; a largest weight of 7 makes the scale 1."""
    made = AdaRound(bits=4, group_size=None).quantize(torch.tensor([row]), moments(second))
    assert made.scale.tolist() == [[1]]
    return made.codes[0].tolist()


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ([7, 0.4, 0.3], [7, 1, 0]),  # nearest would be 0.7 short; this is 0.3 over
        ([7, 0.3, 0.4], [7, 0, 1]),
        ([7, 0.6, 0.7], [7, 0, 1]),  # nearest would be 0.7 over; this is 0.3 short
        ([7, 0.4, -0.4], [7, 0, 0]),  # nearest: errors cancel already
        ([-7, -0.4, -0.3], [-7, -1, 0]),
        ([7, 2.4, -1.7], [7, 3, -2]),  # 0.3 over; nearest would be 0.7 short
    ],
)
def test_errors_of_inputs_that_are_always_equal_cancel(row: list[float], wanted: list[int]) -> None:
    """With x = (t, t, t) the output is t times the sum, so the sum of codes should be near it."""
    assert codes(row, torch.ones(3, 3)) == wanted


def test_errors_of_opposite_inputs_cancel() -> None:
    opposite = torch.tensor([[1.0, 0, 0], [0, 1, -1], [0, -1, 1]])
    assert codes([7, 0.4, 0.4], opposite) == [7, 0, 0]
    assert codes([7, 0.4, -0.3], opposite) == [7, 1, 0]


def test_uncorrelated_inputs_leave_round_to_nearest() -> None:
    row = [7, 0.4, 0.6, -2.3, -2.8, 0.49, 0.51]
    assert codes(row, torch.diag(torch.arange(1.0, 8))) == [7, 0, 1, -2, -3, 0, 1]


def test_a_weight_whose_input_is_always_zero_goes_to_the_nearest_point() -> None:
    """Halves go to the even neighbour, as in RTN. The others see only each other."""
    second = torch.ones(7, 7)
    second[3:], second[:, 3:] = 0, 0
    assert codes([7, 0.4, 0.3, 0.3, 0.8, 0.5, -1.5], second) == [7, 1, 0, 0, 1, 0, -2]


def test_inputs_that_are_all_zero_leave_round_to_nearest() -> None:
    weight = gaussian(4, 24)
    made = AdaRound(bits=3, group_size=8).quantize(weight, moments(torch.zeros(24, 24)))
    assert torch.equal(made.codes, quantize_rtn(weight, bits=3, group_size=8).codes)
    assert made.notes["soft"] == 0


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_on_the_grid_stay(bits: int) -> None:
    """Even with an odd scale, by which a code times the scale cannot be divided exactly."""
    on_grid = quantize_rtn(gaussian(6, 40), bits=bits, group_size=16)
    weight = on_grid.dequantize(torch.float32)
    weight[0, 5] += 0.3 * on_grid.scale[0, 0]  # without an error anywhere nothing could move
    made = AdaRound(bits=bits, group_size=16).quantize(weight, moments(correlated(40)))
    kept = torch.ones(6, 40, dtype=torch.bool)
    kept[0, 5] = False
    assert torch.equal(made.codes[kept], on_grid.codes[kept])


@pytest.mark.parametrize(("bits", "group_size"), [(2, None), (3, 16), (4, 64), (8, None)])
def test_the_scale_is_that_of_rtn_and_the_output_nearer(bits: int, group_size: int | None) -> None:
    """Groups of 16 leave 8 for the last; a group of 64 is the whole row."""
    weight, second = gaussian(12, 40), correlated(40)
    made = AdaRound(bits=bits, group_size=group_size).quantize(weight, moments(second))
    nearest = quantize_rtn(weight, bits=bits, group_size=group_size)
    assert torch.equal(made.scale, nearest.scale)
    assert (made.bits, made.group_size) == (bits, group_size)
    assert made.codes.dtype == torch.int8
    assert made.codes.abs().max() == 2 ** (bits - 1) - 1
    errors = [quantized.dequantize(torch.float32) - weight for quantized in (made, nearest)]
    ours, theirs = (((error @ second) * error).sum().item() for error in errors)
    assert ours < 0.5 * theirs
    assert made.notes["soft"] == 0


def test_a_group_of_zeros_stays_zero() -> None:
    weight = torch.zeros(2, 24)
    weight[0, 8:16] = gaussian(1, 8)
    made = AdaRound(bits=4, group_size=8).quantize(weight, moments(correlated(24)))
    assert made.scale[0, 0] == made.scale[1, 1] == 1
    assert made.codes[0, :8].tolist() == [0] * 8
    assert made.codes[1].tolist() == [0] * 24
    alone = AdaRound(bits=4, group_size=8).quantize(weight[:1, 8:16], moments(correlated(24)[8:16, 8:16]))
    assert torch.equal(made.codes[:1, 8:16], alone.codes)


def test_a_weight_too_small_for_a_scale_gives_zeros() -> None:
    """The least float32 cannot be divided by 127 levels."""
    weight = torch.tensor([[2.0**-149, 0], [1, 0.4]])
    made = AdaRound(bits=8, group_size=None).quantize(weight, moments(torch.ones(2, 2)))
    assert made.codes.tolist()[0] == [0, 0]
    assert made.codes.tolist()[1] == [127, 51]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_rounded_in_float32(dtype: torch.dtype) -> None:
    weight, second = gaussian(8, 40).to(dtype), correlated(40)
    made = AdaRound(bits=4, group_size=16).quantize(weight, moments(second))
    exact = AdaRound(bits=4, group_size=16).quantize(weight.float(), moments(second))
    assert torch.equal(made.codes, exact.codes)
    assert made.scale.dtype == torch.float32


def test_weight_and_moments_are_left_alone_and_a_second_time_gives_the_same() -> None:
    weight, second = torch.nn.Parameter(gaussian(8, 40)), correlated(40)
    given = moments(second.clone())
    once, twice = (AdaRound(bits=3, group_size=None).quantize(weight, given) for _ in range(2))
    assert torch.equal(weight.detach(), gaussian(8, 40))
    assert torch.equal(given.second, second)
    assert torch.equal(once.codes, twice.codes)
    assert not once.dequantize(torch.float32).requires_grad


def test_too_few_steps_leave_soft_weights_and_say_how_many() -> None:
    weight = gaussian(8, 40)
    made = AdaRound(bits=3, group_size=None, steps=40).quantize(weight, moments(correlated(40)))
    assert 0.1 < made.notes["soft"] < 0.9


@pytest.mark.parametrize("floats", [1, 3000, 2**20])
def test_undecided_weights_by_themselves_end_where_they_would_among_all(
    floats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row at a time, a few, and all; never, for comparison, when no share is narrow enough."""
    weight, given = gaussian(16, 64), moments(correlated(64))
    monkeypatch.setattr(adaround_steps, "_FLOATS", floats)
    made = AdaRound(bits=3, group_size=None).quantize(weight, given)
    monkeypatch.setattr(adaround_steps, "_NARROW", 0)
    whole = AdaRound(bits=3, group_size=None).quantize(weight, given)
    assert torch.equal(made.codes, whole.codes)


def test_any_number_of_threads_gives_the_same_and_stays_set(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, given = gaussian(30, 40), moments(correlated(40))
    monkeypatch.setattr(adaround_steps, "_BLOCK", 1)
    monkeypatch.setattr(adaround_steps, "_LEAST_ROWS", 8)
    before, made = torch.get_num_threads(), []
    try:
        for n_threads in (1, 3):
            torch.set_num_threads(n_threads)
            made.append(AdaRound(bits=3, group_size=16).quantize(weight, given).codes)
            assert torch.get_num_threads() == n_threads
            with ThreadPoolExecutor(1) as new:
                assert new.submit(torch.get_num_threads).result() == n_threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*made)


def test_in_inference_mode_it_is_the_same() -> None:
    weight, second = gaussian(8, 40), correlated(40)
    outside = AdaRound(bits=3, group_size=16).quantize(weight, moments(second))
    with torch.inference_mode():
        inside = AdaRound(bits=3, group_size=16).quantize(gaussian(8, 40), moments(second))
    assert torch.equal(inside.codes, outside.codes)


@pytest.mark.parametrize("given", [None, moments(torch.zeros(3, 3), n_tokens=0)])
def test_a_layer_that_no_token_reached_is_refused(given: Moments | None) -> None:
    with pytest.raises(QuantDriftError, match="no calibration token reached this layer"):
        AdaRound(bits=4, group_size=None).quantize(torch.ones(2, 3), given)


@pytest.mark.parametrize("entry", [float("nan"), float("inf")])
def test_a_second_moment_that_is_not_finite_is_refused(entry: float) -> None:
    second = torch.eye(3)
    second[0, 1] = entry
    with pytest.raises(QuantDriftError, match="finite second moment"):
        AdaRound(bits=4, group_size=None).quantize(torch.ones(2, 3), moments(second))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_the_result_stays_there() -> None:
    weight, second = gaussian(16, 64).cuda(), correlated(64).cuda()
    made = AdaRound(bits=3, group_size=16).quantize(weight, moments(second))
    here = AdaRound(bits=3, group_size=16).quantize(weight.cpu(), moments(second.cpu()))
    assert made.codes.is_cuda
    assert made.scale.is_cuda
    assert (made.codes.cpu() == here.codes).float().mean() > 0.99


def test_a_scheme_decides_bits_and_groups() -> None:
    made = layer_quantizer(parse_scheme("W3-g64-adaround+calib=64"))
    assert made == AdaRound(bits=3, group_size=64)
    assert made.needs_moments
    assert made.describe() == {"backend": "quantdrift", "grid": "symmetric absmax"}
