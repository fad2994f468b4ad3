"""Every library backend against the method as its paper defines it, in cells of every kind.

The references compute in float64, the libraries in float32. Where a weight falls within a hair of
the middle between two codes the two may round it differently, and one code makes more than 1e-4 of
the output. So a reference takes the library's code there, and nowhere else.
"""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from quantdrift.builtin.awq.work import Awq
from quantdrift.builtin.gptq.work import Gptq
from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.candidate.quantized import Moments, QuantizedWeight
from quantdrift.kinds.quantizer import QUANTIZERS
from support import paper_quantizers as paper
from support.quantizer_samples import moments_of, skip_without, weights

SAME_OUTPUT = 1e-4
"""Largest distance between the outputs of two layers that count as the same, relative."""


def as_float64(tensor: Tensor) -> paper.Matrix:
    return tensor.double().numpy()


def rounded(quantized: QuantizedWeight) -> paper.Matrix:
    return as_float64(quantized.dequantize(torch.float32))


@functools.cache
def layer_of(in_features: int) -> tuple[Tensor, Moments]:
    """A weight matrix, and the moments of its inputs."""
    return weights(0, 24, in_features), moments_of(paper.outlying_inputs(0, 600, in_features))


def difference(quantized: QuantizedWeight, wanted: paper.Matrix, weight: Tensor, x: Moments) -> float:
    low, second = rounded(quantized), as_float64(x.second)
    return paper.output_difference(low, wanted, as_float64(weight), second)


def gptq_reference(
    method: Gptq, quantized: QuantizedWeight, weight: Tensor, moments: Moments
) -> tuple[paper.Matrix, int]:
    """Return the weights that the paper's GPTQ rounds to, and how many weights it rounded as `quantized` has them."""
    how: Any = {"act_order": method.act_order, "library_grid": method.grid == "library"}
    exact, ties = as_float64(weight), quantized.codes.numpy().astype(float)
    return paper.gptq(exact, as_float64(moments.second), method.bits, method.group_size, ties=ties, **how)


CELLS = ((2, 256, None), (3, 200, 64), (4, 256, 128), (8, 256, 64))
"""Bits, input features and group size: channel, g64 with a last group of 8, g128 and g64."""


@pytest.mark.parametrize("act_order", [False, True], ids=["gptq", "gptq_ao"])
@pytest.mark.parametrize(("bits", "in_features", "group_size"), CELLS)
def test_gptq_is_the_papers(bits: int, in_features: int, group_size: int | None, act_order: bool) -> None:
    skip_without("gptqmodel")
    weight, moments = layer_of(in_features)
    method = Gptq(bits=bits, group_size=group_size, act_order=act_order)
    quantized = method.quantize(weight, moments)
    wanted, n_followed = gptq_reference(method, quantized, weight, moments)
    assert difference(quantized, wanted, weight, moments) <= SAME_OUTPUT
    assert n_followed <= weight.numel() / 1000
    plain = rounded(quantize_rtn(weight, bits=bits, group_size=group_size))
    exact, second = as_float64(weight), as_float64(moments.second)
    assert paper.loss(exact, wanted, second) < 0.95 * paper.loss(exact, plain, second)


@given(
    seed=st.integers(0, 2**16),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 40)),
    bits=st.integers(2, 8),
    group_size=st.none() | st.integers(1, 50),
    act_order=st.booleans(),
    grid=st.sampled_from(["paper", "library"]),
    dead=st.booleans(),
)
def test_gptq_is_the_papers_for_any_shape(
    *, seed: int, shape: tuple[int, int], bits: int, group_size: int | None, act_order: bool, grid: str, dead: bool
) -> None:
    """Among them single columns, rows of zeros, groups of one, inputs that are always 0."""
    skip_without("gptqmodel")
    weight, inputs = weights(seed, *shape), paper.outlying_inputs(seed, 50, max(4, shape[1]))
    inputs = inputs[:, : shape[1]]
    if dead:
        weight[0], inputs[:, seed % shape[1]] = 0, 0
    moments = moments_of(inputs)
    method = Gptq(bits=bits, group_size=group_size, act_order=act_order, grid=grid)
    quantized = method.quantize(weight, moments)
    wanted, _ = gptq_reference(method, quantized, weight, moments)
    np.testing.assert_allclose(rounded(quantized), wanted, atol=1e-5 * 0.05, rtol=1e-4)


def awq(backend: str, bits: int, group_size: int | None) -> Awq:
    skip_without(backend)
    return Awq(bits=bits, group_size=group_size, package=QUANTIZERS.packages[backend])


@pytest.mark.parametrize("backend", ["gptqmodel", "autoawq"])
@pytest.mark.parametrize(("bits", "in_features", "group_size"), CELLS)
def test_awq_is_the_papers(bits: int, in_features: int, group_size: int | None, backend: str) -> None:
    weight, moments = layer_of(in_features)
    quantized = awq(backend, bits, group_size).quantize(weight, moments)
    exact, second = as_float64(weight), as_float64(moments.second)
    losses, scalings = paper.awq_losses(exact, second, as_float64(moments.mean_abs), bits, group_size)
    best = scalings[int(np.argmin(losses))]
    assert quantized.input_scaling is not None
    scaling = as_float64(quantized.input_scaling)
    np.testing.assert_allclose(scaling / scaling[0], best / best[0], rtol=1e-5)
    wanted = paper.awq(exact, best, bits, group_size, ties=as_float64(quantized.codes))
    assert difference(quantized, wanted, weight, moments) <= SAME_OUTPUT
    assert losses.min() < 0.9 * losses[0]  # the first is plain rounding


@given(
    seed=st.integers(0, 2**16),
    shape=st.tuples(st.integers(1, 5), st.integers(4, 40)),
    bits=st.integers(2, 8),
    group_size=st.none() | st.integers(1, 50),
    size=st.sampled_from([1e-6, 1, 1e6]),
    backend=st.sampled_from(["gptqmodel", "autoawq"]),
)
@example(seed=0, shape=(1, 4), bits=2, group_size=None, size=1.0, backend="gptqmodel")  # one row is always contiguous
def test_awq_finds_the_least_loss_for_any_shape_and_size(
    *, seed: int, shape: tuple[int, int], bits: int, group_size: int | None, size: float, backend: str
) -> None:
    """Weights and inputs of any size: the library's clamps have an absolute size."""
    weight = weights(seed, *shape) * size
    inputs = paper.outlying_inputs(seed, 50, shape[1]) / size
    moments = moments_of(inputs)
    quantized = awq(backend, bits, group_size).quantize(weight, moments)
    exact, second = as_float64(weight), as_float64(moments.second)
    losses, _ = paper.awq_losses(exact, second, as_float64(moments.mean_abs), bits, group_size)
    scale = paper.loss(exact, 0 * exact, second)
    assert paper.loss(exact, rounded(quantized), second) <= losses.min() * 1.001 + 1e-10 * scale


@pytest.mark.parametrize("backend", ["gptqmodel", "autoawq"])
@pytest.mark.parametrize("bits", [3, 4])
def test_awq_of_a_wide_layer_comes_close_to_the_least_loss(bits: int, backend: str) -> None:
    """Its search sees random sums of the rows that stand for the inputs."""
    worst = 0.0
    for seed in range(4):
        weight, moments = weights(seed, 48, 768), moments_of(paper.outlying_inputs(seed, 2000, 768))
        quantized = awq(backend, bits, 128).quantize(weight, moments)
        exact, second = as_float64(weight), as_float64(moments.second)
        losses, _ = paper.awq_losses(exact, second, as_float64(moments.mean_abs), bits, 128)
        worst = max(worst, paper.loss(exact, rounded(quantized), second) / losses.min() - 1)
        assert losses.min() < 0.95 * losses[0]
    assert worst < 0.02
