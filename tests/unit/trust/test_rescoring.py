"""The candidate's first items in the order of the reference, from evidence."""

from pathlib import Path

import numpy as np
import pytest

from quantdrift.base.errors import QuantDriftError
from quantdrift.evidence.file import read_evidence, write_evidence
from quantdrift.evidence.perturbation import flips
from quantdrift.features.route.advice import operating_point
from quantdrift.features.route.rescoring import rescore, rescored_ranking
from support.routing_samples import searched, similarities

# the reference's first item is ranked 1st, 2nd and 4th by the candidate
BEFORE = [[0.9, 0.5, 0.4, 0.3], [0.9, 0.5, 0.4, 0.3], [0.9, 0.5, 0.4, 0.3]]
AFTER = [[0.9, 0.5, 0.4, 0.3], [0.5, 0.75, 0.4, 0.3], [0.1, 0.5, 0.25, 0.2]]


def test_two_flips_of_which_one_can_come_back() -> None:
    evidence = searched(BEFORE, AFTER, relevant=[0, 0, 0])
    assert flips(evidence).tolist() == [False, True, True]
    shallow, deep = rescore(evidence, percentiles=[100], depths=[2, 4])
    assert (shallow.restored, shallow.ceiling) == (0.5, 0.5)
    assert (deep.restored, deep.ceiling) == (1.0, 1.0)
    assert (deep.encoded, deep.documents) == (1.0, 4.0)
    (deeper,) = rescore(evidence, percentiles=[100], depths=[50])
    assert deeper.documents == 4.0  # there are no more
    # nDCG of a lone relevant item is 1 / log2(rank + 1): before 1, 1/log2 3, 1/log2 5
    before = 1 + 1 / np.log2(3) + 1 / np.log2(5)
    assert shallow.loss == pytest.approx((3 - before) / 3)
    assert shallow.change == pytest.approx((2 + 1 / np.log2(5) - before) / 3)
    assert deep.change == pytest.approx(deep.loss)


def test_only_queries_below_the_threshold_are_looked_at_again() -> None:
    # candidate gaps 0.4, 0.25, 0.25: half way the threshold is 0.25, and ties are not routed
    evidence = searched(BEFORE, AFTER)
    (none,) = rescore(evidence, percentiles=[50], depths=[4])
    assert (none.encoded, none.documents, none.restored) == (0.0, 0.0, 0.0)
    (sure,) = rescore(evidence, percentiles=[51], depths=[2])
    assert (sure.encoded, sure.documents, sure.restored) == (pytest.approx(2 / 3), pytest.approx(4 / 3), 0.5)
    assert rescored_ranking(evidence, 2)[1].tolist() == [0, 1, 2, 3]


def test_a_tie_of_the_reference_is_restored_after_writing_and_reading_too(tmp_path: Path) -> None:
    # query 1 ties a (position 0) and b (position 1); b appears first, in query 0
    reference = [[0.1, 0.9, 0.2, 0.0], [0.5, 0.5, 0.4, 0.0]]
    candidate = [[0.1, 0.9, 0.2, 0.0], [0.4, 0.5, 0.3, 0.0]]
    made = searched(reference, candidate)
    write_evidence(made, tmp_path / "evidence.parquet")
    read = read_evidence(tmp_path / "evidence.parquet")
    assert read.item_ids[:2].tolist() == ["d1", "d2"]
    for evidence in (made, read):
        assert flips(evidence).tolist() == [False, True]
        (entry,) = rescore(evidence, percentiles=[100], depths=[2])
        assert (entry.restored, entry.ceiling) == (1.0, 1.0)
        ranking = rescored_ranking(evidence, 4)
        assert evidence.item_ids[ranking[1]].tolist() == ["d0", "d1", "d2", "d3"]


def test_the_operating_point_of_a_search_counts_what_is_restored() -> None:
    # 12 items; item 0 is the reference's first, and the candidate's 2nd, 2nd, 11th and 1st
    reference = np.tile(np.arange(12, 0, -1.0), (4, 1))
    candidate = reference.copy()
    candidate[0, 0], candidate[1, 0], candidate[2, 0] = 10.75, 10.5, 1.5
    assert (np.argsort(-candidate, axis=1) == 0).argmax(1).tolist() == [1, 1, 10, 0]
    evidence = searched(reference, candidate)
    # gaps 0.25, 0.5, 1, 1: two of three top-1 changes come back with the first 10
    half = operating_point(evidence, share=0.4, speed_up=4)
    assert half is not None
    assert (half.k, half.routed, half.cost, half.changes) == (10, 0.5, 0.75, pytest.approx(2 / 3 * 2 / 3))
    assert half.threshold == np.nextafter(0.5, 1)
    assert operating_point(evidence, share=0.9) is None
    assert operating_point(searched(reference, reference)) is None


def test_depths_beyond_what_is_stored_are_left_out() -> None:
    reference, candidate, relevant = similarities()
    evidence = searched(reference, candidate, relevant, depth=10)
    assert {entry.k for entry in rescore(evidence, percentiles=[50])} == {5, 10}
    with pytest.raises(QuantDriftError, match="10 ranks"):
        rescore(evidence, percentiles=[50], depths=[50])
