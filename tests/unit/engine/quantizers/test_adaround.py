"""AdaRound by hand: errors that cancel, weights that have nothing to learn, and what is refused."""

import pytest
import torch
from torch import Tensor

from quantdrift.base.errors import DataError
from quantdrift.engine.quantizers.adaround import AdaRound
from support.quantizer_samples import moments_by_hand


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


def test_a_layer_without_finite_moments_is_refused() -> None:
    with pytest.raises(DataError, match="adaround needs"):
        AdaRound(bits=4, group_size=None).quantize(
            torch.ones(2, 2), moments_by_hand(torch.tensor([[1, torch.nan]] * 2))
        )
