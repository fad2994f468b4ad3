"""Contributions of every layer to every gap, for all kinds of models: slopes by small steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.engine.calibration.in_order import plain_products
from quantdrift.engine.layers import find_linears
from quantdrift.engine.sensitivity import problem as problems
from quantdrift.engine.sensitivity.criteria import Setting, rounding_error
from quantdrift.engine.sensitivity.gradients import contributions
from quantdrift.engine.sensitivity.problem import GapProblem
from quantdrift.engine.weights import weights_fingerprint
from quantdrift.errors import UnsupportedError
from quantdrift.progress import Silent
from support.model_zoo import ZOO, Batch, ZooModel, zoo_model

STEP = 1e-3
SMALL_STEP = 1e-4
"""Where a larger one sends tokens to other experts."""
WIDTHS = (2, 4, 8)


class Answering(nn.Module):
    """A model with what a harness computes after it, as one module, as embedding models are."""

    def __init__(self, model: nn.Module, answer: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model, self._answer = model, answer

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        batch["answer"] = self._answer(self.model, batch.copy())
        return batch


def gap_of_rows(outputs: Tensor) -> Tensor:
    """Of a row's first three numbers: first less second, and first less third."""
    rows = outputs[:, :, 0]
    return torch.stack([rows[:, 0, 0] - rows[:, 0, 1], rows[:, 1, 0] - rows[:, 1, 2]], dim=1)


def gap_between_rows(outputs: Tensor) -> Tensor:
    """Products of a row with its second, less those with its third."""
    query, first, other = outputs.unbind(dim=2)
    return (query * (first - other)).sum(dim=-1)


def world(entry: ZooModel, *, between: bool = False) -> tuple[Answering, GapProblem]:
    """A model in float64 and a problem of two batches of three rows."""
    model = Answering(entry.make(dtype=torch.float64), entry.answer)

    def encode(batch: Batch) -> NDArray[np.float32]:
        given = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
        with torch.inference_mode():
            if len(entry.inputs) > 1:  # a score for every image and text: both have an order
                return model(given)["answer"].float().numpy()
            backwards = {key: value.flip(0) for key, value in given.items()}  # as harnesses sort
            return model(backwards)["answer"].flip(0).float().numpy()

    batches = [
        problems.Batch(rows=np.arange(3, dtype=np.int64) + 3 * number, run=lambda batch=batch: encode(batch))
        for number, batch in enumerate(entry.batches(2))
    ]
    with plain_products([model]):  # float64 experts run one by one only
        dim = batches[0].run().shape[1]
    if between:  # row 1 is in several gaps, and in several roles
        rows = np.array([[[0, 1, 2], [0, 1, 3]], [[4, 5, 1], [4, 5, 0]]])
    else:
        rows = np.repeat(np.arange(6)[:, None, None], 2, axis=1)
    valid = np.ones(rows.shape[:2], dtype=bool)
    gap = gap_between_rows if between else gap_of_rows
    if dim == 1:
        gap = lambda outputs: outputs[:, :, 0, 0] - outputs[:, :, 1, 0]  # noqa: E731 -- of two scores
        rows = np.array([[[0, 1], [0, 2]], [[3, 4], [3, 1]]])
        valid = np.array([[True, True], [True, False]])
    return model, GapProblem(batches=batches, rows=rows, valid=valid, gap=gap)


def setting_of(model: nn.Module, problem: GapProblem) -> Setting:
    return Setting(
        modules=[model],
        layers=find_linears([model]),
        widths=WIDTHS,
        group_size=16,
        seed=0,
        progress=Silent(),
        problem=problem,
    )


def differences(setting: Setting, model: Answering, entry: ZooModel) -> NDArray[np.float64]:
    """The slope of every gap along every layer's change, by small steps there and back."""
    problem = setting.problem
    assert problem is not None

    def gaps() -> NDArray[np.float64]:
        with torch.no_grad(), plain_products([model]):
            outputs = torch.cat(
                [
                    model({k: v.double() if v.is_floating_point() else v for k, v in b.items()})["answer"]
                    for b in entry.batches(2)
                ]
            )
        return problem.gap(outputs[torch.from_numpy(np.maximum(problem.rows, 0))]).numpy()

    step = SMALL_STEP if entry.name == "gpt-oss" else STEP
    slopes = np.zeros((*problem.valid.shape, len(setting.layers), len(WIDTHS)))
    for number, layer in enumerate(setting.layers):
        weight = layer.weight.clone()
        for column, bits in enumerate(WIDTHS):
            change = -rounding_error(layer, bits, setting.group_size).double()
            layer.weight.copy_(weight + step * change)
            above = gaps()
            layer.weight.copy_(weight - step * change)
            slopes[:, :, number, column] = (above - gaps()) / (2 * step)
            layer.weight.copy_(weight)
    slopes[~problem.valid] = np.nan
    return slopes


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_contributions_are_the_slopes_of_the_gaps(entry: ZooModel) -> None:
    model, problem = world(entry)
    before = weights_fingerprint([model])
    setting = setting_of(model, problem)
    found = contributions(setting)
    expected = differences(setting, model, entry)
    size = np.nanmax(np.abs(expected), axis=(0, 1, 3))
    for number, layer in enumerate(setting.layers):
        off = np.nanmax(np.abs(found - expected)[:, :, number])
        # some models compute parts in float32 whatever their weights are
        assert off <= 3e-2 * size[number] + 1e-6, layer.name
    assert weights_fingerprint([model]) == before
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["bert", "qwen3-moe"])
def test_rows_that_many_gaps_share_count_in_each(name: str) -> None:
    entry = zoo_model(name)
    model, problem = world(entry, between=True)
    setting = setting_of(model, problem)
    expected = differences(setting, model, entry)
    found = contributions(setting)
    assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()


def test_the_sum_over_layers_is_the_slope_of_all_at_once() -> None:
    entry = zoo_model("bert")
    model, problem = world(entry, between=True)
    setting = setting_of(model, problem)
    total = contributions(setting)[..., 0].sum(axis=-1)
    start = problem.gaps(problem.outputs())
    for layer in setting.layers:
        layer.weight.sub_(1e-3 * rounding_error(layer, WIDTHS[0], setting.group_size))
    shift = (problem.gaps(problem.outputs()) - start) / 1e-3
    assert np.abs(shift - total).max() <= 0.05 * np.abs(total).max()


def test_what_a_harness_computes_after_the_model_has_no_gradient() -> None:
    """Mean over tokens outside of the model: said, with the criterion that can do it."""
    entry = zoo_model("bert")
    model = entry.make()

    def run() -> Any:
        return entry.run(model, entry.batches(1)[0]).numpy()

    batch = problems.Batch(rows=np.arange(3), run=run)
    problem = GapProblem(
        batches=[batch],
        rows=np.repeat(np.arange(3)[:, None, None], 2, axis=1),
        valid=np.ones((3, 2), dtype=bool),
        gap=gap_of_rows,
    )
    with pytest.raises(UnsupportedError, match=r"computed after the model; .* gap_exact"):
        contributions(setting_of(model, problem))
    assert "forward" not in model.__dict__
