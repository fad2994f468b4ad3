"""A metric is what its own string parses back to."""

from __future__ import annotations

import pytest

from quantdrift.errors import QuantDriftError, UnknownNameError
from quantdrift.metrics import FAMILIES, Metric, MetricError, default_metrics, members, parse_metric

DEFAULT = [str(metric) for metric in default_metrics()]


@pytest.mark.parametrize("name", DEFAULT)
def test_default_metrics_parse_back(name: str) -> None:
    metric = parse_metric(name)
    assert metric in default_metrics()
    assert str(metric) == name


def test_the_names_that_results_are_known_by() -> None:
    promised = ["flip@1", "gold_lost@1", "gold_lost@5", "gold_lost@10", "separation", "at_risk"]
    promised += ["epsilon", "ndcg@10", "reference.ndcg@10", "noise_floor"]
    assert set(promised) <= set(DEFAULT)
    assert len(set(DEFAULT)) == len(DEFAULT)


@pytest.mark.parametrize(
    ("text", "canonical"), [("gold_lost@3", "gold_lost@3"), ("candidate.ndcg@5", "ndcg@5"), (" mrr@100 ", "mrr@100")]
)
def test_other_cut_offs_and_spellings(text: str, canonical: str) -> None:
    metric = parse_metric(text)
    assert str(metric) == canonical
    assert parse_metric(canonical) == metric
    assert hash(parse_metric(canonical)) == hash(metric)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("flop@1", "flip@1"),
        ("ndgc@10", "ndcg@10"),
        ("seperation", "separation"),
        ("gold-lost@5", "gold_lost@5"),
        ("reference.ndgc@10", "reference.ndcg@10"),
        ("ndcg@0", "ndcg@10"),
        ("ndcg@010", "ndcg@10"),
        ("EPSILON", "epsilon"),
    ],
)
def test_a_wrong_name_gets_the_nearest(text: str, meant: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_metric(text)
    assert caught.value.suggestions[0] == meant
    assert f"unknown metric {text!r}; did you mean {meant}" in str(caught.value)
    assert "quantdrift list metrics" in str(caught.value)


@pytest.mark.parametrize("text", ["", "@", "@10", "flip@", "ndcg@-1", "ndcg@1.5", "ndcg 10", "🐍"])
def test_what_is_no_name_at_all(text: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown metric"):
        parse_metric(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ndcg", "'ndcg' needs a cut-off, e.g. ndcg@10"),
        ("separation@1", "'separation' takes no cut-off; got @1"),
        ("flip@5", "of 'flip' there is only flip@1; got @5"),  # a flip is of the first item
        ("reference.flip@1", "'flip' compares the two arms; it has no 'reference.' form"),
    ],
)
def test_a_form_that_a_metric_does_not_have(text: str, message: str) -> None:
    with pytest.raises(MetricError, match=message) as caught:
        parse_metric(text)
    assert isinstance(caught.value, QuantDriftError)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_family_says_all_that_a_report_needs(family: object) -> None:
    for metric in members(FAMILIES[family.name]):  # type: ignore[attr-defined]
        assert isinstance(metric, Metric)
        assert metric.family.summary
        assert metric.family.ties
        assert metric.family.low < metric.family.high
        assert metric.family.direction in {"lower", "higher", "none"}
