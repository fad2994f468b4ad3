import pytest

import mteb
from mteb.mocks import MockRetrievalTask
from mteb.models import CompressionWrapper
from mteb.results import TaskResult
from mteb.results.drift import add_drift_scores, calculate_drift_scores
from mteb.types import OutputDType

REFERENCE = {
    "q1": {"d1": 0.9, "d2": 0.5, "d3": 0.1},
    "q2": {"d1": 0.2, "d2": 0.7, "d3": 0.6},
    "q3": {"d1": 0.8, "d2": 0.8, "d3": 0.0},
    "q4": {"d1": 0.3, "d2": 0.2, "d3": 0.1},
}
CANDIDATE = {
    "q1": {"d1": 0.4, "d2": 0.5, "d3": 0.1},  # loses its relevant first document
    "q2": {"d1": 0.2, "d2": 0.6, "d3": 0.7},  # gains one
    "q3": {"d2": 0.8, "d1": 0.8, "d3": 0.0},  # the same tie, written in another order
    "q4": {"d1": 0.3, "d2": 0.2, "d3": 0.1},
}
QRELS = {"q1": {"d1": 1, "d2": 0}, "q2": {"d3": 1}, "q3": {"d1": 2}, "q4": {}}


def test_drift_scores_by_hand():
    scores = calculate_drift_scores(REFERENCE, CANDIDATE, QRELS, k_values=(1, 2))
    assert scores["drift_n_inputs"] == 4
    assert scores["drift_flip_at_1"] == 2 / 4
    assert scores["drift_gold_lost_at_1"] == 1 / 2  # of q1 and q3
    assert scores["drift_gold_gained_at_1"] == 1 / 2  # of q2 and q3
    assert scores["drift_gold_lost_at_2"] == scores["drift_gold_gained_at_2"] == 0
    low, high = scores["drift_flip_at_1_low"], scores["drift_flip_at_1_high"]
    assert (low, high) == pytest.approx((0.1500, 0.8500), abs=1e-4)


def test_a_model_against_itself_has_no_drift():
    scores = calculate_drift_scores(REFERENCE, REFERENCE, QRELS)
    assert all(
        value == 0
        for key, value in scores.items()
        if key != "drift_n_inputs" and not key.endswith("_high")
    )


def test_without_relevant_documents_there_is_none_to_lose():
    scores = calculate_drift_scores(REFERENCE, CANDIDATE, {})
    assert scores["drift_flip_at_1"] == 0.5
    assert scores["drift_gold_lost_at_10"] is None
    assert "drift_gold_lost_at_10_low" not in scores


def test_different_queries_are_refused():
    with pytest.raises(ValueError, match="q4"):
        calculate_drift_scores(
            REFERENCE, {q: r for q, r in CANDIDATE.items() if q != "q4"}, QRELS
        )


@pytest.mark.parametrize("attribute", ["ignore_identical_ids", "skip_first_result"])
def test_what_the_task_leaves_out_counts_for_nothing(attribute):
    task = MockRetrievalTask()
    setattr(task, attribute, True)
    before, after = {"q": {"q": 9.0, "d1": 2.0}}, {"q": {"q": 9.0, "d2": 2.0}}
    same = calculate_drift_scores(before, after, {"q": {"d1": 1}})
    assert same["drift_flip_at_1"] == 0
    scores = calculate_drift_scores(before, after, {"q": {"d1": 1}}, task=task)
    assert scores["drift_flip_at_1"] == scores["drift_gold_lost_at_1"] == 1


def _evaluate(level, folder):
    model = mteb.get_model("mteb/baseline-random-encoder")
    if level:
        model = CompressionWrapper(model, level)
    task = MockRetrievalTask()
    results = mteb.evaluate(model, task, cache=None, prediction_folder=folder)
    return results.task_results[0], task


def test_keys_beside_the_scores_of_a_compressed_model(tmp_path):
    before, task = _evaluate(None, tmp_path / "before")
    after, _ = _evaluate(OutputDType.BINARY, tmp_path / "after")
    folders = {
        "prediction_folder": tmp_path / "after",
        "reference_prediction_folder": tmp_path / "before",
    }
    result = add_drift_scores(after, before, task=task, **folders)
    (scores,) = result.scores["test"]
    assert scores["drift_n_inputs"] == 2
    assert 0 <= scores["drift_flip_at_1"] <= 1
    assert scores["drift_reference_main_score"] == before.get_score()
    assert result.get_score() == after.get_score()
    old = {k: v for k, v in scores.items() if not k.startswith("drift_")}
    assert old == after.scores["test"][0]
    result.to_disk(tmp_path / "result.json")
    read = TaskResult.from_disk(tmp_path / "result.json")
    assert read.scores["test"][0]["drift_n_inputs"] == 2
    other = before.model_copy(update={"dataset_revision": "another"})
    with pytest.raises(ValueError, match="dataset_revision"):
        add_drift_scores(after, other, task=task, **folders)
