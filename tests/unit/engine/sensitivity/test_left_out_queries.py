"""Queries that layers were measured on have no part in the rates; which they are, and when."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.allocation.record import Allocation
from quantdrift.engine.inputs import Settings
from quantdrift.engine.measure import Measured, not_calibrated_on
from quantdrift.engine.measure import measure as measure_pair
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.readings import Search
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.store import EmbeddingStore
from quantdrift.errors import DataError
from quantdrift.progress import Silent
from quantdrift.spec import parse_scheme
from support.allocations import allocation
from support.sensitivity import drawn
from support.worlds import Rower, rows_of


def pair_of(scheme: str = "W3.5-channel+gap") -> QuantizedPair:
    model = nn.Sequential(OrderedDict(low=nn.Linear(8, 8), high=nn.Linear(8, 8)))
    return QuantizedPair([drawn(model)], parse_scheme(scheme))


def measure(pair: QuantizedPair, seed: int = 0, n: int = 16, dataset: str = "toy") -> Measured:
    texts = {
        role: torch.randn(size, 8, generator=torch.Generator().manual_seed(start + seed))
        for role, size, start in (("q", n, 100), ("d", 20, 200))
    }

    def run(role: str, rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        with torch.no_grad():
            return np.asarray(pair.modules[0](texts[role][rows]).numpy())

    pair.encoder = Rower(run)
    search = Search(queries=rows_of("q", n), documents=rows_of("d", 20), similarity=Similarity.DOT, dataset=dataset)
    settings = Settings(k=5, batch_size=8)
    return measure_pair(pair, search, settings=settings, store=EmbeddingStore(None), progress=Silent())


def chosen(ids: tuple[str, ...], dataset: str | None = "toy") -> Allocation:
    return allocation({"low": 3, "high": 4}, shape=(8, 8), dataset=dataset, input_ids=ids)


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
def test_which_queries_are_left_out(
    measured: tuple[str, ...], of: str | None, here: str | None, rest: list[int]
) -> None:
    pair = pair_of()
    pair.choose([3, 4], by=chosen(measured, of))
    assert not_calibrated_on(pair, IDS, here).tolist() == rest


def test_without_a_choice_by_queries_all_count() -> None:
    assert not_calibrated_on(pair_of("W4"), IDS).tolist() == [0, 1, 2, 3, 4]
    pair = pair_of()
    pair.choose([3, 4])
    assert not_calibrated_on(pair, IDS).tolist() == [0, 1, 2, 3, 4]


def test_where_none_is_left_that_is_said_before_anything_is_embedded() -> None:
    pair = pair_of()
    pair.choose([3, 4], by=chosen(("q0", "q1")))
    embedded: list[int] = []
    pair.modules[0].register_forward_hook(lambda *_: embedded.append(1))
    with pytest.raises(DataError, match="chosen on these 2 queries"):
        measure(pair, n=2)
    assert not embedded


def test_rates_are_over_the_others_and_the_state_is_of_all() -> None:
    pair = pair_of()
    measured = measure(pair)
    assert pair.allocation is not None
    ids = pair.allocation.input_ids
    assert len(ids) == measured.left_out == 4
    assert measured.evidence.n_inputs == 12
    assert not set(ids) & set(measured.evidence.input_ids.tolist())
    assert len(measured.state.n_items) == 16


def test_a_pair_that_measures_other_data_chooses_anew() -> None:
    """Whatever ran before: what a spec gives on some data is one thing."""
    alone = [pair_of() for _ in range(2)]
    for seed, pair in enumerate(alone):
        measure(pair, seed, n=16 + 8 * seed)
    both = pair_of()
    for seed in (0, 1, 0):
        measure(both, seed, n=16 + 8 * seed)
        one, other = both.allocation, alone[seed].allocation
        assert one is not None
        assert other is not None
        assert one.layers == other.layers
        assert one.input_ids == other.input_ids


def test_widths_that_a_user_chose_stay() -> None:
    pair = pair_of()
    pair.choose([4, 3], by=chosen(("q3",)))
    assert measure(pair).left_out == 1
    assert pair.allocation is not None
    assert pair.allocation.input_ids == ("q3",)
    pair.choose([4, 3])
    assert measure(pair).left_out == 0
    assert pair.allocation is None
