"""What a judged run is told with: words and cells by hand, Markdown and JUnit read back by their readers."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from markdown_it import MarkdownIt

from quantdrift.gate import output
from quantdrift.gate.result import GateResult
from quantdrift.statistics.estimates import Estimate
from support.gate_result_samples import BROKEN, FEW, LIMIT, NASTY, OTHER, UNDEFINED, WORSE, WORST, nasty, result


@pytest.mark.parametrize(
    ("judged", "line"),
    [
        (result(LIMIT), "pass: 1 of 1 rules, flip@1 <= 0.25 (within the limit)"),
        (result(WORSE, LIMIT), "fail: 1 of 2 rules, flip@1 no worse by 0.03 (shown to be worse)"),
        (result(WORSE, LIMIT, BROKEN), "fail: 2 of 3 rules, flip@1 no worse by 0.03, flip@1 <= 0.2"),
        (
            result(OTHER, differs=("data: cranfield (digest 1 in the baseline, 2 now)", "inputs")),
            "incomparable: the run and the baseline differ in data: cranfield (digest 1 in the baseline, 2 now)",
        ),
        (result(UNDEFINED, WORSE), "error: 1 of 2 rules, noise_floor <= 0.05 (undefined: none there)"),
    ],
)
def test_the_headline_is_the_verdict_and_why(judged: GateResult, line: str) -> None:
    assert output.headline(judged) == line


def test_rows_hold_rates_in_percent_and_their_differences_in_points() -> None:
    small = replace(WORSE, difference=Estimate(value=-0.0001, low=-0.0004, high=0.0, n=9))
    grid = output.rules_table(result(WORSE, FEW, small))
    cells = grid.rows
    wanted = {
        "rule": "flip@1 no worse by 0.03",
        "now (95 %)": "24.4 % (22.3 to 26.6)",
        "baseline": "20.0 %",
        "difference (95 %)": "+4.4 pp (+2.1 to +6.8)",
        "worse / better": "100 / 34",
        "n (needed)": "1,509",
        "p worse (Holm)": "<0.001",
        "p no worse": "0.900",
        "outcome": "fail",
    }
    assert dict(zip(grid.head, cells[0], strict=True)) == wanted
    assert cells[1][1:4] == ["0.3912 (0.3600 to 0.4200)", "0.4000", "-0.0088 (-0.0300 to +0.0123)"]
    assert cells[1][5] == "225 (640)"  # how many it takes is told where there are too few
    assert cells[2][3] == "+0.0 pp (+0.0 to +0.0)"  # no minus before what rounds to nothing


def test_worst_rows_say_what_replaced_what() -> None:
    other = replace(WORST, input_id="q8", new=False, rank_after=None, gap=None, is_right=np.True_)
    judged = result(WORSE, worst=(WORST, other))
    grid = output.worst_table(judged)
    assert grid.title == "2 of 312 changed inputs, the worst first"
    assert (grid.head, grid.rows) == (
        ["input", "reference's answer", "now at rank", "candidate's answer", "labels", "gap", "new"],
        [
            ["q7", "d1", "3", "d9", "right to wrong", "0.0123", "new"],
            ["q8", "d1", "-", "d9", "right to right", "-", "as before"],
        ],
    )


def test_markdown_by_hand() -> None:
    assert output.markdown_text(result(LIMIT)) == (
        "## quantdrift gate: pass\n\n"
        "`minilm@W4-rtn` on cranfield (test), 1,509 inputs.\n\n"
        "pass: 1 of 1 rules, `flip@1` <= 0.25 (within the limit)\n\n"
        "| rule | now (95 %) | n | outcome |\n"
        "|---|---|---|---|\n"
        "| `flip@1 <= 0.25` | 24.4 % (22.3 to 26.6) | 1,509 | pass |\n\n"
        "- 312 of 1,509 inputs have another top-1 than the reference.\n"
    )


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("n", [1, 6])
def test_no_name_marks_anything_up(name: str, n: int) -> None:
    """As GitHub reads it, with HTML let through; that text is read as it is is a law."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table"]).parse(output.markdown_text(nasty(name, n)))
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h2"]
    assert [token.type for token in tokens].count("bullet_list_open") == 1
    assert [token.type for token in tokens].count("tr_open") == 3 + n + 1
    plain, tags, inside = "", "".join(token.content for token in tokens if token.type == "html_block"), False
    for child in (child for token in tokens for child in token.children or ()):
        assert child.type in {"code_inline", "text", "text_special", "html_inline"}
        if child.type == "html_inline":
            inside = child.content == "<code>" or (inside and child.content != "</code>")
            tags += child.content
        elif child.type != "code_inline" and not inside:
            plain += f"{child.content} "
    assert set(re.findall(r"<[^>]*>", tags)) - {"<code>", "</code>", "<wbr>"} == (
        {"<details>", "<summary>", "</summary>", "</details>"} if n == 6 else set()
    )
    # nothing that GitHub would make a link of stands outside of code
    assert not [sign for sign in ("www.", "http://", "@", "#", ":tada:", "$", "\u202e", "\x1b") if sign in plain]


def test_markdown_stays_below_the_limit_of_the_summary() -> None:
    name = "|`" * 200
    many = tuple(replace(WORSE, rule=replace(WORSE.rule, on=f"{n} {name}")) for n in range(101))
    text = output.markdown_text(replace(nasty(name, 101), rules=many, notes=(name,) * 300))
    assert len(text.encode()) < 1024 * 1024
    assert sum(line.startswith("| ") for line in text.splitlines()) == 202


def test_a_case_for_every_rule() -> None:
    other = replace(OTHER, rule=replace(OTHER.rule, number=0.05))
    root = ElementTree.fromstring(output.junit_text(result(WORSE, LIMIT, FEW, other, UNDEFINED)).encode())
    (suite,) = root
    for element in (root, suite):
        assert [element.attrib[name] for name in ("tests", "failures", "errors")] == ["5", "2", "2"]
    cases = suite.findall("testcase")
    assert [(case[0].tag, case[0].attrib.get("type")) for case in cases] == [
        ("failure", "fail"),
        ("system-out", None),
        ("failure", "underpowered"),
        ("error", "incomparable"),
        ("error", "error"),
    ]
    assert all((case[0].text or "").strip() for case in cases)
    assert cases[0].attrib["name"] == "minilm@W4-rtn on cranfield (test): flip@1 no worse by 0.03"


@pytest.mark.parametrize(
    ("rule", "code", "accepted"), [(LIMIT, 0, 0), (WORSE, 1, 1), (UNDEFINED, 2, 2), (OTHER, 3, 3), (FEW, 4, 0)]
)
def test_only_too_few_inputs_can_be_accepted(rule: Any, code: int, accepted: int) -> None:
    judged = result(rule)
    assert judged.exit_code == code
    assert json.loads(output.report_json(replace(judged, accept_underpowered=True)))["exit_code"] == accepted


def test_the_ci_gets_summary_and_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, told = tmp_path / "summary", tmp_path / "output"
    summary.write_text("# Before\n", encoding="utf-8")
    told.write_text("one=1\n", encoding="utf-8")
    environ = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(told)}
    output.tell_ci(environ, verdict="fail", code=1, summary="## Now\n")
    assert summary.read_text(encoding="utf-8") == "# Before\n## Now\n"
    assert told.read_text(encoding="utf-8") == "one=1\nverdict=fail\nexit-code=1\n"
    output.tell_ci({"GITHUB_STEP_SUMMARY": "", "CI": "true"}, verdict="pass", code=0, summary="")
    # a place that cannot be written is a note, and the other is told
    output.tell_ci({**environ, "GITHUB_STEP_SUMMARY": str(tmp_path)}, verdict="pass", code=0, summary="")
    assert "(GITHUB_STEP_SUMMARY): Is a directory" in capsys.readouterr().err
    assert told.read_text(encoding="utf-8").endswith("verdict=pass\nexit-code=0\n")
