"""Criteria on one tiny model of every kind: gradients against slopes by small steps, moments against our own hooks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.builtin.rtn.work import rounding_change
from quantdrift.candidate.calibration.inputs import plain_products
from quantdrift.measuring.problem import Setting
from quantdrift.models.weights import weights_fingerprint
from quantdrift.sensitivity.gaps import contributions
from support.model_zoo import ZOO, Batch, ZooModel
from support.sensitivity import setting_of

ALWAYS = ("bert", "gpt2", "torch-encoder")
KINDS = [pytest.param(e, id=e.name, marks=[] if e.name in ALWAYS else pytest.mark.slow) for e in ZOO]
every_model = pytest.mark.parametrize("entry", KINDS)
WIDTHS = (2, 8)


class Answering(nn.Module):
    """A model with what a harness computes after it, as one module, as embedding models are."""

    def __init__(self, model: nn.Module, answer: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model, self._answer = model, answer

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        batch["answer"] = self._answer(self.model, batch.copy())
        return batch


def gap_of_rows(outputs: Tensor) -> Tensor:
    """The gaps of a row's first three numbers: first less second, and first less third."""
    rows = outputs[:, :, 0]
    return torch.stack([rows[:, 0, 0] - rows[:, 0, 1], rows[:, 1, 0] - rows[:, 1, 2]], dim=1)


def gap_between_rows(outputs: Tensor) -> Tensor:
    """Products of a row with its second, less those with its third; of a single number, its difference."""
    if outputs.shape[-1] == 1:
        return outputs[:, :, 0, 0] - outputs[:, :, 1, 0]
    query, first, other = outputs.unbind(dim=2)
    return (query * (first - other)).sum(dim=-1)


def world(entry: ZooModel) -> tuple[Setting, Callable[[], NDArray[np.float64]]]:
    """A model in float64, measured on six rows; and its gaps, not rounded to float32."""
    model = Answering(entry.make(dtype=torch.float64), entry.answer)
    batches = entry.batches(2)

    def answers(numbers: NDArray[np.int64]) -> Tensor:
        rows = [{k: v[n % 3 : n % 3 + 1] for k, v in batches[n // 3].items()} for n in numbers.tolist()]
        given = [{k: v.double() if v.is_floating_point() else v for k, v in row.items()} for row in rows]
        return torch.cat([model(row)["answer"] for row in given])

    def encode(numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return answers(numbers).float().numpy()

    with plain_products([model]):  # float64 experts run one by one only
        single = encode(np.array([0])).shape[1] == 1
    # row 1 is in several gaps, and in several roles
    shared: Any = [[[0, 1, 2], [0, 1, 3]], [[4, 5, 1], [4, 5, 0]]]
    rows = np.array(shared) if single else np.repeat(np.arange(6)[:, None, None], 2, axis=1)
    valid = np.ones(rows.shape[:2], dtype=bool)
    valid[-1, -1] = False
    gap = gap_between_rows if single else gap_of_rows
    setting = setting_of(model, encode, n=6, rows=rows, valid=valid, gap=gap, widths=WIDTHS, group_size=16)

    def gaps() -> NDArray[np.float64]:
        with torch.no_grad(), plain_products([model]):
            return gap(answers(np.arange(6))[torch.from_numpy(rows)]).numpy()

    return setting, gaps


def slopes(setting: Setting, gaps: Callable[[], NDArray[np.float64]], step: float) -> NDArray[np.float64]:
    """The slope of every gap along every layer's change, by small steps there and back."""
    slope = np.zeros((*setting.gaps.valid.shape, len(setting.layers), len(WIDTHS)))
    for number, layer in enumerate(setting.layers):
        weight = layer.weight.clone()
        for column, bits in enumerate(WIDTHS):
            change = rounding_change(layer.weight, bits=bits, group_size=setting.group_size).double()
            layer.weight.copy_(weight + step * change)
            above = gaps()
            layer.weight.copy_(weight - step * change)
            slope[:, :, number, column] = (above - gaps()) / (2 * step)
            layer.weight.copy_(weight)
    slope[~setting.gaps.valid] = np.nan
    return slope


@every_model
def test_contributions_are_the_slopes_of_the_gaps(entry: ZooModel) -> None:
    setting, gaps = world(entry)
    before = weights_fingerprint(setting.modules)
    shifts = contributions(setting)
    # a larger step sends tokens to other experts there
    expected = slopes(setting, gaps, 1e-4 if entry.name == "gpt-oss" else 1e-3)
    size = np.nanmax(np.abs(expected), axis=(0, 1, 3))
    for number, layer in enumerate(setting.layers):
        off = np.nanmax(np.abs(shifts - expected)[:, :, number])
        # some models compute parts in float32 whatever their weights are
        assert off <= 3e-2 * size[number] + 1e-6, layer.name
    assert weights_fingerprint(setting.modules) == before
    assert all(parameter.requires_grad for parameter in setting.modules[0].parameters())
