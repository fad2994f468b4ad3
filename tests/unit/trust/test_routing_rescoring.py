"""The candidate's first items in the order of the reference: from evidence, and in a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.errors import QuantDriftError, ScoreError, UnknownNameError
from quantdrift.evidence_file import read_evidence, write_evidence
from quantdrift.identity import Identity
from quantdrift.perturbation import flips
from quantdrift.trust.rescoring import reorder, rescore, rescored_ranking, within
from quantdrift.trust.router import GapRouter
from quantdrift.trust.serving import RescoredSearch
from quantdrift.trust.sweep import restoring_point
from support.routing_samples import searched, similarities

# the reference's first item is ranked 1st, 2nd and 4th by the candidate
BEFORE = [[0.9, 0.5, 0.4, 0.3], [0.9, 0.5, 0.4, 0.3], [0.9, 0.5, 0.4, 0.3]]
AFTER = [[0.9, 0.5, 0.4, 0.3], [0.5, 0.75, 0.4, 0.3], [0.1, 0.5, 0.25, 0.2]]
DOCUMENTS = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]])


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
    assert shallow.metric == "ndcg@10"
    assert shallow.loss == pytest.approx((3 - before) / 3)
    assert shallow.change == pytest.approx((2 + 1 / np.log2(5) - before) / 3)
    assert deep.change == pytest.approx(deep.loss)


def test_only_queries_below_the_threshold_are_looked_at_again() -> None:
    # candidate gaps 0.4, 0.25, 0.25: half way the threshold is 0.25, and ties are not routed
    evidence = searched(BEFORE, AFTER)
    (none,) = rescore(evidence, percentiles=[50], depths=[4])
    assert (none.encoded, none.documents, none.restored) == (0.0, 0.0, 0.0)
    rows = np.array([False, True, False])
    assert rescored_ranking(evidence, rows, 2).tolist() == [
        evidence.candidate_top.items[0].tolist(),
        [0, 1, 2, 3],
        evidence.candidate_top.items[2].tolist(),
    ]


def test_items_behind_the_first_k_stay_and_ties_go_to_the_lower_position() -> None:
    items = np.array([[7, 3, 5, 1], [2, 4, -1, -1]])
    scores = np.array([[0.5, 0.5, 0.9, 1.0], [0.1, 0.2, np.nan, np.nan]])
    moved, told = reorder(items, scores, 3)
    assert moved.tolist() == [[5, 3, 7, 1], [4, 2, -1, -1]]
    assert told[0].tolist() == [0.9, 0.5, 0.5, 1.0]
    assert items[0].tolist() == [7, 3, 5, 1]


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
        ranking = rescored_ranking(evidence, np.array([True, True]), 4)
        assert evidence.item_ids[ranking[1]].tolist() == ["d0", "d1", "d2", "d3"]


def test_tied_items_behind_the_ranks_stored_keep_the_candidates_order() -> None:
    # of the reference d0 and d1 are stored; d3 and d2 tie with each other behind them
    evidence = searched([[0.9, 0.8, 0.1, 0.1]], [[0.0, 0.1, 0.5, 0.6]], depth=2)
    assert evidence.candidate_top.items.tolist() == [[3, 2]]
    assert rescored_ranking(evidence, np.array([True]), 2).tolist() == [[3, 2]]


def test_the_ceiling_is_whether_the_reference_s_first_item_is_among_the_k() -> None:
    evidence = searched(BEFORE, AFTER)
    ranks = [1, 2, 4]  # of item 0 in the candidate, by hand
    for k in (1, 2, 3, 4):
        assert within(evidence, k).tolist() == [rank <= k for rank in ranks]


def test_the_threshold_counts_what_is_restored_where_that_can_be_reached() -> None:
    # 12 items; item 0 is the reference's first, and the candidate's 2nd, 2nd, 11th and 1st
    reference = np.tile(np.arange(12, 0, -1.0), (4, 1))
    candidate = reference.copy()
    candidate[0, 0], candidate[1, 0], candidate[2, 0] = 10.75, 10.5, 1.5
    assert (np.argsort(-candidate, axis=1) == 0).argmax(1).tolist() == [1, 1, 10, 0]
    evidence = searched(reference, candidate)
    # gaps 0.25, 0.5, 1, 1: two of three changed answers come back with the first 10
    half = restoring_point(evidence, 0.5, speed_up=4)
    assert half is not None
    assert (half.k, half.counts, half.routed, half.cost) == (10, "restored", 0.5, 0.75)
    assert half.threshold == np.nextafter(0.5, 1)
    assert (half.restored, half.ceiling) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    most = restoring_point(evidence, 0.9)
    assert most is not None
    assert (most.counts, most.caught, most.routed) == ("caught", 1.0, 1.0)
    assert most.restored == pytest.approx(2 / 3)
    assert restoring_point(searched(reference, reference)) is None


def test_depths_beyond_what_is_stored_are_left_out() -> None:
    reference, candidate, relevant = similarities()
    evidence = searched(reference, candidate, relevant, depth=10)
    assert {entry.k for entry in rescore(evidence)} == {5, 10}
    with pytest.raises(QuantDriftError, match="at most the 10 ranks"):
        rescore(evidence, depths=[50])
    with pytest.raises(QuantDriftError, match="from 1 to the 10 ranks"):
        rescored_ranking(evidence, np.ones(len(reference), dtype=bool), 11)


def test_without_ten_ranks_accuracy_stands_for_ndcg_and_without_labels_nothing() -> None:
    reference, candidate, relevant = similarities()
    (entry,) = rescore(searched(reference, candidate, relevant, depth=5), percentiles=[100], depths=[5])
    assert entry.metric == "accuracy"
    (entry,) = rescore(searched(reference, candidate), percentiles=[100], depths=[5])
    assert (entry.metric, entry.change) == (None, None)
    assert entry.reason == "no input has a relevant item"
    (entry,) = rescore(searched(reference, reference, relevant), percentiles=[100], depths=[5])
    assert (entry.restored, entry.ceiling, entry.change) == (None, None, 0)


def find(positions: Any, scores: Any) -> Any:
    """A search that always finds this."""
    return lambda queries: (np.array(positions), np.array(scores))


def test_an_unsure_query_is_rescored_and_a_sure_one_is_not() -> None:
    asked: list[Any] = []

    def encode(queries: Any) -> Any:
        asked.append(queries)
        return np.array([[0.0, 2.0]] * len(queries))

    search = RescoredSearch(
        find([[0, 1, 2], [0, 1, 2]], [[0.9, 0.3, 0.2], [0.9, 0.85, 0.8]]),
        encode,
        DOCUMENTS,
        GapRouter(threshold=0.1),
        k=3,
    )
    positions, scores, rescored = search(["sure", "unsure"])
    assert asked == [["unsure"]]
    assert rescored.tolist() == [False, True]
    assert positions.tolist() == [[0, 1, 2], [2, 1, 0]]
    assert scores[0].tolist() == [0.9, 0.3, 0.2]
    assert scores[1] == pytest.approx([1.0, 0.6, 0.0])  # cosines with the second axis
    assert (search.n_seen, search.n_rescored, search.rescored_share) == (2, 1, 0.5)


def test_dot_products_and_a_part_of_the_list() -> None:
    search = RescoredSearch(
        find([[3, 0, 1, 2]], [[0.9, 0.9, 0.8, 0.7]]),
        lambda queries: [[0.5, 2.0]],
        DOCUMENTS,
        GapRouter(threshold=1.0),
        k=2,
        similarity="dot",
    )
    found = search(["query"])
    assert found.positions.tolist() == [[0, 3, 1, 2]]
    assert found.scores[0] == pytest.approx([0.5, -0.5, 0.8, 0.7])


def test_euclidean_scores_are_minus_the_distance() -> None:
    search = RescoredSearch(
        find([[0, 1, 2]], [[-0.1, -0.2, -0.3]]),
        lambda queries: [[0.0, 0.5]],
        DOCUMENTS,
        GapRouter(threshold=1.0),
        similarity="euclidean",
    )
    found = search(["query"])
    assert found.positions.tolist() == [[2, 1, 0]]
    wanted = [-0.5, -np.hypot(0.8, 0.1), -np.hypot(1, 0.5)]
    assert found.scores[0] == pytest.approx(wanted)


def test_what_is_not_best_first_is_refused() -> None:
    for positions, scores, message in (
        ([[0, 1], [0, 1]], [[0.9, 0.8], [0.1, 0.2]], "query 1 of the batch increase along the row"),
        ([[0, 1, 2], [0, -1, 2]], [[0.9, 0.9, 0.9], [0.1, 0.0, 0.2]], "minus the distance"),
        ([[0, 1, 2], [0, 1, 2]], [[0.9, 0.8, 0.7], [0.9, 0.8, np.nan]], "scores that are NaN"),
    ):
        search = RescoredSearch(
            find(positions, scores), lambda queries: np.ones((len(queries), 2)), DOCUMENTS, GapRouter(threshold=1.0)
        )
        with pytest.raises(ScoreError, match=message):
            search(["one", "two"])


def test_ties_at_full_precision_go_to_the_lower_position() -> None:
    search = RescoredSearch(
        find([[3, 1, 0]], [[0.9, 0.9, 0.8]]),
        lambda queries: np.zeros((1, 2)),  # cosine 0 with everything
        DOCUMENTS,
        GapRouter(threshold=1.0),
    )
    found = search(["query"])
    assert found.positions.tolist() == [[0, 1, 3]]
    assert found.scores.tolist() == [[0, 0, 0]]


def test_places_without_a_result_stay_last() -> None:
    search = RescoredSearch(
        find([[1, 0, -1], [2, -1, -1]], [[0.5, 0.4, -np.inf], [0.5, -np.inf, -np.inf]]),
        lambda queries: np.array([[1.0, 0.0]] * len(queries)),
        DOCUMENTS,
        GapRouter(threshold=1.0),
    )
    found = search(["two results", "one result"])
    assert found.positions.tolist() == [[0, 1, -1], [2, -1, -1]]
    assert found.rescored.tolist() == [True, False]
    assert found.scores[0] == pytest.approx([1.0, 0.8, -np.inf])


def test_a_check_may_decide_and_documents_may_lie_on_disk(tmp_path: Path) -> None:
    class Never:
        def accepts(self, scores: Any) -> Any:
            return np.zeros(len(scores), dtype=bool)

    np.save(tmp_path / "documents.npy", DOCUMENTS.astype(np.float16))
    documents = np.load(tmp_path / "documents.npy", mmap_mode="r")
    search = RescoredSearch(find([[0, 3]], [[0.9, 0.1]]), lambda queries: [[-1.0, 0.0]], documents, Never())
    assert search(["query"]).positions.tolist() == [[3, 0]]
    assert len(search([])) == 0


def test_what_does_not_fit_is_refused() -> None:
    gate, one = GapRouter(threshold=1.0), find([[0, 1]], [[0.9, 0.8]])
    with pytest.raises(UnknownNameError, match="cosine"):
        RescoredSearch(one, len, DOCUMENTS, gate, similarity="cosin")  # type: ignore[arg-type]
    with pytest.raises(QuantDriftError, match="softmax of similarities"):
        RescoredSearch(one, len, DOCUMENTS, GapRouter(threshold=0.5, score="msp"))
    with pytest.raises(QuantDriftError, match="k of at least 1"):
        RescoredSearch(one, len, DOCUMENTS, gate, k=0)
    with pytest.raises(ScoreError, match=r"shape \[n_docs, dim\]"):
        RescoredSearch(one, len, DOCUMENTS[0], gate)
    with pytest.raises(ScoreError, match=r"embeddings of shape \(1, 2\)"):
        RescoredSearch(one, lambda queries: np.zeros((1, 3)), DOCUMENTS, gate)(["query"])
    with pytest.raises(ScoreError, match="NaN or infinity"):
        RescoredSearch(one, lambda queries: [[np.nan, 0]], DOCUMENTS, gate)(["query"])
    with pytest.raises(ScoreError, match="one corpus, in one order"):
        RescoredSearch(find([[0, 9]], [[0.9, 0.8]]), len, DOCUMENTS, gate)(["query"])
    with pytest.raises(ScoreError, match="2 queries in one shape"):
        RescoredSearch(one, len, DOCUMENTS, gate)(["two", "queries"])


def test_a_gate_that_was_set_on_other_scores_is_refused() -> None:
    one = find([[0, 1]], [[0.9, 0.8]])

    def made(**known: Any) -> RescoredSearch:
        gate = GapRouter(threshold=0.5, origin=Identity(settings=known))
        return RescoredSearch(one, len, DOCUMENTS, gate, similarity="dot")

    with pytest.raises(QuantDriftError, match="was set on class logits"):
        made(reading="logits")
    with pytest.raises(QuantDriftError, match="was set on a linear probe's class logits"):
        made(reading="linear probe")
    with pytest.raises(QuantDriftError, match="similarity='cosine'"):
        made(reading="retrieval", similarity="cosine")
    assert made(reading="retrieval", similarity="dot").similarity == "dot"
    assert made().similarity == "dot"
