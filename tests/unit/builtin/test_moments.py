"""What GPTQ and AdaRound make of moments that are no moments; what they are otherwise the oracles in property/ say."""

import pytest
import torch

from quantdrift.base.errors import DataError
from quantdrift.builtin.adaround.work import AdaRound
from quantdrift.builtin.gptq.work import Gptq
from support.quantizer_samples import moments_by_hand, skip_without


def test_the_damping_of_a_moment_that_is_not_positive_is_raised_and_told() -> None:
    """Eigenvalues 2.05 and -0.05: a tenth of the diagonal makes them positive, a hundredth not."""
    skip_without("gptqmodel")
    method = Gptq(bits=4, group_size=None)
    weight, second = torch.tensor([[7, 2.6]]), torch.tensor([[1, 1.05], [1.05, 1]])
    assert dict(method.quantize(weight, moments_by_hand(second)).notes) == {"damping": 0.1}
    assert dict(method.quantize(weight, moments_by_hand(torch.eye(2))).notes) == {}


def test_a_layer_without_finite_moments_is_refused() -> None:
    with pytest.raises(DataError, match="adaround needs"):
        AdaRound(bits=4, group_size=None).quantize(
            torch.ones(2, 2), moments_by_hand(torch.tensor([[1, torch.nan]] * 2))
        )
