"""Metrics as keys of a harness's result."""

import json

import pytest

from quantdrift.base.errors import UnknownNameError
from quantdrift.metrics import MetricError, default_metrics, parse_metric
from quantdrift.metrics.keys import VARIABLE, drift_keys, harness_metrics, key_of
from support.small_evidence import CANDIDATE, QRELS, REFERENCE, THREE, evidence_of


@pytest.mark.parametrize(
    ("metric", "key"),
    [
        ("flip@1", "drift_flip_at_1"),
        ("separation", "drift_separation_median"),
        ("cut_separation@2", "drift_cut_separation_at_2_median"),
        ("separation_quantile@25", "drift_separation_quantile_at_25"),
        ("reference.ndcg@10", "drift_reference_ndcg_at_10"),
        ("relative.ndcg@10", "drift_relative_ndcg_at_10"),
        ("coverage@0.1", "drift_coverage_at_0.10"),
        ("flip@1:coverage@0.05=1..", "drift_flip_at_1_where_coverage_at_0_05_from_1"),
        ("gap:ndcg@10=0..0.5", "drift_gap_median_where_ndcg_at_10_0_to_0.5"),
        ("flip@1:separation_quantile@9=1..2", "drift_flip_at_1_where_separation_quantile_at_9_1_to_2"),
    ],
)
def test_the_key_of_a_metric(metric: str, key: str) -> None:
    assert key_of(parse_metric(metric)) == key


def test_values_intervals_and_nulls() -> None:
    asked = [parse_metric(name) for name in ("flip@1", "gap", "change.recall@1", "noise_floor")]
    keys = drift_keys(THREE, asked, warn=pytest.fail)
    assert list(keys) == [
        "drift_flip_at_1",
        "drift_flip_at_1_low",
        "drift_flip_at_1_high",
        "drift_gap_median",
        "drift_change_recall_at_1",
        "drift_change_recall_at_1_low",
        "drift_change_recall_at_1_high",
        "drift_noise_floor",
    ]
    assert (keys["drift_flip_at_1"], keys["drift_gap_median"]) == (2 / 3, 1)
    assert keys["drift_noise_floor"] is None
    assert json.loads(json.dumps(drift_keys(THREE, default_metrics(), warn=print), allow_nan=False))


def test_users_add_metrics_and_a_misspelt_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert harness_metrics() == default_metrics()
    monkeypatch.setenv(VARIABLE, " gold_lost@3,harm:separation=0..0.05  flip@1 ")
    added = [str(metric) for metric in harness_metrics()[len(default_metrics()) :]]
    assert added == ["gold_lost@3", "harm:separation=0..0.05"]  # flip@1 is there already
    monkeypatch.setenv(VARIABLE, "gold_last@3")
    with pytest.raises(UnknownNameError, match="gold_lost@1"):
        harness_metrics()
    monkeypatch.setenv(VARIABLE, "ndcg")
    with pytest.raises(MetricError, match=r"QUANTDRIFT_METRICS: .*'ndcg'"):
        harness_metrics()


def test_a_finished_evaluation_is_not_thrown_away() -> None:
    """A cut-off deeper than the stored ranks is known only at the end."""

    cut = evidence_of(REFERENCE, CANDIDATE, k=2, qrels=QRELS)
    warnings: list[str] = []
    keys = drift_keys(cut, [parse_metric("ndcg@3"), parse_metric("flip@1")], warn=warnings.append)
    assert keys["drift_ndcg_at_3"] is None
    assert (keys["drift_flip_at_1"], len(warnings)) == (0.5, 1)
    assert "keep 3 ranks" in warnings[0]
