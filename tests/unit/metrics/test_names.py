"""A metric is what its own string parses back to."""

import pytest

from quantdrift.base.errors import UnknownNameError
from quantdrift.metrics import MetricError, default_metrics, parse_metric
from quantdrift.metrics.base import Slice

DEFAULT = [str(metric) for metric in default_metrics()]


def test_the_names_that_results_are_known_by() -> None:
    assert [parse_metric(name) for name in DEFAULT] == default_metrics()
    promised = ["flip@1", "gold_lost@1", "gold_lost@5", "gold_lost@10", "separation", "at_risk"]
    promised += ["epsilon", "ndcg@10", "reference.ndcg@10", "noise_floor"]
    assert set(promised) <= set(DEFAULT)
    assert len(set(DEFAULT)) == len(DEFAULT)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("gold_lost@3", "gold_lost@3"),
        ("candidate.ndcg@5", "ndcg@5"),
        (" mrr@100 ", "mrr@100"),
        ("coverage@0.1", "coverage@0.10"),
        ("violation@0.000001", "violation@0.000001"),
        ("flip@1:separation=0.05..0.1", "flip@1:separation=0.05..0.1"),
        ("harm:contenders=5.0..10", "harm:contenders=5..10"),
        ("change.ndcg@10:reference.ndcg@10=0..0.5", "change.ndcg@10:reference.ndcg@10=0..0.5"),
        ("relative.mrr@3", "relative.mrr@3"),
        ("flip@1:candidate_gap=-1..2", "flip@1:candidate_gap=-1..2"),
    ],
)
def test_other_cut_offs_slices_and_spellings(text: str, canonical: str) -> None:
    metric = parse_metric(text)
    assert (str(metric), parse_metric(canonical)) == (canonical, metric)
    assert hash(parse_metric(canonical)) == hash(metric)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("flop@1", "flip@1"),
        ("gold-lost@5", "gold_lost@5"),
        ("reference.ndgc@10", "reference.ndcg@10"),
        ("ndcg@0", "ndcg@10"),
        ("EPSILON", "epsilon"),
        *((text, None) for text in ("", "@", "@10", "ndcg@-1", "ndcg 10", "🐍", "coverage@0.0", "coverage@0.1e2")),
    ],
)
def test_a_wrong_name_gets_the_nearest(text: str, meant: str | None) -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse_metric(text)
    assert meant is None or caught.value.suggestions[0] == meant
    assert f"unknown metric {text!r}" + ("" if meant is None else f"; did you mean {meant}") in str(caught.value)
    assert "quantdrift list metrics" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ndcg", "'ndcg' takes a cut-off, a whole number, as in ndcg@10; got none"),
        ("separation@1", "'separation' takes no cut-off; got @1"),
        ("flip@5", "as in flip@1 and no other; got @5"),  # a flip is of the first item
        ("coverage@10", "a level above 0 and below 1 .*, as in coverage@0.10; got @10"),
        ("gold_lost@0.5", "a whole number, as in gold_lost@1; got @0.50"),
        ("flip@1:separation=..1", "expected a slice such as flip@1:separation="),
        ("flip@1:separation=1..1", "a finite lower end below its upper end; got 1..1"),
        ("flip@1:relative.ndcg@10=0..1", "got relative.ndcg@10"),
        ("flip@1:ndcg=0..1", "'ndcg' takes a cut-off"),
        ("separation_quantile@100", "a percentile from 1 to 99"),
        ("reference.flip@1", "'flip' compares the two arms; it has no 'reference.' form"),
    ],
)
def test_a_form_that_a_metric_does_not_have(text: str, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        parse_metric(text)
    with pytest.raises(MetricError, match="every input"):
        Slice(by=parse_metric("gap:separation=0..1"), low=0)
