"""AdaRound from its paper, by autograd and torch.optim.Adam: what ours is held against.

Slow and direct, and none of the package's code.
"""

import math

import torch
from torch import Tensor


def adaround(
    weight: Tensor, second: Tensor, *, bits: int, group_size: int | None, steps: int = 400, noise: bool = False
) -> tuple[Tensor, Tensor]:
    """Codes, and the rectified sigmoids before they are rounded, in the weight's dtype.

    In the warm-up the gradient is 0, as the error is 0 where v starts. Rounding noise is not 0, and
    Adam makes whole steps of it; `noise` says to take them.
    """
    floor, fraction, scale = on_the_grid(weight, bits, group_size)
    v = torch.logit((fraction + 0.1) / 1.2).requires_grad_()
    adam = torch.optim.Adam([v], lr=0.03)
    warm_up = 0.2 * steps
    for step in range(1, steps + 1):
        done = (step - warm_up) / (steps - warm_up)
        beta = 2 + (20 - 2) * 0.5 * (1 + math.cos(math.pi * done)) if done > 0 else None
        if beta is None and not noise:
            v.grad = torch.zeros_like(v)
        else:
            adam.zero_grad()
            objective(v, fraction, scale, second, beta).sum().backward()
        adam.step()
    up = rectified(v, fraction).detach()
    return floor + (up >= 0.5), up


def on_the_grid(weight: Tensor, bits: int, group_size: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The code below every weight, how far above it the weight is, and the scale."""
    levels = 2 ** (bits - 1) - 1
    parts = weight.split(group_size or weight.shape[1], dim=1)
    scales = [part.abs().amax(dim=1, keepdim=True).expand_as(part) / levels for part in parts]
    scale = torch.cat(scales, dim=1)
    position = weight / scale
    on_grid = (position - position.round()).abs() < 1e-4
    floor = torch.where(on_grid, position.round(), position.floor())
    return floor, torch.where(on_grid, 0.0, position - floor), scale


def rectified(v: Tensor, fraction: Tensor) -> Tensor:
    """The stretched sigmoid, cut off; weights on the grid stay there."""
    return torch.where(fraction == 0, 0.0, (1.2 * torch.sigmoid(v) - 0.1).clamp(0, 1))


def objective(v: Tensor, fraction: Tensor, scale: Tensor, second: Tensor, beta: float | None) -> Tensor:
    """The objective that is minimized, of every output channel; without the regularizer if beta is None."""
    up = rectified(v, fraction)
    error = (up - fraction) * scale
    whole_step = torch.where(fraction == 0, 0.0, scale)
    reference = whole_step.square() @ second.diagonal()
    loss = ((error @ second) * error).sum(dim=1) / reference
    if beta is not None:
        loss = loss + 10 * (1 - (2 * up - 1).abs().pow(beta)).sum(dim=1)
    return loss
