"""What is told of a baseline when it is written: its figures, and rules it is too small for."""

from __future__ import annotations

import numpy as np
import pytest

from quantdrift.gate.output import beyond_reach, means_line
from support.gate_samples import ones, rules, snapshot


def test_means_are_of_the_inputs_that_have_a_value() -> None:
    """A rate in percent; a column without any value is left out."""
    held = snapshot(
        {"flip@1": ones(4, [0]), "ndcg@10": np.array([0.5, 0.25, np.nan, 1.0]), "gold_lost@1": np.full(4, np.nan)}
    )
    assert means_line(held) == "flip@1 25.0 %, ndcg@10 0.5833"


@pytest.mark.parametrize(("n", "told"), [(98, True), (99, False)])
def test_a_rule_is_beyond_reach_of_too_few_inputs(n: int, told: bool) -> None:
    lines = beyond_reach(rules("flip@1 no worse by 0.03"), snapshot({"flip@1": ones(n, [])}), alpha=0.05)
    assert bool(lines) == told
    for line in lines:
        assert line.startswith("'flip@1 no worse by 0.03' rests on 98 inputs")
        assert "takes 99 to show it" in line


def test_inputs_without_a_value_do_not_count() -> None:
    lost = ones(120, [])
    lost[50:] = np.nan
    held = snapshot({"flip@1": ones(120, []), "gold_lost@10": lost})
    asked = rules("flip@1 no worse by 0.03", "gold_lost@10 no worse by 0.05")
    (line,) = beyond_reach(asked, held.part(range(100)), alpha=0.01)[1:]
    assert line.startswith("'gold_lost@10 no worse by 0.05' rests on 50 inputs")
    assert "takes 90 to show it" in line  # 0.95^90 is 0.0099


def test_only_comparisons_with_a_margin_of_all_inputs_are_told_of() -> None:
    held = snapshot({"flip@1": ones(5, [])})
    asked = rules(
        "flip@1 <= 0.1",
        "flip@1 no worse",
        "flip@1 [german] no worse by 0.03",
        "ndcg@10 no worse by 0.03",  # the baseline does not hold it
    )
    assert beyond_reach(asked, held, alpha=0.05) == []


def test_a_metric_without_a_greatest_value_has_no_such_number() -> None:
    held = snapshot({"served_relevance": np.ones(5)})
    assert beyond_reach(rules("served_relevance no worse by 0.1"), held, alpha=0.05) == []
