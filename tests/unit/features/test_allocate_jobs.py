"""An allocation against its rivals on held-out queries: flips against the whole corpus, by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quantdrift.base.progress import Silent
from quantdrift.features.allocate.jobs import held_out_queries, hold_contest, rivals_of
from quantdrift.measuring.readings import Search
from quantdrift.measuring.trial import Trial
from quantdrift.models.inputs import Inputs, Settings
from quantdrift.scoring.similarity import Similarity
from quantdrift.sensitivity.gaps import rounded
from support.allocations import allocation
from support.sensitivity import drawn, setting_of
from support.worlds import rows_of

NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "head")


class World:
    """Five linear layers in a row, and texts that are vectors."""

    def __init__(self) -> None:
        self.model = drawn(nn.ModuleDict({name: nn.Linear(8, 8, bias=False) for name in NAMES}))
        generator = torch.Generator().manual_seed(1)
        self.texts = {role: torch.randn(n, 8, generator=generator) for role, n in (("query", 24), ("document", 18))}
        self.setting = setting_of(self.model, widths=(3, 4))
        self.settings, self.progress = Settings(batch_size=5), Silent()
        self.embedded = 0

    def embed(self, texts: Tensor) -> NDArray[np.float32]:
        with torch.no_grad():
            for layer in self.model.children():
                texts = layer(texts)
            return texts.numpy()

    def side(self, role: str) -> Inputs:
        n = len(self.texts[role])
        return rows_of(role, n, lengths=np.arange(n) * 7 % 5)  # the order of encoding is another

    def run(self, side: Inputs, rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        assert batch_size == 5
        self.embedded += len(rows)
        return self.embed(self.texts[side.role][list(side.at(rows))])


def test_held_out_queries_are_others_seeded_and_128_at_most() -> None:
    calibration = np.arange(0, 400, 4)
    held = held_out_queries(400, calibration, seed=1)
    assert len(held) == 128
    assert not set(held.tolist()) & set(calibration.tolist())
    assert held.tolist() == sorted(set(held.tolist()))
    assert held.tolist() != held_out_queries(400, calibration, seed=2).tolist()
    assert held_out_queries(4, np.array([2]), seed=0).tolist() == [0, 1, 3]


@pytest.mark.parametrize("query_only", [False, True])
def test_a_trial_counts_as_a_whole_search_does_and_leaves_out_what_is_excluded(query_only: bool) -> None:
    world = World()
    excluded = np.arange(24) % 18  # of every query one document that does not count
    search = Search(
        queries=world.side("query"), documents=world.side("document"), similarity=Similarity.DOT, excluded=excluded
    )
    reference = (world.embed(world.texts["query"]), world.embed(world.texts["document"]))
    rows = np.array([1, 5, 7, 20, 22])
    flow: Any = world
    trial = Trial(flow, search, reference, rows)
    with rounded(world.setting.layers, [3] * 5, None):
        flips = trial.flips("W3", query_only=query_only)
        candidate = (
            world.embed(world.texts["query"]),
            reference[1] if query_only else world.embed(world.texts["document"]),
        )
    scores = [queries @ documents.T for queries, documents in (reference, candidate)]
    for arm in scores:
        arm[np.arange(24), excluded] = -np.inf
    first, second = (arm.argmax(axis=1)[rows] for arm in scores)
    assert flips.tolist() == (second != first).tolist()
    world.pair = SimpleNamespace(query_only=query_only)
    allocated = allocation(dict(zip(NAMES, (4, 3, 3, 4, 16), strict=True)), shape=(8, 8))
    rivals = hold_contest(allocated, world.setting, flow, search, held=rows, reference=reference)
    for rival, widths in zip(rivals, rivals_of(allocated, world.setting).values(), strict=True):
        with rounded(world.setting.layers, widths, None):
            assert rival.changed.tolist() == trial.flips("again", query_only=query_only).tolist()
        assert (rival.bits_per_weight, rival.flips.value) == (np.mean(widths), rival.changed.mean())
    assert not trial.flips("nothing", query_only=False).any()
