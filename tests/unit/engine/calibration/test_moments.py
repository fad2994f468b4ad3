"""Moments of a layer's input, by hand and against plain products."""

from __future__ import annotations

import pytest
import torch

from quantdrift.engine.calibration.in_order import gram, moments_of, output_error


def test_moments_by_hand() -> None:
    """Two tokens, (1, -2) and (3, 0): second moments (1 + 9) / 2, -2 / 2, 4 / 2."""
    moments = moments_of([(torch.tensor([[[1.0, -2], [3, 0]]]), None)], 2, second=True)
    assert moments.second.tolist() == [[5, -1], [-1, 2]]
    assert moments.mean_abs.tolist() == [2, 1]
    assert (moments.absmax, moments.n_tokens) == (3, 2)


def test_padding_does_not_count() -> None:
    x = torch.tensor([[[1.0, -2], [100, 100]], [[3, 0], [50, 50]]])
    mask = torch.tensor([[True, False], [True, False]])
    masked = moments_of([(x, mask)], 2, second=True)
    assert masked.second.tolist() == [[5, -1], [-1, 2]]
    assert (masked.absmax, masked.n_tokens) == (3, 2)


def test_batches_add_up_whatever_their_number() -> None:
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    whole = moments_of([(x, None)], 5, second=True)
    parts = moments_of([(x[:7], None), (x[7:8], None), (x[8:].view(2, 11, 5), None)], 5, second=True)
    assert torch.allclose(whole.second, parts.second, atol=1e-6)
    assert torch.allclose(whole.mean_abs, parts.mean_abs)
    assert (whole.absmax, whole.n_tokens) == (parts.absmax, parts.n_tokens)


def test_half_precision_is_summed_in_single() -> None:
    x = torch.full((3000, 1), 0.1, dtype=torch.bfloat16)
    moments = moments_of([(x, None)], 1, second=True)
    assert moments.second.dtype == torch.float32
    assert moments.second.item() == pytest.approx(float(x[0].double() ** 2), rel=1e-4)


def test_no_token_gives_zeros() -> None:
    for inputs in ([], [(torch.ones(1, 2, 3), torch.zeros(1, 2, dtype=torch.bool))]):
        moments = moments_of(inputs, 3, second=True)
        assert moments.n_tokens == 0
        assert not moments.second.any()


@pytest.mark.parametrize("n", [1, 383, 384, 385, 800])
def test_half_of_the_products_is_mirrored(n: int) -> None:
    rows = torch.randn(20, n, generator=torch.Generator().manual_seed(n))
    found = gram(rows)
    assert torch.equal(found, found.T)
    assert torch.allclose(found.double(), rows.double().T @ rows.double(), atol=1e-4)


def test_the_output_error_is_that_of_the_outputs() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(50, 6, generator=rng)
    weight, low = (torch.randn(4, 6, generator=rng) for _ in range(2))
    second = moments_of([(x, None)], 6, second=True).second
    wanted = (x @ (weight - low).T).square().sum() / (x @ weight.T).square().sum()
    assert output_error(weight, low, second) == pytest.approx(float(wanted), rel=1e-5)
    assert output_error(weight, weight, second) == 0
    assert output_error(torch.zeros(4, 6), low, second) is None
