"""GPTQ and AWQ by hand, and what would go wrong in the libraries that do them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quantdrift.engine.quantizers.awq import Awq, SearchedLinear
from quantdrift.engine.quantizers.base import LayerQuantizer, Moments
from quantdrift.engine.quantizers.gptq import BACKENDS, Gptq
from quantdrift.engine.quantizers.hqq import HQQ, Hqq
from quantdrift.engine.quantizers.libraries import AUTO_GPTQ, AUTOAWQ, GPTQMODEL
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.errors import DataError

INSTALLED = all(one.is_installed() for one in (GPTQMODEL, AUTO_GPTQ, AUTOAWQ, HQQ))
pytestmark = pytest.mark.skipif(not INSTALLED, reason="a quantization library is not installed")

GPTQ = [Gptq(bits=4, group_size=None, backend=backend) for backend in BACKENDS]
CALIBRATED = [*GPTQ, Awq(bits=4, group_size=None)]
ALL = [*CALIBRATED, Hqq(bits=4, group_size=None)]
by_backend = pytest.mark.parametrize("method", GPTQ, ids=lambda one: one.backend)
by_method = pytest.mark.parametrize("method", ALL, ids=lambda one: one.describe()["backend"])
calibrated = pytest.mark.parametrize("method", CALIBRATED, ids=lambda m: m.describe()["backend"])


def moments(second: Tensor, mean_abs: Tensor | None = None, n_tokens: int = 9) -> Moments:
    return Moments(
        second=second,
        mean_abs=second.diagonal().clamp(min=0).sqrt() if mean_abs is None else mean_abs,
        absmax=float(second.diagonal().max().sqrt()),
        n_tokens=n_tokens,
    )


def tokens(in_features: int, n_tokens: int = 400) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    mixed = torch.randn(n_tokens, in_features, generator=generator)
    return mixed @ torch.randn(in_features, in_features, generator=generator)


def moments_of(inputs: Tensor) -> Moments:
    return moments(inputs.T @ inputs / len(inputs), inputs.abs().mean(dim=0))


def weights(out_features: int, in_features: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(out_features, in_features, generator=generator) * 0.05


# --- GPTQ by hand --------------------------------------------------------------------------------


@by_backend
def test_gptq_makes_an_error_good_in_the_next_column(method: Gptq) -> None:
    """The scale is 7 / 7 = 1, so 2.6 becomes 3, which is 0.4 too much.

    With H = 2 [[5.03, 2.06], [2.06, 1.03]] after damping (1 % of the mean 3), the output changes
    least where the other weight loses 0.4 * 2.06 / 1.03 = 0.8: it is 6.2, which becomes 6.
    """
    second = torch.tensor([[5, 2.06], [2.06, 1]])
    quantized = method.quantize(torch.tensor([[2.6, 7]]), moments(second))
    assert quantized.codes.tolist() == [[3, 6]]
    assert quantized.scale.tolist() == [[1]]
    assert quantize_rtn(torch.tensor([[2.6, 7]]), bits=4, group_size=None).codes.tolist() == [[3, 7]]
    error = torch.tensor([-0.4, 1])  # plain rounding has only the first, and a loss of 0.4^2 * 5
    assert (error @ second @ error).item() == pytest.approx(0.152, abs=1e-5)


@by_backend
def test_act_order_starts_with_the_largest_input(method: Gptq) -> None:
    """The columns of the example above, the other way round; each column is its own group."""
    second = torch.tensor([[1, 2.06], [2.06, 5]])
    ordered = replace(method, act_order=True).quantize(torch.tensor([[7, 2.6]]), moments(second))
    assert ordered.codes.tolist() == [[6, 3]]
    assert ordered.permutation is not None
    assert ordered.permutation.tolist() == [1, 0]
    assert method.quantize(torch.tensor([[7, 2.6]]), moments(second)).codes.tolist() == [[7, 3]]
    split = replace(method, act_order=True, group_size=1)
    apart = split.quantize(torch.tensor([[7, 14]]), moments(second))
    assert apart.codes.tolist() == [[7, 7]]
    assert apart.scale.tolist() == [[2, 1]]  # in the order of the permutation
    assert apart.dequantize(torch.float32).tolist() == [[7, 14]]


@by_backend
def test_the_librarys_grid_has_no_middle_level_at_the_top(method: Gptq) -> None:
    """2 * 7.5 / (2^4 - 1) = 1: -7.5 rounds to -8, the one code more; 7.5 has to stay at 7."""
    weight = torch.tensor([[-7.5, 7.5, 3]])
    quantized = replace(method, grid="library").quantize(weight, moments(torch.eye(3)))
    assert quantized.scale.tolist() == [[1]]
    assert quantized.codes.tolist() == [[-8, 7, 3]]
    assert quantized.zero_point is None


# --- what the libraries would do -----------------------------------------------------------------


@calibrated
@pytest.mark.parametrize("group_size", [None, 3])
def test_an_input_that_was_always_zero_keeps_its_weights(method: Gptq | Awq, group_size: int | None) -> None:
    """The GPTQ libraries would set them to 0; AWQ's scaling of 0 would too."""
    inputs = tokens(6)
    inputs[:, 2] = 0
    weight = weights(4, 6)
    made = replace(method, bits=8, group_size=group_size).quantize(weight, moments_of(inputs))
    found = made.dequantize(torch.float32)[:, 2]
    torch.testing.assert_close(found, weight[:, 2], atol=0.002, rtol=0)


@calibrated
def test_inputs_that_were_all_zero_leave_plain_rounding(method: LayerQuantizer) -> None:
    weight = weights(4, 6)
    made = method.quantize(weight, moments(torch.zeros(6, 6)))
    assert torch.equal(made.codes, quantize_rtn(weight, bits=4, group_size=None).codes)


@by_method
def test_zeros_stay_zeros(method: LayerQuantizer) -> None:
    made = method.quantize(torch.zeros(2, 6), moments_of(tokens(6)))
    assert made.dequantize(torch.float32).tolist() == [[0.0] * 6] * 2


@calibrated
def test_no_token_is_an_error_before_the_library_sees_it(method: LayerQuantizer) -> None:
    for given in (None, moments(torch.zeros(6, 6), n_tokens=0)):
        with pytest.raises(DataError, match="no calibration token reached it; calibrate on more"):
            method.quantize(weights(4, 6), given)


@calibrated
def test_moments_that_overflowed_are_an_error(method: LayerQuantizer) -> None:
    with pytest.raises(DataError, match=r"needs finite second moments .* infinities or NaN"):
        method.quantize(weights(4, 2), moments(torch.tensor([[torch.inf, 0], [0, 1]])))


@by_backend
def test_gptq_raises_the_damping_of_a_moment_that_is_not_positive_and_says_so(method: Gptq) -> None:
    """Eigenvalues 2.05 and -0.05: a tenth of the diagonal makes them positive, a hundredth not."""
    weight, second = torch.tensor([[7, 2.6]]), torch.tensor([[1, 1.05], [1.05, 1]])
    assert dict(method.quantize(weight, moments(second)).notes) == {"damping": 0.1}
    assert dict(method.quantize(weight, moments(torch.eye(2))).notes) == {}


@calibrated
def test_a_matrix_that_is_no_second_moment_is_an_error(method: LayerQuantizer) -> None:
    with pytest.raises(DataError, match="positive semidefinite matrix; this one has no Cholesky"):
        method.quantize(weights(1, 2), moments(torch.tensor([[1.0, 5], [5, 1]])))


@by_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_weight_is_left_alone_and_quantized_in_float32(method: LayerQuantizer, dtype: torch.dtype) -> None:
    parameter = torch.nn.Parameter(weights(4, 6).to(dtype))
    before = parameter.detach().clone()
    x = moments_of(tokens(6))
    second = x.second.clone()
    made = method.quantize(parameter, x)
    assert torch.equal(parameter.detach(), before)
    assert torch.equal(x.second, second)
    assert made.scale.dtype == torch.float32
    assert torch.equal(made.codes, method.quantize(before.float(), x).codes)
    for tensor in (made.codes, made.scale, made.dequantize(dtype)):
        assert not tensor.requires_grad
        assert not tensor.is_inference()  # else a layer with these weights could not be trained


# --- AWQ -----------------------------------------------------------------------------------------


def test_awq_scales_up_the_weights_of_a_large_input() -> None:
    """Beside a 7 the scale is 1, and plain rounding loses a 0.4 whose input is 100 times larger."""
    weight, second = torch.tensor([[7, 0.4]]), torch.tensor([[1.0, 0], [0, 1e4]])
    made = Awq(bits=4, group_size=None).quantize(weight, moments(second))
    assert made.input_scaling is not None
    ratio = made.input_scaling[1] / made.input_scaling[0]
    exponents = torch.arange(20) / 20
    assert (ratio - 100**exponents).abs().min() < 1e-3
    error = made.dequantize(torch.float32) - weight
    assert (error @ second @ error.T).item() < 0.1 * 0.4**2 * 1e4
    assert quantize_rtn(weight, bits=4, group_size=None).codes.tolist() == [[7, 0]]


@pytest.mark.parametrize(("in_features", "group_size"), [(12, 4), (12, None), (10, 4), (3, 8)])
def test_awq_codes_on_the_librarys_grid_are_what_the_library_rounds_to(
    in_features: int, group_size: int | None
) -> None:
    """Each group on its own, so that a shorter last one needs no padding."""
    weight = weights(3, in_features)
    method = Awq(bits=3, group_size=group_size, grid="library")
    made = method.quantize(weight, moments_of(tokens(in_features)))
    assert made.input_scaling is not None
    assert made.codes.min() >= -4
    assert made.codes.max() <= 3
    groups = (weight * made.input_scaling).split(group_size or in_features, dim=1)
    library = [method._library(group.shape[1]).pseudo_quantize_tensor(group)[0] for group in groups]
    wanted = torch.cat(library, dim=1) / made.input_scaling
    torch.testing.assert_close(made.dequantize(torch.float32), wanted)


def test_awq_searches_past_an_input_that_was_always_zero() -> None:
    """Weights of 0 change no scale, so the other inputs are scaled as if these were not there."""
    inputs, weight = tokens(6) * torch.tensor([1.0, 1, 0, 1, 9, 1]), weights(4, 6)
    weight[:, 2] = 0
    alive = [0, 1, 3, 4, 5]
    method = Awq(bits=3, group_size=None)
    made = method.quantize(weight, moments_of(inputs)).input_scaling
    without = method.quantize(weight[:, alive], moments_of(inputs[:, alive])).input_scaling
    assert made is not None
    assert without is not None
    torch.testing.assert_close(made[alive] / made[0], without / without[0])
    assert without.max() > 1.5 * without.min()


def test_awqs_search_gives_the_layer_its_weights_back() -> None:
    """It saves them by `.cpu()`, which copies nothing on a CPU, and then scales them in place."""
    library = Awq(bits=4, group_size=None)._library(4)
    library.duo_scaling = True  # its first scaling is not all ones, and shows it
    layer, inputs = SearchedLinear(4, 3, bias=False), torch.eye(4)
    before = layer.weight.detach().clone()
    sizes = torch.tensor([1.0, 2, 3, 4])
    with torch.no_grad():
        library._compute_best_scale(inputs, sizes, sizes, layer, [layer], layer(inputs))
    assert torch.equal(layer.weight.detach(), before)
