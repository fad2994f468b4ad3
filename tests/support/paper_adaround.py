"""AdaRound as its paper (Nagel et al. 2020) describes it, by autograd and torch.optim.Adam: what ours is held against.

Slow and direct, and none of the package's code. The description is: the weight W becomes s clip(floor(W / s) + h, n, p)
with h = clip(sigmoid(V) (zeta - gamma) + gamma, 0, 1), zeta 1.1 and gamma -0.1; V begins where h is what floor cuts
off; Adam minimizes the squared error of the layer's output plus a regularizer times the sum of 1 - |2 h - 1|^beta;
beta is annealed, and the regularizer is left out at first; in the end h is rounded. It leaves open

- how the error is weighed against the regularizer: `error` is its sum over all tokens, its mean over them, or what it
  is of the error that a whole step in every weight makes were inputs uncorrelated (relative);
- along which line beta falls from 20 to 2: `anneal`, a straight line or half a cosine.

Before the regularizer joins in, error and gradient are 0. Adam divides by the size of the gradient, so it blows
rounding noise up to whole steps; `exact` takes the 0 of exact arithmetic instead. A weight that is on the grid has
nothing to round; `stays` takes it out, where the description lets it rise by a step.
"""

import math
from typing import Literal

import torch
from torch import Tensor

Error = Literal["sum", "mean", "relative"]
Anneal = Literal["line", "cosine"]


def adaround(
    weight: Tensor,
    inputs: Tensor,
    *,
    bits: int,
    group_size: int | None,
    steps: int = 400,
    error: Error = "relative",
    anneal: Anneal = "cosine",
    exact: bool = True,
    stays: bool = True,
) -> tuple[Tensor, Tensor]:
    """Codes, and h before it is rounded, in the weight's dtype; `inputs` are [tokens, in_features]."""
    top, columns = 2 ** (bits - 1) - 1, weight.shape[1]
    parts = weight.split(group_size or columns, dim=1)
    scale = torch.cat([part.abs().amax(dim=1, keepdim=True).expand_as(part) / top for part in parts], dim=1)
    place = weight / scale
    on_grid = (place - place.round()).abs() < 1e-4 * stays
    floor = torch.where(on_grid, place.round(), place.floor())
    v = torch.logit(((place - floor).where(~on_grid, 0) + 0.1) / 1.2).requires_grad_()
    adam = torch.optim.Adam([v], lr=0.03)
    warm_up = 0.2 * steps
    step_error = (scale.where(~on_grid, 0).square() * inputs.square().mean(dim=0)).sum(dim=1)
    for step in range(1, steps + 1):
        h = _rectified(v).where(~on_grid, 0)
        made = scale * (floor + h).clamp(-top, top)
        of_output = ((made - weight) @ inputs.T).square().mean(dim=1)
        loss = {"sum": of_output * len(inputs), "mean": of_output, "relative": of_output / step_error}[error].sum()
        if (done := (step - warm_up) / (steps - warm_up)) > 0:
            fallen = done if anneal == "line" else (1 - math.cos(math.pi * done)) / 2
            loss = loss + 10 * (1 - (2 * h - 1).abs().pow(20 - 18 * fallen)).sum()
        adam.zero_grad()
        loss.backward()
        if exact and done <= 0:
            v.grad = torch.zeros_like(v)
        adam.step()
    h = _rectified(v.detach()).where(~on_grid, 0)
    return (floor + (h >= 0.5)).clamp(-top, top), h


def _rectified(v: Tensor) -> Tensor:
    return (1.2 * torch.sigmoid(v) - 0.1).clamp(0, 1)
