"""Widths of models in which it is known what matters, and queries that they were measured on."""

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quantdrift.allocation.record import Allocation
from quantdrift.base.errors import UnknownNameError, UnsupportedError
from quantdrift.base.progress import Silent
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.measuring.flow import not_calibrated_on
from quantdrift.measuring.readings import Search
from quantdrift.models.store import EmbeddingStore
from quantdrift.scoring.similarity import Similarity
from quantdrift.sensitivity.allocate import allocate_for
from quantdrift.spec.grammar import parse_scheme
from support.allocations import allocation
from support.sensitivity import setting_of
from support.worlds import rows_of

NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")


class Branches(nn.Module):
    """Four layers beside each other; what they give is added up, each in its own measure."""

    def __init__(self, **strengths: float) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in NAMES})
        weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
        for layer in self.parts.values():
            layer.weight.data = weight.clone()
        self.strengths = {name: strengths.get(name, 0.0) for name in NAMES}

    def forward(self, x: Tensor) -> Tensor:
        return sum(layer(x) * self.strengths[n] for n, layer in self.parts.items())  # type: ignore[return-value]  # there are some


class World:
    def __init__(self, **strengths: float) -> None:
        self.model = Branches(**strengths)
        self.problem = setting_of(self.model, torch.randn(3, 4, generator=torch.Generator().manual_seed(1))).problem

    def allocate(self, scheme: str, **keep: int) -> Allocation:
        pair = QuantizedPair([self.model], parse_scheme(scheme), name="tiny")
        patterns = {f"*.{name}": width for name, width in keep.items()}
        flow: Any = SimpleNamespace(store=EmbeddingStore(None), progress=Silent())
        reading = Search(queries=rows_of("query", 12), documents=None, similarity=Similarity.DOT)
        with patch.object(Search, "problem", lambda *_: self.problem):
            return allocate_for(flow, pair, reading, (), keep=patterns)[0]

    def widths(self, scheme: str, **keep: int) -> list[int]:
        return list(self.allocate(scheme, **keep).width_of.values())


@pytest.mark.parametrize("criterion", ["gap", "gap_exact"])
def test_the_wide_width_goes_where_rounding_moves_the_gap(criterion: str) -> None:
    assert World(k_proj=1.0).widths(f"W3.25-g4+{criterion}") == [3, 4, 3, 3]
    assert World(v_proj=1.0, o_proj=2.0).widths(f"W3.25-g4+{criterion}") == [3, 3, 3, 4]
    assert World(v_proj=1.0, o_proj=2.0).widths(f"W3.5-g4+{criterion}") == [3, 3, 4, 4]


def test_losses_grow_with_the_square_of_what_a_layer_does() -> None:
    allocation = World(q_proj=1.0, k_proj=2.0, v_proj=-3.0).allocate("W3.5-g4+gap+widths=2,3,4,8")
    losses = np.array([layer.loss for layer in allocation.layers])
    np.testing.assert_allclose(losses[1], 4 * losses[0], rtol=1e-4)
    np.testing.assert_allclose(losses[2], 9 * losses[0], rtol=1e-4)
    assert losses[3].tolist() == [0, 0, 0, 0]
    assert (np.diff(losses, axis=1) <= 0).all()
    assert (losses[:, -1] == 0).all()


def test_layers_that_are_kept_take_no_part_in_the_budget() -> None:
    """k_proj would get the bits; among the others it is o_proj."""
    world = World(k_proj=9.0, o_proj=1.0)
    allocation = world.allocate("W3.34-g4+gap", k_proj=16)
    assert allocation.width_of == {"parts.q_proj": 3, "parts.k_proj": 16, "parts.v_proj": 3, "parts.o_proj": 4}
    assert allocation.layers[1].loss is None
    assert allocation.bits_per_weight == pytest.approx(10 / 3)
    assert allocation.linear_bits == (3 + 16 + 3 + 4) / 4
    assert world.widths("W3.34-g4+gap", k_proj=7) == [3, 7, 3, 4]
    with pytest.raises(UnsupportedError, match="all 4 layers"):
        world.allocate("W3.5-g4+gap", **dict.fromkeys(NAMES, 8))
    with pytest.raises(UnknownNameError):
        world.allocate("W3.5-g4+gap", qproj=8)


def test_layers_that_runtimes_fuse_share_a_width_when_asked_to() -> None:
    world = World(k_proj=3.0, o_proj=1.0)
    assert world.widths("W3.5-g4+gap") == [3, 4, 3, 4]
    allocation = world.allocate("W3.75-g4+gap+units=fused")
    assert list(allocation.width_of.values()) == [4, 4, 4, 3]
    assert [layer.unit for layer in allocation.layers] == [0, 0, 0, 1]
    assert world.widths("W3.5-g4+gap+units=fused") == [3, 3, 3, 4]  # three do not fit
    with pytest.raises(UnsupportedError, match="tied to one width"):
        world.allocate("W3.5-g4+gap+units=fused", k_proj=8)


# --- queries that are left out -----------------------------------------------------------------------


IDS = [f"q{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("measured", "of", "here", "rest"),
    [
        (("q1", "q3"), "toy", "toy", [0, 2, 4]),
        (("q1", "q3"), "toy", "other", [0, 2, 4]),  # all of them are here: the data was renamed
        (("q1", "q9"), "toy", "other", [0, 1, 2, 3, 4]),  # other data, whose ids look alike
        (("q1", "q9"), "toy", "toy", [0, 2, 3, 4]),  # a part of the same data
        (("q1", "q9"), None, None, [0, 1, 2, 3, 4]),
        (("q1",), None, None, [0, 2, 3, 4]),
        ((), None, "toy", [0, 1, 2, 3, 4]),
    ],
)
def test_what_is_left_out(measured: tuple[str, ...], of: str | None, here: str | None, rest: list[int]) -> None:
    pair = QuantizedPair([nn.Sequential(OrderedDict(low=nn.Linear(8, 8), high=nn.Linear(8, 8)))], "W3.5-channel+gap")
    chosen = allocation({"low": 3, "high": 4}, shape=(8, 8), dataset=of, input_ids=measured)
    pair.choose([3, 4], by=chosen)
    assert not_calibrated_on(pair, IDS, here).tolist() == rest
