"""From a state to evidence: positions get names, labels and noise join."""

from __future__ import annotations

import numpy as np
import pytest

from quantdrift import perturbation
from quantdrift.engine.measure import assemble, with_qrels
from quantdrift.engine.scoring.state import ScoreState
from quantdrift.engine.scoring.streamed import Similarity, score_embeddings, score_matrix
from quantdrift.errors import RunError
from quantdrift.evidence import Evidence, Noise, Top
from quantdrift.metrics import measure

ITEMS = [f"d{position}" for position in range(100)]


def state() -> ScoreState:
    reference, candidate = np.zeros((2, 100)), np.zeros((2, 100))
    reference[0, [40, 7]] = 9, 8
    reference[1, [99, 7]] = 9, 8
    candidate[0, [7, 41]] = 9, 8
    candidate[1, [99, 7]] = 9, 8
    return score_matrix(reference, candidate, k=5)


def names(evidence: Evidence, top: Top) -> list[list[str]]:
    return [[evidence.item_ids[item] for item in row] for row in top.items.tolist()]


def labels(evidence: Evidence) -> list[dict[str, int]]:
    assert evidence.judgements is not None
    return [
        {str(evidence.item_ids[item]): grade for item, grade in evidence.judgements.of(row).items()}
        for row in range(evidence.n_inputs)
    ]


def test_positions_become_names_and_only_those_needed_are_kept() -> None:
    evidence = assemble(state(), input_ids=["q0", "q1"], item_ids=ITEMS, depth=2)
    assert names(evidence, evidence.reference_top) == [["d40", "d7"], ["d99", "d7"]]
    assert names(evidence, evidence.candidate_top) == [["d7", "d41"], ["d99", "d7"]]
    assert sorted(evidence.item_ids) == ["d40", "d41", "d7", "d99"]
    assert evidence.reference_top.candidate_scores.tolist() == [[0, 9], [9, 8]]
    assert evidence.n_items.tolist() == [100, 100]
    assert evidence.depth == 2


@pytest.mark.parametrize(("depth", "kept"), [(None, 5), (1, 1), (3, 3), (50, 5)])
def test_depth(depth: int | None, kept: int) -> None:
    evidence = assemble(state(), input_ids=["q0", "q1"], item_ids=ITEMS, depth=depth)
    assert evidence.depth == kept
    assert perturbation.epsilon(evidence).tolist() == [9, 0]  # over all items, whatever is stored


def test_ranks_that_no_input_has_are_not_stored() -> None:
    scores = np.array([[1.0, 2.0]])
    evidence = assemble(score_matrix(scores, scores, k=200), input_ids=["q"], item_ids=ITEMS)
    assert evidence.depth == 2


def test_labels_join_and_judged_items_outside_the_corpus_stay() -> None:
    qrels = {"q1": {"d7": 2, "gone": 1, "d50": 0}, "unknown query": {"d1": 1}}
    evidence = assemble(state(), input_ids=["q0", "q1"], item_ids=ITEMS, qrels=qrels, depth=1)
    assert labels(evidence) == [{}, {"d7": 2, "gone": 1, "d50": 0}]


def test_without_labels_there_are_no_judgements() -> None:
    for qrels in (None, {}):
        evidence = assemble(state(), input_ids=["q0", "q1"], item_ids=ITEMS, qrels=qrels)
        assert evidence.judgements is None


def test_labels_can_come_later() -> None:
    before = assemble(state(), input_ids=["q0", "q1"], item_ids=ITEMS, depth=1)
    known = list(before.item_ids)
    after = with_qrels(before, {"q0": {"d40": 1, "new": 3}})
    assert labels(after) == [{"d40": 1, "new": 3}, {}]
    assert list(before.item_ids) == known  # the old evidence is left alone
    assert before.judgements is None
    assert labels(with_qrels(after, {"q1": {"d2": 1}})) == [{}, {"d2": 1}]  # the new ones replace


def test_noise_is_passed_on() -> None:
    noise = Noise(flips=np.array([True, False]), epsilon=np.zeros(2, dtype=np.float32))
    evidence = assemble(state(), input_ids=["q0", "q1"], item_ids=ITEMS, noise=noise)
    assert evidence.noise is noise


def test_a_lone_document_that_is_the_query_itself() -> None:
    """Nothing was scored: every figure is undefined, none fails."""
    one = np.ones((1, 2), dtype=np.float32)
    lone = score_embeddings(one, one, one, one, similarity=Similarity.DOT, k=3, excluded=np.array([0]))
    evidence = assemble(lone, input_ids=["d0"], item_ids=["d0"], qrels={"d0": {"d0": 1}})
    assert evidence.depth == 1
    assert evidence.reference_top.items.tolist() == [[-1]]
    estimates = measure(evidence)
    for name in ("flip@1", "epsilon", "S", "gap", "separation", "at_risk", "tied", "gold_lost@1"):
        assert estimates[name].value is None
    assert estimates["ndcg@10"].value == 0  # the relevant document is not found


def test_input_ids_pair_runs_so_they_differ() -> None:
    with pytest.raises(RunError, match="input ids that differ"):
        assemble(state(), input_ids=["q0", "q0"], item_ids=ITEMS)
