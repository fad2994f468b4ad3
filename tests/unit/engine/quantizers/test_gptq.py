"""GPTQ by hand."""

from dataclasses import replace

import pytest
import torch

from quantdrift.engine.quantizers.gptq import Gptq
from quantdrift.engine.quantizers.rtn import quantize_rtn
from support.quantizer_samples import moments_by_hand, skip_without


@pytest.fixture
def method() -> Gptq:
    skip_without("gptqmodel")
    return Gptq(bits=4, group_size=None)


def test_an_error_is_made_good_in_the_next_column(method: Gptq) -> None:
    """The scale is 7 / 7 = 1, so 2.6 becomes 3, which is 0.4 too much.

    With H = 2 [[5.03, 2.06], [2.06, 1.03]] after damping (1 % of the mean 3), the output changes
    least where the other weight loses 0.4 * 2.06 / 1.03 = 0.8: it is 6.2, which becomes 6.
    """
    second = torch.tensor([[5, 2.06], [2.06, 1]])
    quantized = method.quantize(torch.tensor([[2.6, 7]]), moments_by_hand(second))
    assert quantized.codes.tolist() == [[3, 6]]
    assert quantized.scale.tolist() == [[1]]
    assert quantize_rtn(torch.tensor([[2.6, 7]]), bits=4, group_size=None).codes.tolist() == [[3, 7]]
    error = torch.tensor([-0.4, 1])  # plain rounding has only the first, and a loss of 0.4^2 * 5
    assert (error @ second @ error).item() == pytest.approx(0.152, abs=1e-5)


def test_act_order_starts_with_the_largest_input(method: Gptq) -> None:
    """The columns of the example above, the other way round; each column is its own group."""
    moments = moments_by_hand(torch.tensor([[1, 2.06], [2.06, 5]]))
    ordered = replace(method, act_order=True).quantize(torch.tensor([[7, 2.6]]), moments)
    assert ordered.codes.tolist() == [[6, 3]]
    assert ordered.permutation is not None
    assert ordered.permutation.tolist() == [1, 0]
    assert method.quantize(torch.tensor([[7, 2.6]]), moments).codes.tolist() == [[7, 3]]
    apart = replace(method, act_order=True, group_size=1).quantize(torch.tensor([[7, 14]]), moments)
    assert apart.codes.tolist() == [[7, 7]]
    assert apart.scale.tolist() == [[2, 1]]  # in the order of the permutation
    assert apart.dequantize(torch.float32).tolist() == [[7, 14]]


def test_the_librarys_grid_has_no_middle_level_at_the_top(method: Gptq) -> None:
    """2 * 7.5 / (2^4 - 1) = 1: -7.5 rounds to -8, the one code more; 7.5 has to stay at 7."""
    quantized = replace(method, grid="library").quantize(torch.tensor([[-7.5, 7.5, 3]]), moments_by_hand(torch.eye(3)))
    assert quantized.scale.tolist() == [[1]]
    assert quantized.codes.tolist() == [[-8, 7, 3]]
    assert quantized.zero_point is None


def test_the_damping_of_a_moment_that_is_not_positive_is_raised_and_told(method: Gptq) -> None:
    """Eigenvalues 2.05 and -0.05: a tenth of the diagonal makes them positive, a hundredth not."""
    weight, second = torch.tensor([[7, 2.6]]), torch.tensor([[1, 1.05], [1.05, 1]])
    assert dict(method.quantize(weight, moments_by_hand(second)).notes) == {"damping": 0.1}
    assert dict(method.quantize(weight, moments_by_hand(torch.eye(2))).notes) == {}
