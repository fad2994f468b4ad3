"""Limits as keywords, of the pytest plugin."""

from typing import Any

import pytest

from quantdrift.base.errors import QuantDriftError, UnknownNameError
from quantdrift.gate.rules import RuleError, parse_rule
from quantdrift.metrics import MetricError
from quantdrift_pytest.drift import limit_rule


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("flip", 0.25, "flip@1 <= 0.25"),
        ("gold_lost_at_10", 0.1, "gold_lost@10 <= 0.1"),
        ("ndcg_at_10", 0.6, "ndcg@10 >= 0.6"),
        ("change_ndcg_at_10", -0.02, "change.ndcg@10 >= -0.02"),
        ("candidate_gap", 0.1, "candidate_gap >= 0.1"),  # a metric, not the gap of an arm
        ("S", 0.2, "S <= 0.2"),
    ],
)
def test_a_limit_is_a_maximum_where_lower_is_better_and_else_a_minimum(name: str, value: float, rule: str) -> None:
    assert limit_rule(name, value) == parse_rule(rule)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("flop", 0.2, UnknownNameError, "did you mean flip"),
        ("batch_size", 8, UnknownNameError, r"settings=\{'batch_size'"),
        ("ndcg", 0.6, RuleError, "such as ndcg_at_10=..."),
        ("change_flip", 0.1, MetricError, "no 'change.' form"),
        ("flip", "0.1", RuleError, "a number for the limit flip"),
        ("flip", float("nan"), RuleError, "a limit is a finite number"),
    ],
)
def test_what_is_no_limit_says_what_would_be(name: str, value: Any, error: type[QuantDriftError], message: str) -> None:
    with pytest.raises(error, match=message):
        limit_rule(name, value)
