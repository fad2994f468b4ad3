"""Which block a layer belongs to, by its name, and how far that is from the middle."""

from __future__ import annotations

import pytest
from torch import nn

from quantdrift.engine.sensitivity.criteria import criterion, distances_from_the_middle
from support.criteria_samples import linear, setting_of


def test_the_number_that_counts_blocks_is_found() -> None:
    """Not that of the module in a sequence, of an expert, or of a layer in a block."""
    inside = ["attention.self.query", "experts.0.up", "experts.1.up", "experts.2.up", "mlp.0"]
    bert = [f"0.auto_model.encoder.layer.{block}.{part}" for block in range(3) for part in inside]
    names = ["0.auto_model.embeddings.project", *bert, "0.auto_model.pooler", "2.linear", "3.linear"]
    found = distances_from_the_middle(names)
    assert found == [1, *[1] * 5, *[0] * 5, *[1] * 5, 1, 1, 1]


@pytest.mark.parametrize(
    "name", ["model.layers.{}.mlp.up_proj", "blocks.{}.attn.qkv", "h.{}.attn.c_attn", "{}.0", "0.layer.{}.a"]
)
def test_layers_of_one_block_are_as_deep(name: str) -> None:
    names = [name.format(block) + part for block in range(5) for part in ("", ".b")]
    assert distances_from_the_middle(names)[::2] == [1, 0.5, 0, 0.5, 1]
    assert distances_from_the_middle(names)[1::2] == [1, 0.5, 0, 0.5, 1]


def test_two_towers_are_two_stacks() -> None:
    text = [f"text_model.encoder.layers.{block}.fc" for block in range(3)]
    image = [f"vision_model.encoder.layers.{block}.fc" for block in range(5)]
    found = distances_from_the_middle([*text, *image, "visual_projection", "text_projection"])
    assert found == [1, 0, 1, 1, 0.5, 0, 0.5, 1, 1, 1]


def test_the_number_of_an_outermost_module_counts_no_blocks() -> None:
    """Two modules of one block each are no stack of two; of three each, two stacks."""
    names = [f"{module}.layers.{block}.fc" for module in range(2) for block in range(3)]
    assert distances_from_the_middle(names, n_modules=2) == [1, 0, 1, 1, 0, 1]
    assert distances_from_the_middle(names, n_modules=1) == [1, 1, 1, 1, 1, 1]


def test_blocks_of_two_kinds_are_one_stack() -> None:
    """Every third block has attention, the others a recurrence."""
    kinds = ["in_proj", "in_proj", "q_proj"] * 2
    names = [f"layers.{block}.mixer.{kind}" for block, kind in enumerate(kinds)]
    assert distances_from_the_middle(names) == pytest.approx([1, 0.6, 0.2, 0.2, 0.6, 1])


def test_without_blocks_the_order_of_definition_counts() -> None:
    assert distances_from_the_middle(["0", "2", "3"]) == [1, 0, 1]
    assert distances_from_the_middle(["encoder.layer.0.a", "encoder.layer.0.b", "head"]) == [1, 0, 1]
    assert distances_from_the_middle(["only"]) == [0]
    assert distances_from_the_middle([]) == []


def test_depth_as_losses() -> None:
    model = nn.Sequential(*[linear([1.0]) for _ in range(3)])
    found = criterion("depth").losses(setting_of(model, widths=(2, 3, 4)))
    assert found.tolist() == [[1 / 16, 1 / 64, 0], [0, 0, 0], [1 / 16, 1 / 64, 0]]
