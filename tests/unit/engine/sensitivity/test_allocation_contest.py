"""An allocation against its rivals on held-out queries: flips against the whole corpus, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.allocation.record import AllocatedLayer, Allocation
from quantdrift.engine.inputs import Inputs
from quantdrift.engine.layers import find_linears
from quantdrift.engine.quantizers.rtn import quantize_rtn
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.sensitivity.allocate import HeldArrays
from quantdrift.engine.sensitivity.contest import (
    Contest,
    held_out_queries,
    hold_contest,
    rivals_of,
    rounded,
    uniform_width,
)
from quantdrift.engine.sensitivity.criteria import Setting
from quantdrift.progress import Silent

N_QUERIES, N_DOCS = 24, 18  # fewer documents than a contest looks at: it sees all of them
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "head")


class World:
    """Five linear layers in a row, and texts that are vectors."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.model = nn.ModuleDict({name: nn.Linear(8, 8, bias=False) for name in NAMES})
        for layer in self.model.values():
            layer.weight.data = torch.randn(8, 8, generator=generator)
        self.texts = {
            role: torch.randn(n, 8, generator=generator) for role, n in (("query", N_QUERIES), ("document", N_DOCS))
        }
        self.layers = find_linears([self.model])
        self.encoded: list[str] = []

    def embed(self, texts: Tensor) -> NDArray[np.float32]:
        with torch.no_grad():
            for layer in self.model.values():
                texts = layer(texts)
            return texts.numpy()

    def side(self, role: str) -> Inputs:
        def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
            self.encoded.append(role)
            return self.embed(self.texts[role][rows])

        ids = [str(number) for number in range(len(self.texts[role]))]
        lengths = np.arange(len(ids)) * 7 % 5  # the order of encoding is another
        return Inputs(role=role, ids=ids, encode=encode, key=None, lengths=lengths)

    def contest(self, widths: dict[str, Sequence[int]], **options: Any) -> Contest:
        reference = tuple(self.embed(self.texts[role]) for role in ("query", "document"))
        return hold_contest(
            self.layers,
            widths,
            self.side("query"),
            self.side("document"),
            (reference[0], reference[1]),
            group_size=None,
            similarity=options.pop("similarity", Similarity.DOT),
            batch_size=5,
            progress=Silent(),
            **options,
        )

    def firsts(
        self, widths: Sequence[int], excluded: NDArray[np.int64] | None, *, query_only: bool
    ) -> NDArray[np.int64]:
        """The first documents of a model that is rounded by hand, over the whole corpus."""
        documents = self.embed(self.texts["document"])
        kept = [layer.weight.clone() for layer in self.layers]
        for layer, bits in zip(self.layers, widths, strict=True):
            if bits != 16:
                layer.weight.copy_(quantize_rtn(layer.weight, bits=bits, group_size=None).dequantize(torch.float32))
        queries = self.embed(self.texts["query"])
        if not query_only:
            documents = self.embed(self.texts["document"])
        for layer, weight in zip(self.layers, kept, strict=True):
            layer.weight.copy_(weight)
        scores = queries @ documents.T
        if excluded is not None:
            there = excluded >= 0
            scores[np.arange(N_QUERIES)[there], excluded[there]] = -np.inf
        return scores.argmax(axis=1)


WIDTHS: dict[str, Sequence[int]] = {
    "ours": (4, 3, 3, 4, 16),
    "other": (3, 4, 4, 3, 16),
    "W2": (2, 2, 2, 2, 16),
    "none": (16,) * 5,
}


@pytest.mark.parametrize("query_only", [False, True])
@pytest.mark.parametrize("leave_out", [False, True])
def test_flips_are_those_of_the_whole_corpus(query_only: bool, leave_out: bool) -> None:
    world = World()
    excluded = np.arange(N_QUERIES) % (N_DOCS + 1) - 1 if leave_out else None
    before = [layer.weight.clone() for layer in world.layers]
    contest = world.contest(WIDTHS, query_only=query_only, excluded=excluded)
    assert ("document" in world.encoded) is not query_only
    assert all(torch.equal(layer.weight, w) for layer, w in zip(world.layers, before, strict=True))
    full = world.firsts((16,) * 5, excluded, query_only=query_only)
    flips = [(world.firsts(widths, excluded, query_only=query_only) != full).mean() for widths in WIDTHS.values()]
    assert contest.n_queries == N_QUERIES
    assert [rival.name for rival in contest.rivals] == list(WIDTHS)
    assert [rival.flips.value for rival in contest.rivals] == pytest.approx(flips)
    assert flips[2] > flips[0] > flips[3] == 0  # so that what follows says something
    assert contest.rivals[0].difference is None
    for rival, rate in zip(contest.rivals[1:], flips[1:], strict=True):
        assert rival.difference is not None
        assert rival.difference.value == pytest.approx(rate - flips[0])
    assert contest.beaten_by[0].name == "none"
    assert "W2" not in [rival.name for rival in contest.beaten_by]
    assert contest.rivals[0].bits_per_weight == (4 + 3 + 3 + 4 + 16) / 5


def test_what_goes_wrong_leaves_the_reference() -> None:
    world = World()
    before = world.layers[0].weight.clone()

    def interrupted() -> None:
        with rounded(world.layers, (2,) * 5, None):
            assert not torch.equal(world.layers[0].weight, before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.equal(world.layers[0].weight, before)


def test_held_out_queries_are_others_seeded_and_128_at_most() -> None:
    calibration = np.arange(0, 400, 4)
    held = held_out_queries(400, calibration, seed=1)
    assert len(held) == 128
    assert not set(held.tolist()) & set(calibration.tolist())
    assert held.tolist() == sorted(set(held.tolist()))
    np.testing.assert_array_equal(held, held_out_queries(400, calibration, seed=1))
    assert held.tolist() != held_out_queries(400, calibration, seed=2).tolist()
    assert held_out_queries(4, np.array([2]), seed=0).tolist() == [0, 1, 3]
    assert len(held_out_queries(40, np.zeros(0, dtype=np.int64), seed=0)) == 40


@pytest.mark.parametrize(("budget", "width"), [(3.5, 3), (3.0, 3), (3.99, 3), (6.0, 6), (8.0, 8)])
def test_the_uniform_rival_is_the_widest_within_the_budget(budget: float, width: int) -> None:
    assert uniform_width(budget) == width


def test_rivals_spend_no_more_and_keep_what_is_kept_and_tied() -> None:
    world = World()
    setting = Setting(
        modules=[world.model],
        layers=world.layers,
        widths=(3, 4),
        group_size=None,
        seed=0,
        progress=Silent(),
        kept=HeldArrays(),
    )
    layers = tuple(
        AllocatedLayer(
            name=name,
            shape=(8, 8),
            width=16 if name == "head" else 3,
            loss=None if name == "head" else (1.0, 0.0),
            unit=0 if name in NAMES[:3] else None,
        )
        for name in NAMES
    )
    allocation = Allocation(
        model="m",
        fingerprint="f",
        group_size=None,
        criterion="sqnr",
        widths=(3, 4),
        budget=3.75,
        method="greedy",
        status="greedy",
        bound=None,
        layers=layers,
        n_others=0,
        others_bits=0,
    )
    rivals = rivals_of(allocation, setting)
    assert list(rivals) == ["sqnr, greedy", "reconstruction", "random", "W3 throughout"]
    assert rivals["sqnr, greedy"] == [3, 3, 3, 3, 16]
    assert rivals["W3 throughout"] == [3, 3, 3, 3, 16]
    for name in ("reconstruction", "random"):
        widths = rivals[name]
        assert widths[-1] == 16
        assert len(set(widths[:3])) == 1
        assert sum(widths[:4]) / 4 <= 3.75
        assert sum(widths[:4]) > 12  # and they spend what they can
