"""What a judged run is told with: one line, cells and sentences, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantdrift.display import clean, shorten, shown
from quantdrift.gate.judge import GateResult
from quantdrift.gate.output import NAMES, headline, rows, sentences, subject, worst_rows, worst_title
from quantdrift.gate.rules import parse_rule
from quantdrift.statistics import Estimate
from support.gate_result_samples import (
    BROKEN,
    FEW,
    IDENTITY,
    LIMIT,
    NASTY,
    OTHER,
    UNDEFINED,
    WORSE,
    judgement,
    no_baseline,
    result,
    worst,
)


@pytest.mark.parametrize(
    ("judged", "line"),
    [
        (result(LIMIT), "pass: flip@1 <= 0.25 holds"),
        (result(LIMIT, replace(WORSE, outcome="pass")), "pass: all 2 rules hold"),
        (
            result(WORSE, LIMIT, replace(FEW, outcome="pass")),
            "fail: 1 of 3 rules failed, flip@1 no worse by 0.03 (shown to be worse)",
        ),
        (result(WORSE, LIMIT, BROKEN), "fail: 2 of 3 rules failed, flip@1 no worse by 0.03 and flip@1 <= 0.2"),
        (
            result(FEW),
            "underpowered: 1 of 1 rule is undecided, ndcg@10 no worse by 0.03 "
            "(too few inputs to tell: 225, and it takes about 640)",
        ),
        (
            result(OTHER, differs=("data: cranfield (digest 1 in the baseline, 2 now)", "inputs")),
            "incomparable: the run and the baseline differ in data: cranfield "
            "(digest 1 in the baseline, 2 now), and 1 more",
        ),
        (
            result(replace(OTHER, reason="the baseline has no outcomes of this metric"), LIMIT),
            "incomparable: 1 of 2 rules cannot be compared, flip@1 no worse by 0.03 "
            "(the baseline has no outcomes of this metric)",
        ),
        (
            result(UNDEFINED, WORSE),
            "error: 1 of 2 rules cannot be judged, noise_floor <= 0.05 (undefined: there is no noise floor)",
        ),
    ],
)
def test_the_headline_is_the_verdict_and_why(judged: GateResult, line: str) -> None:
    assert headline(judged) == line


def test_many_rules_are_counted_and_not_listed() -> None:
    failed = [replace(BROKEN, rule=parse_rule(f"flip@1 <= 0.{n}")) for n in range(1, 6)]
    assert headline(result(*failed)) == (
        "fail: 5 of 5 rules failed, flip@1 <= 0.1, flip@1 <= 0.2, flip@1 <= 0.3 and 2 more"
    )


def test_what_is_accepted_says_so() -> None:
    line = headline(result(FEW), accept_underpowered=True)
    assert line.startswith("underpowered, which is accepted: 1 of 1 rule is undecided")
    told = sentences(result(FEW), accept_underpowered=True)
    assert "Too few inputs are accepted (--accept-underpowered), so this ends in success." in told
    assert not any(line.startswith("Measure") for line in told)
    # that too few inputs are accepted does not save what fails
    assert headline(result(FEW, WORSE), accept_underpowered=True).startswith("fail: 1 of 2 rules")
    told = sentences(result(FEW, WORSE), accept_underpowered=True)
    assert any(line.startswith("Measure about 640 inputs (there are 225)") for line in told)


def test_the_subject_names_the_baseline_only_if_it_is_another() -> None:
    assert subject(result(LIMIT)) == ("minilm@W4-rtn on cranfield (test), 1,509 inputs, against a baseline of the same")
    other = replace(IDENTITY, spec="minilm@W4-gptq")
    assert subject(result(LIMIT, baseline=other)).endswith("against a baseline of minilm@W4-gptq")
    assert subject(no_baseline(LIMIT, n_inputs=1)) == "minilm@W4-rtn on cranfield (test), 1 input"
    # two finished runs have no other name for their data than its size, which is told once
    for n, told in ((1509, "1,509 inputs"), (2, "1,509 inputs, 2 inputs")):
        unnamed = replace(IDENTITY, spec="a vs b", data="1,509 inputs")
        found = subject(no_baseline(LIMIT, identity=unnamed, n_inputs=n))
        assert found == f"a vs b on {told}"


def test_rows_hold_rates_in_percent_and_their_differences_in_points() -> None:
    head, cells = rows(result(WORSE, FEW))
    assert head == [
        "rule",
        "now (95 %)",
        "baseline",
        "difference (95 %)",
        "worse / better",
        "n (needed)",
        "p worse (Holm)",
        "p no worse",
        "outcome",
    ]
    assert cells[0] == [
        "flip@1 no worse by 0.03",
        "24.4 % (22.3 to 26.6)",
        "20.0 %",
        "+4.4 pp (+2.1 to +6.8)",
        "100 / 34",
        "1,509",
        "<0.001",
        "0.900",
        "fail",
    ]
    assert cells[1][1:4] == ["0.3912 (0.3600 to 0.4200)", "0.4000", "-0.0088 (-0.0300 to +0.0123)"]
    # how many it takes is told where there are too few
    assert cells[1][5] == "225 (640)"


def test_columns_that_no_rule_fills_are_left_out() -> None:
    head, cells = rows(no_baseline(LIMIT, UNDEFINED))
    assert head == ["rule", "now (95 %)", "n (needed)", "outcome"]
    assert cells[0] == ["flip@1 <= 0.25", "24.4 % (22.3 to 26.6)", "1,509", "pass"]
    assert cells[1] == ["noise_floor <= 0.05", "-", "-", "error"]


def test_a_difference_that_rounds_to_nothing_has_no_minus() -> None:
    small = replace(WORSE, difference=Estimate(value=-0.0001, low=-0.0004, high=0.0, n=9))
    head, cells = rows(result(small))
    assert cells[0][head.index("difference (95 %)")] == "+0.0 pp (+0.0 to +0.0)"


def test_worst_rows_say_what_replaced_what() -> None:
    judged = result(WORSE, worst=(worst(), worst("q8", new=False, rank_after=None, lead=None, is_right=True)))
    assert worst_title(judged) == "2 of 312 changed inputs, the worst first"
    assert worst_rows(judged) == (
        ["input", "reference's answer", "now at rank", "candidate's answer", "labels", "lead", "new"],
        [
            ["q7", "d1", "3", "d9", "right to wrong", "0.0123", "new"],
            ["q8", "d1", "-", "d9", "right to right", "-", "as before"],
        ],
    )


def test_unknown_columns_of_the_worst_are_left_out() -> None:
    bare = worst(was_right=None, is_right=None, rank_after=None, lead=None, new=None, after=None)
    head, cells = worst_rows(no_baseline(LIMIT, worst=(bare,)))
    assert head == ["input", "reference's answer", "candidate's answer"]
    assert cells == [["q7", "d1", "-"]]
    head, _ = worst_rows(no_baseline(LIMIT, worst=(replace(bare, part="german"),)))
    assert head[0] == "part"
    assert set(head) <= NAMES
    assert worst_rows(result(LIMIT)) == ([], [])


def test_sentences_count_what_changed() -> None:
    assert sentences(result(LIMIT))[:2] == [
        "312 of 1,509 inputs have another first answer than the reference; 25 of them had not in the baseline.",
        "On 40 inputs the candidate answers otherwise than in the baseline.",
    ]
    assert sentences(no_baseline(LIMIT)) == ["312 of 1,509 inputs have another first answer than the reference."]
    assert sentences(result(LIMIT, n_changed=0, n_new=0, n_answers_changed=0)) == [
        "None of 1,509 inputs has another first answer than the reference.",
        "The candidate gives the first answers that it gave in the baseline.",
    ]


def test_a_failed_comparison_says_what_to_do() -> None:
    told = sentences(result(WORSE, worst=(worst(),)))
    assert told[2:] == [
        "flip@1 no worse by 0.03 failed: shown to be worse (100 inputs worse than in the baseline, 34 better).",
        "Look at the inputs listed and repair what made them worse. If the change is meant, accept "
        "it with --update and commit the new baseline.",
        "flip@1 no worse by 0.03: 3 inputs are left out of the tests, as noise alone changes them.",
    ]


def test_a_failed_comparison_names_its_inputs() -> None:
    names = tuple(f"q{row}" for row in range(10))
    line = "flip@1 no worse by 0.03, worse on: q0, q1, q2, q3, q4, q5, q6, q7, q8, q9"
    for worse, end in ((100, " and 90 more."), (10, ".")):
        told = sentences(result(replace(WORSE, worse=worse, inputs=names), LIMIT))
        assert told[3] == line + end
    assert told[4].startswith("Repair what made them worse.")
    # what is worse for a rule that holds or is undecided is no finding
    for outcome in ("pass", "underpowered"):
        told = sentences(result(replace(WORSE, outcome=outcome, inputs=names)))
        assert not any("worse on" in line for line in told)
    (named,) = [line for line in sentences(result(replace(WORSE, inputs=NASTY[:10]))) if "worse on" in line]
    assert named.isprintable()


def test_a_broken_limit_is_not_accepted_with_update() -> None:
    told = sentences(no_baseline(BROKEN))
    assert told[1:] == [
        "flip@1 <= 0.2 failed: above the limit (it is 24.4 %).",
        "A limit does not move with the baseline: repair the model, or change the rule.",
    ]


def test_too_few_inputs_are_told_how_many_it_takes() -> None:
    told = sentences(result(FEW, replace(FEW, rule=parse_rule("mrr@10 no worse by 0.02"), needed=900)))
    assert (
        "Measure about 900 inputs (there are 225), allow a larger margin, or take this outcome for "
        "success with --accept-underpowered." in told
    )
    # as many as needed, but the difference is as large as the margin
    told = sentences(result(replace(FEW, needed=200)))
    assert any(line.startswith("Measure more inputs, allow a larger margin") for line in told)


def test_what_makes_runs_incomparable_is_listed_and_rules_share_a_sentence() -> None:
    rules = [
        OTHER,
        replace(OTHER, rule=parse_rule("ndcg@10 no worse by 0.03")),
        replace(OTHER, rule=parse_rule("mrr@10 no worse"), reason="no outcomes of this metric"),
    ]
    told = sentences(result(*rules, differs=("setting similarity: cos now, dot then",)))
    assert told[2:] == [
        "flip@1 no worse by 0.03 and ndcg@10 no worse by 0.03 cannot be compared: not of the same, see below.",
        "mrr@10 no worse cannot be compared: no outcomes of this metric.",
        "Differs: setting similarity: cos now, dot then.",
        "If that is meant, write a new baseline with --update and commit it; otherwise measure "
        "again as the baseline was measured.",
    ]


def test_a_rule_that_holds_although_it_is_worse_says_so_and_others_are_silent() -> None:
    near = replace(
        WORSE, outcome="pass", reason="worse, but shown to be by less than the margin", p_no_worse=0.001, set_aside=1
    )
    told = sentences(result(near, LIMIT, notes=("torch differs",)))
    assert told[2:] == [
        "flip@1 no worse by 0.03 holds: worse, but shown to be by less than the margin.",
        "flip@1 no worse by 0.03: 1 input is left out of the tests, as noise alone changes it.",
        "Note: torch differs.",
    ]
    assert len(sentences(result(replace(near, p_worse_holm=0.06, set_aside=0)))) == 2


def test_sentences_of_one_rule_leave_the_others_out() -> None:
    told = sentences(result(WORSE, UNDEFINED, notes=("torch differs",)), only=UNDEFINED)
    assert told[2:] == [
        "noise_floor <= 0.05 cannot be judged: undefined: there is no noise floor.",
        "Measure what the rule needs, or leave the rule out.",
        "Note: torch differs.",
    ]


@pytest.mark.parametrize("name", NASTY)
def test_names_are_one_line_of_what_can_be_shown(name: str) -> None:
    found = shown(name)
    assert found
    assert len(found) <= 60
    assert found.isprintable()
    head, cells = worst_rows(result(WORSE, worst=(worst(name, name, name, part=name),)))
    assert all(cell.isprintable() for cell in cells[0])
    assert {title for title, cell in zip(head, cells[0], strict=True) if cell == found} >= {
        "input",
        "reference's answer",
        "candidate's answer",
    }


def test_long_names_lose_their_middle() -> None:
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abcde…hijk"
    assert shown("x" * 40 + "y" * 40) == "x" * 30 + "…" + "y" * 29
    assert shown(None) == "-"
    assert shown("\n") == "(empty)"


def test_a_direction_mark_is_shown_as_what_cannot_be_shown() -> None:
    assert clean("a\u202eb\u200bc\x07") == "a�b�c�"
    assert clean("Größe № 5, मात्रा ❤️") == "Größe № 5, मात्रा ❤️"


def test_slices_of_any_length_do_not_break_the_table() -> None:
    long = judgement(f"flip@1 [{'s' * 300}] <= 0.25")
    _, cells = rows(result(long))
    assert len(cells[0][0]) == 100
    assert cells[0][0].endswith("ss] <= 0.25")
