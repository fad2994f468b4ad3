"""The baselines of bit allocation on layers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quantdrift.engine.sensitivity.criteria import criterion, distances_from_the_middle, input_moments
from quantdrift.engine.sensitivity.problem import KeptArrays, Setting
from quantdrift.errors import DataError, UnknownNameError, UnsupportedError
from quantdrift.spec import CRITERIA
from support.sensitivity import linear, setting_of

ON_ROUNDING = ["reconstruction", "sqnr", "activation_error", "activation_salience"]
ON_INPUTS = ["activation_error", "activation_salience", "activation_norm"]


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
    setting = setting_of(linear([3, 1.25]), torch.tensor([[1.0, -4], [-1, 2]]), widths=(3, 4))
    assert criterion(name).losses(setting).tolist() == [[pytest.approx(wanted, rel=1e-6), 0]]


def test_weights_that_share_a_scale_are_those_of_a_group() -> None:
    """In groups of two, (3, 1) and (0, 6) lie on their grids; (3, 1, 0, 6) has steps of 2."""
    setting = setting_of(linear([3, 1, 0, 6]), widths=(3, 4))
    losses = criterion("reconstruction").losses
    assert losses(setting).tolist() == [[(1 + 1) / 4, 0]]  # 3 becomes 4, 1 becomes 0
    assert losses(replace(setting, group_size=2)).tolist() == [[0, 0]]


def test_a_wider_width_never_costs_more_than_a_narrower_one() -> None:
    """(3, 1) is on the 3-bit grid and not on the 4-bit grid, of steps of 3/7."""
    setting = setting_of(linear([3, 1]), widths=(2, 3, 4, 8))
    assert criterion("reconstruction").losses(setting).tolist() == [[0.5, 0, 0, 0]]
    assert criterion("reconstruction").losses(replace(setting, widths=(4, 8)))[0, 0] > 0


@pytest.mark.parametrize("name", ON_ROUNDING)
def test_weights_that_are_not_finite_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="finite weights"):
        criterion(name).losses(setting_of(linear([1, float("nan")]), torch.ones(1, 2)))


def test_every_order_of_layers_comes_up_whatever_their_sizes() -> None:
    """Ranked by loss per weight, as the paper ranks; noise fades by four a bit."""
    setting = setting_of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 50), nn.Linear(50, 9)), widths=(2, 3, 8))
    sizes = np.array([layer.weight.numel() for layer in setting.layers])
    seen = {seed: criterion("random").losses(replace(setting, seed=seed)) for seed in range(60)}
    orders = {tuple(np.argsort(losses[:, 0] / sizes)) for losses in seen.values()}
    assert orders == set(permutations(range(3)))
    assert np.array_equal(seen[7], criterion("random").losses(replace(setting, seed=7)))
    assert np.array_equal(seen[7], seen[7][:, :1] * [1, 0.25, 0])


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_of_the_grammar_is_there(name: str) -> None:
    found = criterion(name)
    assert found.name == name
    assert found.needs_inputs == (name.startswith(("gap", "activation")))


def test_an_unknown_criterion_gets_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError) as raised:
        criterion("reconstuction")
    assert raised.value.suggestions[0] == "reconstruction"


# --- inputs --------------------------------------------------------------------------------------


class Masked(nn.Module):
    """Calls one layer twice, the second time on twice the input, and another never."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.pooler = linear([3, 1.25]), linear([3, 1.25])
        self.runs = 0

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        self.runs += 1
        both: Tensor = self.layer(x) + self.layer(2 * x)
        return both


def masked(model: Masked, *batches: tuple[Tensor, Tensor | None]) -> Setting:
    def encode(rows: np.ndarray) -> np.ndarray:
        x, mask = batches[rows[0]]
        model(x, attention_mask=mask)
        return np.zeros((len(rows), 1), np.float32)

    return setting_of(model, encode, n=len(batches), batch_size=1)


def test_tokens_of_all_calls_and_batches_count_and_padding_does_not() -> None:
    first, mask = torch.tensor([[[1.0, -2], [100, 100]], [[3, 0], [5, 6]]]), torch.tensor([[1, 0], [1, 1]])
    model = Masked()
    setting = masked(model, (first, mask), (torch.tensor([[[0.0, 1]]]), None))
    reached, never = input_moments(setting)
    assert reached.n_tokens == 2 * 4
    np.testing.assert_allclose(reached.mean_square, np.array([1 + 9 + 25, 4 + 36 + 1]) * (1 + 4) / 8)
    np.testing.assert_allclose(reached.mean_abs, np.array([1 + 3 + 5, 2 + 6 + 1]) * (1 + 2) / 8)
    assert never.n_tokens == 0
    assert never.mean_square.tolist() == never.mean_abs.tolist() == [0, 0]
    for name in ON_INPUTS:
        losses = criterion(name).losses(setting)
        assert losses[0, 0] > 0
        assert not losses[1].any()  # nothing is lost where nothing arrives
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_criteria_share_one_measurement_and_other_layers_have_another() -> None:
    model = Masked()
    setting = masked(model, (torch.tensor([[[0.1, 1]]]), None))
    for name in ON_INPUTS:
        criterion(name).losses(setting)
    assert model.runs == 1
    input_moments(replace(setting, layers=setting.layers[:1]))
    input_moments(replace(setting, kept=KeptArrays()))
    assert model.runs == 3


@pytest.mark.parametrize("name", ON_INPUTS)
def test_inputs_that_are_missing_unseen_or_endless_are_named(name: str) -> None:
    model, losses = Masked(), criterion(name).losses
    with pytest.raises(DataError, match="needs calibration inputs"):
        losses(setting_of(model))
    with pytest.raises(UnsupportedError, match="no calibration input was seen"):
        losses(replace(masked(Masked(), (torch.ones(1, 1, 2), None)), layers=setting_of(model).layers))
    with pytest.raises(DataError, match="input of layer is not finite"):
        losses(masked(model, (torch.full((1, 1, 2), torch.inf), None)))


# --- depth ---------------------------------------------------------------------------------------


def test_the_number_that_counts_blocks_is_found() -> None:
    """Not that of the module in a sequence, of an expert, or of a layer in a block."""
    inside = ["attention.self.query", "experts.0.up", "experts.1.up", "experts.2.up", "mlp.0"]
    bert = [f"0.auto_model.encoder.layer.{block}.{part}" for block in range(3) for part in inside]
    names = ["0.auto_model.embeddings.project", *bert, "0.auto_model.pooler", "2.linear", "3.linear"]
    assert distances_from_the_middle(names) == [1, *[1] * 5, *[0] * 5, *[1] * 5, 1, 1, 1]


@pytest.mark.parametrize(
    "name", ["model.layers.{}.mlp.up_proj", "blocks.{}.attn.qkv", "h.{}.attn.c_attn", "{}.0", "0.layer.{}.a"]
)
def test_layers_of_one_block_are_as_deep(name: str) -> None:
    names = [name.format(block) + part for block in range(5) for part in ("", ".b")]
    assert distances_from_the_middle(names)[::2] == [1, 0.5, 0, 0.5, 1]
    assert distances_from_the_middle(names)[1::2] == [1, 0.5, 0, 0.5, 1]


def test_two_towers_are_two_stacks_and_the_number_of_a_module_counts_no_blocks() -> None:
    text = [f"text_model.encoder.layers.{block}.fc" for block in range(3)]
    image = [f"vision_model.encoder.layers.{block}.fc" for block in range(5)]
    found = distances_from_the_middle([*text, *image, "visual_projection", "text_projection"])
    assert found == [1, 0, 1, 1, 0.5, 0, 0.5, 1, 1, 1]
    names = [f"{module}.layers.{block}.fc" for module in range(2) for block in range(3)]
    assert distances_from_the_middle(names, n_modules=2) == [1, 0, 1, 1, 0, 1]
    assert distances_from_the_middle(names, n_modules=1) == [1, 1, 1, 1, 1, 1]


def test_without_blocks_the_order_of_definition_counts() -> None:
    assert distances_from_the_middle(["0", "2", "3"]) == [1, 0, 1]
    assert distances_from_the_middle(["encoder.layer.0.a", "encoder.layer.0.b", "head"]) == [1, 0, 1]
    assert distances_from_the_middle(["only"]) == [0]
    model = nn.Sequential(*[linear([1.0]) for _ in range(3)])
    found = criterion("depth").losses(setting_of(model, widths=(2, 3, 4)))
    assert found.tolist() == [[1 / 16, 1 / 64, 0], [0, 0, 0], [1 / 16, 1 / 64, 0]]
