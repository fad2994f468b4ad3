"""Moments of a layer's input and the grid of its activations, by hand and against plain products."""

import pytest
import torch

from quantdrift.candidate.calibration.inputs import add_gram, fake_quantize, moments_of, output_error


@pytest.mark.parametrize(
    "inputs",
    [
        [(torch.tensor([[[1.0, -2], [3, 0]]]), None)],
        [(torch.tensor([1.0, -2]), None), (torch.tensor([[3.0, 0]]), None)],
        [(torch.tensor([[[1.0, -2], [9, 9]], [[3, 0], [9, 9]]]), torch.tensor([[True, False], [True, False]]))],
    ],
)
def test_moments_by_hand(inputs: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
    """Two tokens, (1, -2) and (3, 0): second moments (1 + 9) / 2, -2 / 2, 4 / 2. Padding does not count."""
    moments = moments_of(inputs, 2, second=True)
    assert (moments.second.tolist(), moments.mean_abs.tolist()) == ([[5, -1], [-1, 2]], [2, 1])
    assert (moments.absmax, moments.n_tokens) == (3, 2)


@pytest.mark.parametrize("n", [1, 383, 384, 385, 800])
def test_half_of_the_products_is_mirrored(n: int) -> None:
    rows = torch.randn(20, n, generator=torch.Generator().manual_seed(n))
    product = torch.zeros(n, n)
    for part in rows.split(12):
        add_gram(product, part)
    assert torch.equal(product, product.T)
    assert torch.allclose(product.double(), rows.double().T @ rows.double(), atol=1e-4)


def test_the_output_error_is_that_of_the_outputs() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(50, 6, generator=rng)
    weight, low = (torch.randn(4, 6, generator=rng) for _ in range(2))
    second = moments_of([(x, None)], 6, second=True).second
    wanted = (x @ (weight - low).T).square().sum() / (x @ weight.T).square().sum()
    assert output_error(weight, low, second) == pytest.approx(float(wanted), rel=1e-5)
    assert output_error(weight, weight, second) == 0
    assert output_error(torch.zeros(4, 6), low, second) is None


def test_the_grid_of_activations_by_hand() -> None:
    """127 levels up to 12.7: steps of 0.1, halves to even, and what is beyond is clipped."""
    x = torch.tensor([0.04, 0.26, -0.26, 12.7, 13.0, -99.0])
    rounded = fake_quantize(x, absmax=12.7, bits=8)
    assert rounded.tolist() == pytest.approx([0, 0.3, -0.3, 12.7, 12.7, -12.7])
    assert fake_quantize(torch.ones(3), absmax=0.0, bits=8).tolist() == [0, 0, 0]
    assert fake_quantize(x.half(), absmax=12.7, bits=4).dtype == torch.float16


def test_every_token_has_a_grid_of_its_own_by_hand() -> None:
    """7 levels up to 0.7 and up to 70: steps of 0.1 and 10; a token of zeros stays one."""
    x = torch.tensor([[[0.7, 0.26, -0.04], [70, -26, 4], [0, 0, 0]]])
    rounded = fake_quantize(x, absmax=None, bits=4)
    assert rounded.flatten().tolist() == pytest.approx([0.7, 0.3, 0, 70, -30, 0, 0, 0, 0])
    assert fake_quantize(x.bfloat16(), absmax=None, bits=8).dtype == torch.bfloat16
    assert fake_quantize(x[:, :0], absmax=None, bits=8).shape == (1, 0, 3)  # an expert without tokens
    endless = fake_quantize(torch.tensor([[1.0, float("inf")], [1.0, 0.5]]), absmax=None, bits=8)
    assert endless.isfinite().tolist() == [[False, False], [True, True]]


@pytest.mark.slow
def test_tokens_are_rounded_as_torchao_rounds_them() -> None:
    utils = pytest.importorskip("torchao.quantization.utils")
    x = torch.randn(4, 50, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 50)[:, None]
    codes, scale = utils._quantize_activation_per_token_absmax(x)
    wanted = codes.float() * scale.reshape(4, 50, 1)
    torch.testing.assert_close(fake_quantize(x, absmax=None, bits=8), wanted, rtol=1e-6, atol=0)
