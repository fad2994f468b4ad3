"""What harnesses and models do to rows: mix them, rescale them, put the batch in another place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from quantdrift.engine.layers import find_linears
from quantdrift.engine.sensitivity.criteria import Setting, rounding_error
from quantdrift.engine.sensitivity.gradients import contributions
from quantdrift.engine.sensitivity.problem import Batch, GapProblem
from quantdrift.errors import UnsupportedError
from quantdrift.progress import Silent

N_ROWS, N_TOKENS, DIM = 4, 3, 8
After = Callable[[Tensor], Tensor]


class TokensFirst(nn.Module):
    """The batch is the second axis inside; a norm without weights comes last."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.norm = nn.LayerNorm(DIM, elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.two(torch.tanh(self.one(x.transpose(0, 1))))
        return self.norm(tokens.mean(dim=0))  # type: ignore[no-any-return]  # untyped in torch


def setting_of(model: nn.Module, x: Tensor, parts: Sequence[Sequence[int]], after: After = lambda o: o) -> Setting:
    def run(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return after(model(x[torch.from_numpy(rows)])).float().numpy()

    batches = [Batch(rows=np.array(part), run=lambda part=part: run(np.array(part))) for part in parts]
    return Setting(
        modules=[model],
        layers=find_linears([model]),
        widths=(2, 8),
        group_size=None,
        seed=0,
        progress=Silent(),
        problem=GapProblem(
            batches=batches,
            rows=np.arange(N_ROWS)[:, None, None],
            valid=np.ones((N_ROWS, 1), dtype=np.bool_),
            gap=lambda outputs: outputs[:, :, 0, 0] - outputs[:, :, 0, 1],
        ),
    )


def slopes(setting: Setting, step: float = 1e-3) -> NDArray[np.float64]:
    """Of every gap along the change of every layer at the narrowest width, by a small step."""
    problem = setting.problem
    assert problem is not None
    before = problem.gaps(problem.outputs())
    found = []
    for layer in setting.layers:
        weight = layer.weight.clone()
        layer.weight.sub_(step * rounding_error(layer, 2, None))
        found.append((problem.gaps(problem.outputs()) - before) / step)
        layer.weight.copy_(weight)
    return np.stack(found, axis=-1)


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3]], [[0], [1, 2, 3]], [[2, 0], [3], [1]]])
def test_rows_along_another_axis_are_told_apart_whatever_batch_comes_first(parts: list[list[int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    model = TokensFirst(generator)
    setting = setting_of(model, torch.randn(N_ROWS, N_TOKENS, DIM, generator=generator), parts)
    expected = slopes(setting)
    np.testing.assert_allclose(contributions(setting)[..., 0], expected, atol=0.03 * np.abs(expected).max())


def one_layer(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(DIM, DIM, bias=False, dtype=dtype))
    model[0].weight.data = torch.randn(DIM, DIM, generator=generator).to(dtype)
    return model, torch.randn(N_ROWS, DIM, generator=generator).to(dtype)


ALL = [list(range(N_ROWS))]


def test_outputs_of_unit_length_have_the_slope_of_a_direction() -> None:
    """A change along the output does nothing then, so the slope is another."""
    model, x = one_layer()
    setting = setting_of(model, x, ALL, lambda outputs: normalize(outputs, dim=-1))
    found = contributions(setting)[..., 0]
    np.testing.assert_allclose(found, slopes(setting), atol=0.01 * np.abs(found).max())
    plain = contributions(setting_of(model, x, ALL))[..., 0]
    assert np.abs(found - plain).max() > 0.5 * np.abs(found).max()


def test_in_half_precision_a_unit_length_is_one_up_to_rounding() -> None:
    model, x = one_layer(torch.bfloat16)
    found = contributions(setting_of(model, x, ALL, lambda o: normalize(o, dim=-1)))
    exact, y = one_layer()
    expected = contributions(setting_of(exact, y, ALL, lambda o: normalize(o, dim=-1)))
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("after", [lambda o: 2 * o, lambda o: o / o.norm(dim=-1, keepdim=True) * 3])
def test_other_lengths_are_refused(after: After) -> None:
    model, x = one_layer()
    with pytest.raises(UnsupportedError, match=r"computed after the model; .* gap_exact"):
        contributions(setting_of(model, x, ALL, after))
