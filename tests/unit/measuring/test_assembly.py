"""From a state to evidence: positions get names, labels and noise join."""

import numpy as np

from quantdrift.evidence.record import Evidence, Top
from quantdrift.measuring.flow import assemble
from quantdrift.metrics import measure
from quantdrift.scoring.similarity import Similarity
from quantdrift.scoring.state import ScoreState
from quantdrift.scoring.streamed import score_embeddings, score_matrix

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


def test_positions_become_names_and_only_those_needed_are_kept() -> None:
    evidence = assemble(state(), input_ids=["q0", "q1"], item_ids=ITEMS, depth=2)
    assert names(evidence, evidence.reference_top) == [["d40", "d7"], ["d99", "d7"]]
    assert names(evidence, evidence.candidate_top) == [["d7", "d41"], ["d99", "d7"]]
    assert sorted(evidence.item_ids) == ["d40", "d41", "d7", "d99"]
    assert evidence.reference_top.candidate_scores.tolist() == [[0, 9], [9, 8]]
    assert (evidence.n_items.tolist(), evidence.depth) == ([100, 100], 2)


def test_a_lone_document_that_is_the_query_itself() -> None:
    """Nothing was scored: every figure is undefined, none fails."""
    vector = np.ones((1, 2), dtype=np.float32)
    lone = score_embeddings(vector, vector, vector, vector, similarity=Similarity.DOT, k=3, excluded=np.array([0]))
    evidence = assemble(lone, input_ids=["d0"], item_ids=["d0"], qrels={"d0": {"d0": 1}})
    assert (evidence.depth, evidence.reference_top.items.tolist()) == (1, [[-1]])
    estimates = measure(evidence)
    for name in ("flip@1", "epsilon", "S", "gap", "separation", "at_risk", "tied", "gold_lost@1"):
        assert estimates[name].value is None
    assert estimates["ndcg@10"].value == 0  # the relevant document is not found
