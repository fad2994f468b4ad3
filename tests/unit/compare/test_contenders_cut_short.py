"""Whether a list ends among contenders, by hand: of whole lists, cut ones and listed items."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quantdrift import perturbation
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.engine.search import assemble
from quantdrift.evidence import Deltas, Evidence
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.metrics import parse_metric

REFERENCE = [
    [9.0, 8.0, 7.0, 6.0],  # epsilon 2: 8, 7 and 6 are less than 4 behind
    [9.0, 8.0, 2.0, 1.0],  # epsilon 2: only 8 is
    [9.0, 5.0, 4.0, 3.0],  # epsilon 2: none is, for 4 behind can draw level and no more
]
CANDIDATE = [[7.0, 8.0, 7.0, 6.0], [7.0, 8.0, 2.0, 1.0], [7.0, 5.0, 4.0, 3.0]]


def evidence(k: int, deltas: Deltas = "all") -> Evidence:
    whole = assemble(
        score_matrix(np.array(REFERENCE), np.array(CANDIDATE), k=k),
        input_ids=["all", "one", "none"],
        item_ids=list("abcd"),
    )
    return replace(whole, deltas=deltas)


@pytest.mark.parametrize(
    ("k", "deltas", "counts", "cut"),
    [
        # all four ranks are stored, and there are no more items
        (4, "all", [3, 1, 0], [False, False, False]),
        # the fourth may be a contender where all stored ones are
        (3, "all", [2, 1, 0], [True, False, False]),
        (2, "all", [1, 1, 0], [True, True, False]),
        # as many ranks as items are known; more may have been scored
        (4, "listed", [3, 1, 0], [True, False, False]),
        (3, "listed", [2, 1, 0], [True, False, False]),
        (2, "listed", [1, 1, 0], [True, True, False]),
    ],
)
def test_a_list_is_cut_short_where_all_its_ranks_are_contenders(
    k: int, deltas: Deltas, counts: list[int], cut: list[bool]
) -> None:
    found = evidence(k, deltas)
    assert perturbation.contender_count(found).tolist() == counts
    assert perturbation.contenders_cut_short(found).tolist() == cut
    shown = [np.inf if ends else count for count, ends in zip(counts, cut, strict=True)]
    assert parse_metric("contenders").per_input(found).tolist() == shown


def test_two_finished_lists_may_have_been_longer_unless_they_are_complete() -> None:
    """The lists hold the same three items; b and c lie less than 2 epsilon = 4 behind a."""
    arms = {"q": {"a": 5.0, "b": 4.0, "c": 3.0}}, {"q": {"a": 3.0, "b": 4.0, "c": 3.0}}
    for complete in (False, True):
        found = evidence_of_rankings(*arms, complete=complete)
        assert found.n_items.tolist() == [found.depth] == [3]
        assert perturbation.contender_count(found).tolist() == [2]
        assert perturbation.contenders_cut_short(found).tolist() == [not complete]


def test_the_median_of_lists_that_end_among_contenders_says_so() -> None:
    estimate = parse_metric("contenders")(evidence(2, "listed"))
    assert estimate.to_json()["value"] is None
    assert "more contenders than stored ranks" in str(estimate.reason)
