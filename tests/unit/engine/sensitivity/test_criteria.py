"""The baselines of bit allocation on layers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

from quantdrift.engine.sensitivity.criteria import column_power, criterion, fading_losses
from quantdrift.errors import DataError, UnknownNameError
from quantdrift.spec import CRITERIA
from support.criteria_samples import linear, setting_of

ON_ROUNDING = ["reconstruction", "sqnr", "activation_error", "activation_salience"]


# --- by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("reconstruction", 0.0625 / 2),
        ("sqnr", 0.0625 / (3**2 + 1.25**2)),
        ("activation_error", 10 * 0.0625),  # E[x_2^2] = (4^2 + 2^2) / 2
        ("activation_salience", 3 * 0.0625),  # E|x_2| = (4 + 2) / 2
        ("activation_norm", (1 + 10) / 4**3),
    ],
)
def test_scores_by_hand(name: str, wanted: float) -> None:
    """At 3 bits the grid of (3, 1.25) is -3 to 3, so Delta is (0, 0.25)."""
    layer = linear([3, 1.25])
    x = torch.tensor([[1.0, -4], [-1, 2]])
    found = criterion(name).losses(setting_of(layer, lambda: layer(x)))
    assert found.tolist() == [[pytest.approx(wanted, rel=1e-6), 0]]


def test_weights_that_share_a_scale_are_those_of_a_group() -> None:
    """In groups of two, (3, 1) and (0, 6) lie on their grids; (3, 1, 0, 6) has steps of 2."""
    setting = setting_of(linear([3, 1, 0, 6]))
    losses = criterion("reconstruction").losses
    assert losses(setting).tolist() == [[(1 + 1) / 4, 0]]  # 3 becomes 4, 1 becomes 0
    assert losses(replace(setting, group_size=2)).tolist() == [[0, 0]]


def test_a_wider_width_never_costs_more_than_a_narrower_one() -> None:
    """(3, 1) is on the 3-bit grid and not on the 4-bit grid, of steps of 3/7."""
    setting = setting_of(linear([3, 1]), widths=(2, 3, 4, 8))
    assert criterion("reconstruction").losses(setting).tolist() == [[0.5, 0, 0, 0]]
    assert criterion("reconstruction").losses(replace(setting, widths=(4, 8)))[0, 0] > 0


def test_a_layer_of_zeros_loses_nothing() -> None:
    for name in ("reconstruction", "sqnr"):
        assert not criterion(name).losses(setting_of(linear([0, 0], [0, 0]))).any()


def test_the_widest_width_may_be_no_rounding_at_all() -> None:
    setting = setting_of(linear([3, 1.25]), widths=(3, 16))
    assert criterion("reconstruction").losses(setting).tolist() == [[0.03125, 0]]


def test_noise_fades_by_four_a_bit() -> None:
    assert fading_losses([16, 0, 32], (2, 3, 8)).tolist() == [[1, 0.25, 0], [0, 0, 0], [2, 0.5, 0]]


def test_columns_are_summed_over_all_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantdrift.engine.sensitivity.criteria._BLOCK", 4)
    matrix = torch.arange(10.0).reshape(5, 2).to(torch.bfloat16)
    assert column_power(matrix).tolist() == [0 + 4 + 16 + 36 + 64, 1 + 9 + 25 + 49 + 81]


@pytest.mark.parametrize("name", ON_ROUNDING)
def test_weights_that_are_not_finite_are_refused(name: str) -> None:
    layer = linear([1, float("nan")])
    with pytest.raises(DataError, match="finite weights"):
        criterion(name).losses(setting_of(layer, lambda: layer(torch.ones(1, 2))))


# --- random --------------------------------------------------------------------------------------


def test_every_order_of_layers_comes_up_whatever_their_sizes() -> None:
    """Ranked by loss per weight, as the paper ranks."""
    setting = setting_of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 50), nn.Linear(50, 9)))
    sizes = np.array([layer.weight.numel() for layer in setting.layers])
    seen = {seed: criterion("random").losses(replace(setting, seed=seed)) for seed in range(60)}
    orders = {tuple(np.argsort(losses[:, 0] / sizes)) for losses in seen.values()}
    assert orders == set(permutations(range(3)))
    assert np.array_equal(seen[7], criterion("random").losses(replace(setting, seed=7)))


# --- the registry --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_of_the_grammar_is_there(name: str) -> None:
    found = criterion(name)
    assert found.name == name
    assert found.needs_inputs == (name.startswith(("gap", "activation")))


def test_an_unknown_criterion_gets_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean reconstruction") as raised:
        criterion("reconstuction")
    assert raised.value.suggestions[0] == "reconstruction"
