"""The line that a rule is: what it means, what it is refused for, and that it parses back."""

from __future__ import annotations

import doctest
import re

import pytest

import quantdrift.gate.rules as module
from quantdrift.errors import UnknownNameError
from quantdrift.gate.rules import Rule, RuleError, parse_rule
from quantdrift.metrics import MetricError, parse_metric


def test_the_examples_of_the_module() -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_the_examples_of_the_error_can_be_read() -> None:
    with pytest.raises(RuleError) as stopped:
        parse_rule("flip@1 should be low")
    examples = re.findall(r"'([^']+)'", str(stopped.value).partition(";")[0])
    assert len(examples) == 3
    for text in examples:
        assert str(parse_rule(text)) == text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("flip@1 <= 0.25", ("flip@1", "<=", 0.25, None)),
        ("flip@1<=25%", ("flip@1", "<=", 0.25, None)),
        ("ndcg@10 >= .3", ("ndcg@10", ">=", 0.3, None)),
        ("flip@1 no worse", ("flip@1", "no worse", None, None)),
        ("  flip@1   no  worse   by 3 %  ", ("flip@1", "no worse", 0.03, None)),
        ("gold_lost@10 no worse by 3e-2", ("gold_lost@10", "no worse", 0.03, None)),
        ("flip@1 [german] <= 0.3", ("flip@1", "<=", 0.3, "german")),
        ("flip@1[ two words ]no worse", ("flip@1", "no worse", None, "two words")),
        ("relative.ndcg@10 >= -0.02", ("relative.ndcg@10", ">=", -0.02, None)),
        ("change.ndcg@10 >= -2 %", ("change.ndcg@10", ">=", -0.02, None)),
        ("separation >= 1", ("separation", ">=", 1, None)),
        ("flip@1:gap=0.05.. <= 0.01", ("flip@1:gap=0.05..", "<=", 0.01, None)),
        ("flip@1:gap=0..0.05 no worse", ("flip@1:gap=0..0.05", "no worse", None, None)),
        ("flip@1 <= 0", ("flip@1", "<=", 0, None)),
        ("flip@1 <= 0.7 %", ("flip@1", "<=", 0.007, None)),
    ],
)
def test_what_a_line_means(text: str, wanted: tuple[str, str, float | None, str | None]) -> None:
    rule = parse_rule(text)
    held = (str(rule.metric), rule.test, rule.number, rule.on)
    assert held == wanted
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a rule such as"),
        ("flip@1", "expected a rule such as"),
        ("flip@1 0.25", "expected a rule such as"),
        ("flip@1 < 0.25", "expected a rule such as"),
        ("flip@1 == 0.25", "expected a rule such as"),
        ("flip@1 <= 0.25 sown", "expected a rule such as"),
        ("flip@1 no worse 0.03", "expected a rule such as"),
        ("flip@1 [] <= 0.3", "expected a rule such as"),
        ("flip@1 <= a quarter", "expected a rule such as"),
        ("flip@1 <= quarter", "expected a number in the rule 'flip@1 <= quarter', got 'quarter'"),
        ("flip@1 <= nan", "expected a number"),
        ("contenders <= 1_0", "expected a number"),
        ("contenders <= 1e400", "a limit is a finite number"),
        ("flip@1 <= 25", "flip@1 lies from 0 to 1, all on one side of it; 25 % is 0.25"),
        ("flip@1 >= -0.1", "flip@1 lies from 0 to 1"),
        ("change.ndcg@10 >= -2", "lies from -1 to 1"),
        ("separation no worse by 0.1", "a median or quantile, which has no paired test"),
        ("noise_floor no worse", "of the reference, which the baseline shares; give a limit"),
        ("tied no worse", "of the reference"),
        ("gap no worse", "of the reference"),
        ("reference.ndcg@10 no worse by 0.1", "of the reference"),
        ("flip_to_runner_up no worse", "neither way is better"),
        ("coverage@0.1 no worse by 0.1", "each run calibrates its own threshold"),
        ("relative.ndcg@10 no worse by 0.02", "ask for change.ndcg@10"),
        ("relative.ndcg@10 [x] >= -0.02", "ask for change.ndcg@10"),
        ("flip@1:separation=0..1 no worse", "a slice by separation holds other inputs in every"),
        ("flip@1:candidate_gap=0..1 no worse", "a slice by candidate_gap holds other inputs"),
        ("gold_gained@10 no worse by 0.1", "inputs that the candidate's answers choose"),
        ("flip_to_irrelevant no worse", "ask for harm, or give a limit"),
        ("flip_to_relevant no worse by 0.1", "ask for benefit, or give a limit"),
        ("flip@1 no worse by 0", "a margin lies above 0 and below the greatest difference"),
        ("flip@1 no worse by -0.03", "a margin lies above 0"),
        ("flip@1 no worse by 3", "(1); for 2 percentage points give 0.02"),
        ("ndcg@10 no worse by 1", "a margin lies above 0"),
    ],
)
def test_what_a_line_is_refused_for(text: str, why: str) -> None:
    with pytest.raises(RuleError, match=re.escape(why)):
        parse_rule(text)


def test_a_limit_that_is_built_by_hand_is_checked_too() -> None:
    with pytest.raises(RuleError, match="a limit is a finite number"):
        Rule(metric=parse_metric("flip@1"), test="<=")


def test_metrics_are_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean flip@1"):
        parse_rule("flip@one <= 0.25")
    with pytest.raises(MetricError):
        parse_rule("flip@1:gap=1 <= 0.25")


def test_a_share_is_the_number_that_it_would_be_written_as() -> None:
    """Also where a division by 100 rounds another way than the decimal number."""
    assert 0.7 / 100 != 0.007
    for tenths in range(1, 1000):
        percent = f"{tenths // 10}.{tenths % 10}"
        written = f"0.{tenths:03d}"
        assert parse_rule(f"flip@1 <= {percent} %") == parse_rule(f"flip@1 <= {written}")


def test_kind_and_span() -> None:
    wanted = {
        "flip@1 no worse": ("rate", 1),
        "change.accuracy no worse": ("mean", 1),
        "change.ndcg@10 no worse": ("mean", 1),
        "tau_b@10 no worse": ("mean", 2),
        "separation >= 1": ("quantile", float("inf")),
        "served_relevance no worse": ("mean", float("inf")),
    }
    for text, held in wanted.items():
        rule = parse_rule(text)
        assert (rule.kind, rule.span) == held
