"""Laws of AdaRound, for any layer, and that it is what its paper describes, by autograd and torch's own Adam."""

from dataclasses import dataclass
from itertools import product
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quantdrift.builtin.adaround.work import AdaRound
from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.candidate.quantized import QuantizedWeight
from support.paper_adaround import Anneal, Error, adaround
from support.quantizer_samples import moments_by_hand
from support.threads import one_thread

__all__ = ["one_thread"]

BITS, GROUPS = st.integers(2, 8), st.none() | st.integers(1, 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    weight: Tensor
    second: Tensor

    def made(self, bits: int, group_size: int | None, steps: int = 400) -> QuantizedWeight:
        method = AdaRound(bits=bits, group_size=group_size, steps=steps)
        return method.quantize(self.weight, moments_by_hand(self.second))


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Outliers, weights and whole columns of inputs that are 0, fewer tokens than inputs."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 40))
    n_tokens = draw(st.integers(1, 60))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    weight = torch.randn(rows, columns, generator=generator) ** draw(st.sampled_from([1, 3]))
    inputs = torch.randn(n_tokens, columns, generator=generator)
    inputs += draw(st.sampled_from([0, 1, 10])) * torch.randn(columns, generator=generator)
    for part in (weight, inputs):
        share = draw(st.sampled_from([0, 0.3]))
        part.mul_(torch.rand(columns, generator=generator) >= share)
    return Layer(weight=weight, second=inputs.T @ inputs / n_tokens)


@settings(deadline=None, max_examples=12)
@given(layers(), BITS, GROUPS)
def test_every_weight_goes_to_one_of_its_two_neighbours(layer: Layer, bits: int, group_size: int | None) -> None:
    made = layer.made(bits, group_size)
    nearest = quantize_rtn(layer.weight, bits=bits, group_size=group_size)
    levels = 2 ** (bits - 1) - 1
    assert torch.equal(made.scale, nearest.scale)
    assert made.codes.abs().max() <= levels
    low = made.dequantize(torch.float32)
    assert ((layer.weight - low).abs() / made.of_column(made.scale) < 1 + 1e-5 * levels).all()
    assert 0 <= made.notes["soft"] <= 1
    again = Layer(weight=low, second=layer.second).made(bits, group_size)
    assert torch.equal(again.dequantize(torch.float32), low)


@settings(deadline=None, max_examples=10)
@given(layers(), BITS, GROUPS, st.sampled_from([-80, 3, 60]), st.integers(-30, 30))
def test_units_do_not_matter(layer: Layer, bits: int, group_size: int | None, power: int, power_of_inputs: int) -> None:
    """Powers of two, which change no digit. The squares of 2^-80 are below the least float32."""
    moved = Layer(weight=layer.weight * 2.0**power, second=layer.second * 4.0**power_of_inputs)
    assert torch.equal(moved.made(bits, group_size).codes, layer.made(bits, group_size).codes)


def correlated(seed: int, rows: int = 16, columns: int = 40) -> tuple[Tensor, Tensor]:
    """Weights, and more tokens than inputs, which share causes, a mean and a few loud columns."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(columns, columns, generator=generator)
    inputs = torch.randn(4 * columns, columns, generator=generator) @ mixing
    inputs += 3 * torch.randn(columns, generator=generator)
    inputs *= torch.exp(0.5 * torch.randn(columns, generator=generator))
    return 0.05 * torch.randn(rows, columns, generator=generator), inputs


# --- against the published description, by autograd and torch.optim.Adam in float64 ---------------


@pytest.mark.parametrize(
    ("seed", "bits", "group_size", "steps"),
    [(0, 3, None, 400), (1, 2, 16, 100), (2, 4, 7, 100), (3, 8, 16, 60), (4, 3, None, 10)],
)
def test_codes_are_those_of_autograd_and_adam(seed: int, bits: int, group_size: int | None, steps: int) -> None:
    """With our reading of what the paper leaves open. Fewer steps leave many weights soft, and as many here."""
    weight, inputs = correlated(seed)
    wanted, up = adaround(weight.double(), inputs.double(), bits=bits, group_size=group_size, steps=steps)
    made = Layer(weight=weight, second=inputs.T @ inputs / len(inputs)).made(bits, group_size, steps)
    assert (made.codes != wanted).sum() <= 2
    soft = ((up > 0) & (up < 1)).double().mean().item()
    assert made.notes["soft"] == pytest.approx(soft, abs=1.5 / up.numel())


def test_how_the_paper_is_read_moves_the_error_of_the_output_by_less_than_a_tenth() -> None:
    """All weights of the error, both lines of beta, nothing taken out: each ends near ours, at half of RTN's error."""
    weight, inputs = (part.double() for part in correlated(5))
    nearest = quantize_rtn(weight.float(), bits=3, group_size=16)

    def error(codes: Tensor) -> float:
        made = codes.double() * nearest.of_column(nearest.scale).double()
        return float(((made - weight) @ inputs.T).square().sum())

    ours = error(Layer(weight=weight.float(), second=(inputs.T @ inputs).float()).made(3, 16).codes)
    assert ours < 0.55 * error(nearest.codes)
    for weighed, anneal in product(get_args(Error), get_args(Anneal)):
        read = {"error": weighed, "anneal": anneal, "exact": False, "stays": False}
        theirs = error(adaround(weight, inputs, bits=3, group_size=16, **read)[0])
        assert ours / theirs == pytest.approx(1, abs=0.1), read
