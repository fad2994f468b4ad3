"""The moments of a layer's input, over all calibration batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quantdrift.quantizers import Moments

__all__ = ["gram", "moments_of", "output_error"]

_BLOCK = 384


def gram(rows: Tensor) -> Tensor:
    """rows^T rows, of which half is computed and half mirrored.

    Args:
        rows: float32 [n_tokens, in_features].

    Returns:
        float32 [in_features, in_features], symmetric.
    """
    n = rows.shape[1]
    product = rows.new_empty(n, n)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        product[start:stop, start:] = rows[:, start:stop].T @ rows[:, start:]
        product[stop:, start:stop] = product[start:stop, stop:].T
    return product


def moments_of(
    inputs: Sequence[tuple[Tensor, Tensor | None]], in_features: int, *, second: bool
) -> Moments:
    """The moments over all tokens of several inputs.

    Args:
        inputs: of every batch the input [..., in_features], and which of its rows count (None for
            all of them).
        in_features: of the layer.
        second: whether the second moment is wanted; zeros stand for it otherwise.

    Returns:
        Float32, on the inputs' device.
    """
    device = inputs[0][0].device if inputs else torch.device("cpu")
    total = torch.zeros(in_features, in_features if second else 0, device=device)
    absolute = torch.zeros(in_features, device=device)
    largest = torch.zeros((), device=device)
    n_tokens = 0
    for x, mask in inputs:
        rows = (x.reshape(-1, in_features) if mask is None else x[mask]).to(torch.float32)
        if not len(rows):
            continue
        if second:
            total += gram(rows)
        absolute += rows.abs().sum(dim=0)
        largest = torch.maximum(largest, rows.abs().max())
        n_tokens += len(rows)
    return Moments(
        second=total / max(1, n_tokens),
        mean_abs=absolute / max(1, n_tokens),
        absmax=float(largest),
        n_tokens=n_tokens,
    )


def output_error(weight: Tensor, low: Tensor, second: Tensor) -> float | None:
    """Relative squared error of a layer's output, ||X (W - Q)^T||^2 / ||X W^T||^2.

    Args:
        weight: [out_features, in_features].
        low: what takes its place, likewise.
        second: mean of x x^T over the calibration tokens, [in_features, in_features].

    Returns:
        At least 0; None where the layer's output is zero.
    """
    exact = weight.to(torch.float32)
    error = exact - low.to(torch.float32)
    power = float(((exact @ second) * exact).sum())
    return max(0.0, float(((error @ second) * error).sum()) / power) if power > 0 else None
