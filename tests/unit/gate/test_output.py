"""What a judged run is told with: words and cells by hand, Markdown and JUnit read back by their readers."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from quantdrift.display import code, prose, shown
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.gate.judge import GateResult
from quantdrift.gate.output import (
    MOST_BYTES,
    beyond_reach,
    check_report,
    headline,
    junit_text,
    markdown_text,
    means_line,
    report_json,
    rows,
    sentences,
    subject,
    tell_ci,
    worst_rows,
    worst_title,
    write_report,
)
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
from support.gate_samples import ones, rules, snapshot

JUDGED = result(WORSE, worst=(worst(),))

# --- words and cells --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("judged", "line"),
    [
        (result(LIMIT), "pass: flip@1 <= 0.25 holds"),
        (result(LIMIT, replace(WORSE, outcome="pass")), "pass: all 2 rules hold"),
        (result(WORSE, LIMIT), "fail: 1 of 2 rules failed, flip@1 no worse by 0.03 (shown to be worse)"),
        (result(WORSE, LIMIT, BROKEN), "fail: 2 of 3 rules failed, flip@1 no worse by 0.03, flip@1 <= 0.2"),
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
            result(replace(OTHER, reason="no outcomes"), LIMIT),
            "incomparable: 1 of 2 rules cannot be compared, flip@1 no worse by 0.03 (no outcomes)",
        ),
        (result(UNDEFINED, WORSE), "error: 1 of 2 rules cannot be judged, noise_floor <= 0.05 (undefined: none there)"),
        (
            result(*(replace(BROKEN, rule=parse_rule(f"flip@1 <= 0.{n}")) for n in range(1, 6))),
            "fail: 5 of 5 rules failed, flip@1 <= 0.1, flip@1 <= 0.2, flip@1 <= 0.3 and 2 more",
        ),
    ],
)
def test_the_headline_is_the_verdict_and_why(judged: GateResult, line: str) -> None:
    assert headline(judged) == line


def test_what_is_accepted_says_so() -> None:
    few = result(FEW, accept_underpowered=True)
    assert headline(few).startswith("underpowered, which is accepted: 1 of 1 rule is undecided")
    assert any("--accept-underpowered" in line and "success" in line for line in sentences(few))
    assert not any(line.startswith("Measure") for line in sentences(few))
    # that too few inputs are accepted does not save what fails
    both = result(FEW, WORSE, accept_underpowered=True)
    assert headline(both).startswith("fail: 1 of 2 rules")
    assert any(line.startswith("Measure about 640 inputs (there are 225)") for line in sentences(both))


def test_the_subject_names_the_baseline_only_if_it_is_another() -> None:
    assert subject(result(LIMIT)) == "minilm@W4-rtn on cranfield (test), 1,509 inputs, against a baseline of the same"
    other = replace(IDENTITY, spec="minilm@W4-gptq")
    assert subject(result(LIMIT, baseline=other)).endswith("against a baseline of minilm@W4-gptq")
    # two finished runs have no other name for their data than its size, which is told once
    for n, told in ((1509, "1,509 inputs"), (1, "1,509 inputs, 1 input")):
        unnamed = replace(IDENTITY, spec="a vs b", data="1,509 inputs")
        assert subject(no_baseline(LIMIT, identity=unnamed, n_inputs=n)) == f"a vs b on {told}"


def test_rows_hold_rates_in_percent_and_their_differences_in_points() -> None:
    small = replace(WORSE, difference=Estimate(value=-0.0001, low=-0.0004, high=0.0, n=9))
    head, cells = rows(result(WORSE, FEW, small))
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
    assert dict(zip(head, cells[0], strict=True)) == wanted
    assert cells[1][1:4] == ["0.3912 (0.3600 to 0.4200)", "0.4000", "-0.0088 (-0.0300 to +0.0123)"]
    assert cells[1][5] == "225 (640)"  # how many it takes is told where there are too few
    assert cells[2][3] == "+0.0 pp (+0.0 to +0.0)"  # no minus before what rounds to nothing


def test_columns_that_nothing_fills_are_left_out() -> None:
    assert rows(no_baseline(LIMIT, UNDEFINED)) == (
        ["rule", "now (95 %)", "n (needed)", "outcome"],
        [["flip@1 <= 0.25", "24.4 % (22.3 to 26.6)", "1,509", "pass"], ["noise_floor <= 0.05", "-", "-", "error"]],
    )
    bare = worst(was_right=None, is_right=None, rank_after=None, lead=None, new=None, after=None)
    found = worst_rows(no_baseline(LIMIT, worst=(bare,)))
    assert found == (["input", "reference's answer", "candidate's answer"], [["q7", "d1", "-"]])
    assert worst_rows(no_baseline(LIMIT, worst=(replace(bare, part="german"),)))[0][0] == "part"
    assert worst_rows(result(LIMIT)) == ([], [])


def test_worst_rows_say_what_replaced_what() -> None:
    judged = result(WORSE, worst=(worst(), worst("q8", new=False, rank_after=None, lead=None, is_right=np.True_)))
    assert worst_title(judged) == "2 of 312 changed inputs, the worst first"
    assert worst_rows(judged) == (
        ["input", "reference's answer", "now at rank", "candidate's answer", "labels", "lead", "new"],
        [
            ["q7", "d1", "3", "d9", "right to wrong", "0.0123", "new"],
            ["q8", "d1", "-", "d9", "right to right", "-", "as before"],
        ],
    )


def test_sentences_count_what_changed() -> None:
    assert sentences(result(LIMIT)) == [
        "312 of 1,509 inputs have another first answer than the reference; 25 of them had not in the baseline.",
        "On 40 inputs the candidate answers otherwise than in the baseline.",
    ]
    assert sentences(no_baseline(LIMIT)) == ["312 of 1,509 inputs have another first answer than the reference."]
    assert sentences(result(LIMIT, n_changed=0, n_new=0, n_answers_changed=0)) == [
        "None of 1,509 inputs has another first answer than the reference.",
        "The candidate gives the first answers that it gave in the baseline.",
    ]


NAMED = replace(WORSE, inputs=tuple(f"q{row}" for row in range(10)), set_aside=0)
NEAR = replace(WORSE, outcome="pass", reason="worse, but by less than the margin", set_aside=1)


@pytest.mark.parametrize(
    ("judged", "told"),
    [
        (
            result(replace(WORSE, set_aside=0), worst=(worst(),)),
            [
                r"failed: shown to be worse \(100 inputs worse than in the baseline, 34 better\)\.",
                "Look at the inputs listed and repair .* accept it with --update",
            ],
        ),
        (result(NAMED), ["failed", "worse on: q0, q1, q2, .* and 90 more.", "Repair what made them worse"]),
        (result(replace(NAMED, worse=10)), ["failed", "worse on: .*, q9.", "Repair"]),
        (result(replace(NAMED, outcome="pass", p_worse_holm=0.06)), []),
        (no_baseline(BROKEN), ["failed: above the limit \\(it is 24.4 %\\)", "A limit does not move"]),
        (result(FEW), ["is undecided", "Measure about 640 inputs \\(there are 225\\), .*--accept-underpowered"]),
        (result(FEW, replace(FEW, needed=900)), ["undecided", "undecided", "Measure about 900 inputs"]),
        (result(replace(FEW, needed=200)), ["undecided", "Measure more inputs, allow a larger margin"]),
        (result(OTHER, differs=("setting x",)), ["cannot be compared: not", "Differs: setting x.", "--update"]),
        (result(NEAR, notes=("torch differs",)), ["holds: worse, but", "1 input is left out", "Note: torch differs."]),
        (result(UNDEFINED), ["cannot be judged: undefined", "Measure what the rule needs"]),
    ],
)
def test_sentences_say_what_rules_mean_and_what_to_do(judged: GateResult, told: list[str]) -> None:
    n = len(sentences(replace(judged, judgements=(LIMIT,), notes=(), differs=())))
    found = sentences(judged)[n:]
    assert len(found) == len(told)
    for line, wanted in zip(found, told, strict=True):
        assert re.search(wanted, line), line


def test_slices_of_any_length_do_not_break_the_table() -> None:
    cell = rows(result(judgement(f"flip@1 [{'s' * 300}] <= 0.25")))[1][0][0]
    assert len(cell) == 100
    assert cell.endswith("ss] <= 0.25")


# --- Markdown, read back with markdown-it: nothing from outside marks anything up -------------


def parsed(text: str) -> list[Token]:
    """As GitHub reads it, with HTML let through."""
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)


def words_of(token: Token) -> str:
    """What a reader sees of an inline token."""
    return "".join(
        child.content for child in token.children or () if child.type in {"text", "text_special", "code_inline"}
    )


def outside_code(tokens: list[Token]) -> str:
    """What is read outside of code, where GitHub looks for links, mentions, emoji and formulas."""
    found, inside = [], False
    for child in (child for token in tokens for child in token.children or ()):
        if child.type == "html_inline":
            inside = child.content == "<code>" or (inside and child.content != "</code>")
        elif child.type in {"text", "text_special"} and not inside:
            found.append(child.content)
    return " ".join(found)


def tables(text: str) -> list[list[list[str]]]:
    """Of every table the rows, the head first, with the cells as they are read."""
    found: list[list[list[str]]] = []
    cell = False
    for token in parsed(text):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in {"th_open", "td_open"}:
            cell = True
        elif token.type == "inline" and cell:
            found[-1][-1].append(words_of(token))
            cell = False
    return found


def html_of(text: str) -> list[str]:
    """All tags that are let through."""
    tokens = parsed(text)
    blocks = [token.content for token in tokens if token.type == "html_block"]
    inline = [child.content for token in tokens for child in token.children or () if child.type == "html_inline"]
    return re.findall(r"<[^>]*>", "".join([*blocks, *inline]))


def nasty(name: str, n: int) -> GateResult:
    """A run in which everything that comes from outside is that name."""
    return result(
        replace(WORSE, rule=replace(WORSE.rule, on=name), reason=f"shown {name} to be worse"),
        judgement("flip@1 no worse by 0.03", "incomparable", f"no {name}"),
        identity=replace(IDENTITY, spec=name, data=name),
        baseline=replace(IDENTITY, spec=f"{name} of then"),
        differs=(f"setting {name}: {name} in the baseline, {name} now", name),
        notes=(name, f"{name} differs"),
        worst=(worst(name, name, name, part=name),) * n,
    )


def test_markdown_by_hand() -> None:
    assert markdown_text(no_baseline(LIMIT)) == (
        "## quantdrift gate: pass\n\n"
        "`minilm@W4-rtn` on cranfield (test), 1,509 inputs.\n\n"
        "pass: `flip@1` <= 0.25 holds\n\n"
        "| rule | now (95 %) | n (needed) | outcome |\n"
        "|---|---|---|---|\n"
        "| `flip@1 <= 0.25` | 24.4 % (22.3 to 26.6) | 1,509 | pass |\n\n"
        "- 312 of 1,509 inputs have another first answer than the reference.\n"
    )
    accepted = markdown_text(result(FEW, accept_underpowered=True))
    assert accepted.startswith("## quantdrift gate: underpowered (accepted)\n")


@pytest.mark.parametrize("n", [5, 6])
def test_up_to_five_inputs_stand_in_the_open_and_more_are_folded(n: int) -> None:
    text = markdown_text(result(WORSE, worst=tuple(worst(f"q{row}") for row in range(n))))
    assert html_of(text) == (["<details>", "<summary>", "</summary>", "</details>"] if n > 5 else [])
    listed, inputs = tables(text)
    assert len(listed) == 2
    assert [row[0] for row in inputs] == ["input", *(f"q{row}" for row in range(n))]


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("n", [1, 6])
def test_no_name_marks_anything_up(name: str, n: int) -> None:
    text = markdown_text(nasty(name, n))
    tokens = parsed(text)
    kinds = ("heading", "paragraph", "bullet_list", "list_item", "table", "thead", "tbody", "tr", "th", "td")
    known = {f"{kind}_{end}" for kind in kinds for end in ("open", "close")} | {"inline", "html_block"}
    assert {token.type for token in tokens} <= known
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h2"]
    # of lists there is one, and nothing in it is a list
    assert sum(token.type == "bullet_list_open" for token in tokens) == 1
    inline = {child.type for token in tokens for child in token.children or ()}
    assert inline <= {"code_inline", "text", "text_special", "html_inline"}
    tags = [tag for tag in html_of(text) if tag not in {"<code>", "</code>", "<wbr>"}]
    assert tags == (["<details>", "<summary>", "</summary>", "</details>"] if n == 6 else [])
    # nothing that GitHub would make a link of stands outside of code
    plain = outside_code(tokens)
    assert not [sign for sign in ("www.", "http://", "@", "#", ":tada:", "$", "\u202e", "\x1b") if sign in plain]
    listed, inputs = tables(text)
    assert (len(listed), len(inputs)) == (3, n + 1)
    assert all(len({len(row) for row in table}) == 1 for table in (listed, inputs))
    assert [row[inputs[0].index("input")] for row in inputs[1:]] == [shown(name)] * n


def test_plain_words_of_a_sentence_stay_as_they_are() -> None:
    line = "Note: torch differs: 2.6.0+cpu in the baseline (of 1,509 inputs), don't ask; 95 % or -."
    assert prose(line).replace("`don't`", "don't") == line
    assert prose("flip@1 gold_lost@10 --update a/b") == "`flip@1` `gold_lost@10` `--update` a/b"
    # GitHub makes a link of the first, and not of the second
    assert (prose("see www."), prose("see wwwx.")) == ("see `www`.", "see wwwx.")
    # at the start of a line these would be a list, a quotation and a rule
    assert [prose(each) for each in ("1. one", "- one", ">= 3")] == ["`1`. one", "`-` one", "`>=` 3"]
    assert code("a|b@c.de") == "<code>a&#124;b&#64;<wbr>c&#46;de</code>"


def test_markdown_stays_below_the_limit_of_the_summary() -> None:
    name = "|`" * 200
    many = tuple(replace(WORSE, rule=replace(WORSE.rule, on=f"{n} {name}")) for n in range(300))
    text = markdown_text(replace(nasty(name, 5000), judgements=many, notes=(name,) * 300))
    assert MOST_BYTES * 0.9 < len(text.encode()) <= MOST_BYTES
    listed, inputs = tables(text)
    assert len(listed) == 101
    assert "And 200 more rules." in text
    assert re.search(r"- And [0-9]{3} more sentences, which the terminal shows\.\n", text)
    assert f"\nAnd {5001 - len(inputs):,} more, for which there is no room.\n" in text
    assert text.endswith("</details>\n")


# --- JUnit. Jenkins: a suite with name and counts, cases with a name and a classname, one at least;
# --- GitLab: the content of failure, error and skipped, one of them at most; names that differ


def suite_of(judged: GateResult) -> ElementTree.Element:
    """The one suite, after a look at what every reader needs."""
    root = ElementTree.fromstring(junit_text(judged).encode())
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    cases = suite.findall("testcase")
    assert len({case.attrib["name"] for case in cases}) == len(cases) > 0
    counts = {kind: sum(case.find(kind) is not None for case in cases) for kind in ("failure", "error", "skipped")}
    for element in (root, suite):
        assert element.attrib["name"] == "quantdrift gate"
        held = [int(element.attrib[name]) for name in ("tests", "failures", "errors")]
        assert held == [len(cases), counts["failure"], counts["error"]]
    assert int(suite.attrib["skipped"]) == counts["skipped"]
    for case in cases:
        assert (case.attrib["classname"], float(case.attrib["time"])) == ("quantdrift.gate", 0)
        assert len(case) == 1
        assert (case[0].text or "").strip()
    return suite


def outcomes_of(judged: GateResult) -> list[tuple[str, str | None]]:
    return [(case[0].tag, case[0].attrib.get("type")) for case in suite_of(judged).findall("testcase")]


def test_a_case_for_every_rule() -> None:
    other = replace(OTHER, rule=replace(OTHER.rule, number=0.05))
    judged = result(WORSE, LIMIT, FEW, other, UNDEFINED)
    assert outcomes_of(judged) == [
        ("failure", "fail"),
        ("system-out", None),
        ("failure", "underpowered"),
        ("error", "incomparable"),
        ("error", "error"),
    ]
    first = suite_of(judged).findall("testcase")[0]
    assert first.attrib["name"] == "minilm@W4-rtn on cranfield (test): flip@1 no worse by 0.03"
    assert outcomes_of(result(WORSE, FEW, accept_underpowered=True)) == [
        ("failure", "fail"),
        ("skipped", "underpowered"),
    ]


def test_properties_say_who_was_judged() -> None:
    suite = suite_of(result(WORSE, baseline=replace(IDENTITY, spec="minilm@W4-gptq")))
    assert {each.attrib["name"]: each.attrib["value"] for each in suite.iter("property")} == {
        "spec": "minilm@W4-rtn",
        "data": "cranfield (test)",
        "baseline": "minilm@W4-gptq",
        "n_inputs": "1509",
        "alpha": "0.05",
        "verdict": "fail",
    }


def test_the_content_says_everything_as_some_readers_show_nothing_else() -> None:
    judged = result(WORSE, LIMIT, UNDEFINED, worst=(worst(),), notes=("torch differs",))
    failure, passed, error = (case[0] for case in suite_of(judged).findall("testcase"))
    assert failure.attrib["message"] == "shown to be worse"
    text = failure.text or ""
    assert text.startswith("shown to be worse\n\nrule: flip@1 no worse by 0.03\nnow (95 %): 24.4 % (22.3 to 26.6)\n")
    assert "\n\n" + "\n".join(sentences(judged, only=WORSE)) + "\n\n" in text
    assert text.endswith(
        "1 of 312 changed inputs, the worst first:\n"
        "input q7; reference's answer d1; now at rank 3; candidate's answer d9; labels right to wrong; lead 0.0123; "
        "new new"
    )
    assert passed.text == "rule: flip@1 <= 0.25\nnow (95 %): 24.4 % (22.3 to 26.6)\nn (needed): 1,509\noutcome: pass"
    # numbers that this rule has not are not listed, and nor are inputs of an error
    assert "\n\nrule: noise_floor <= 0.05\noutcome: error\n\n" in (error.text or "")
    assert "q7" not in (error.text or "")


# --- files, and the places of a CI ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gate.md", markdown_text(JUDGED)),
        ("gate.markdown", markdown_text(JUDGED)),
        ("GATE.XML", junit_text(JUDGED)),
        ("new/folder/gate.json", report_json(JUDGED)),
    ],
)
def test_the_suffix_tells_the_format(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    for _ in range(2):  # an earlier report is replaced
        write_report(JUDGED, path)
        assert path.read_text(encoding="utf-8") == text
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["gate", "gate.txt", "gate.html", ".md"])
def test_another_suffix_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(QuantDriftError, match=r"\.md or \.markdown \(Markdown\), \.xml \(JUnit\)"):
        write_report(JUDGED, tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("README.md", b"# A project\n\n## quantdrift gate: pass\n"),
        ("pom.xml", b"<project/>"),
        ("drift-baseline.json", b'{"format": "quantdrift-baseline", "rules": 1}'),
        ("list.json", b'["verdict", "rules"]'),
        ("broken.json", b"{"),
        ("bytes.json", b"\xff\xfe"),
        ("folder.md", None),
    ],
)
def test_what_is_no_report_is_not_replaced(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(RunError, match="not a report of the gate"):
        write_report(JUDGED, path)
    assert content is None or path.read_bytes() == content


def test_a_place_is_checked_without_writing(tmp_path: Path) -> None:
    check_report(tmp_path / "gate.md")
    (tmp_path / "gate.xml").write_bytes(b"")
    check_report(tmp_path / "gate.xml")
    with pytest.raises(RunError, match="the report cannot be written to"):
        check_report(tmp_path / "gate.xml" / "gate.md")


def test_json_is_the_result_in_ascii() -> None:
    judged = replace(JUDGED, worst=(worst("Größe \ud800"),))
    text = report_json(judged)
    assert text.isascii()
    assert json.loads(text) == json.loads(json.dumps(judged.to_json()))


@pytest.mark.parametrize(
    ("rule", "code", "accepted"), [(LIMIT, 0, 0), (WORSE, 1, 1), (UNDEFINED, 2, 2), (OTHER, 3, 3), (FEW, 4, 0)]
)
def test_only_too_few_inputs_can_be_accepted(rule: Any, code: int, accepted: int) -> None:
    judged = result(rule)
    assert judged.exit_code == code
    assert json.loads(report_json(replace(judged, accept_underpowered=True)))["exit_code"] == accepted


def test_the_ci_gets_the_summary_and_the_verdict_after_what_is_there(tmp_path: Path) -> None:
    summary, output = tmp_path / "summary", tmp_path / "output"
    summary.write_text("# Before\n", encoding="utf-8")
    output.write_text("one=1", encoding="utf-8")  # without the end of its line
    environ = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(output)}
    assert tell_ci(JUDGED, environ) == []
    assert summary.read_text(encoding="utf-8") == "# Before\n" + markdown_text(JUDGED)
    assert tell_ci(result(FEW, accept_underpowered=True), {"GITHUB_OUTPUT": str(output)}) == []
    assert tell_ci("expected a baseline; x_y.json does not exist\n\n<b>", environ) == []
    told = ("fail", 1), ("underpowered", 0), ("error", 2)
    lines = "".join(f"verdict={verdict}\nexit-code={code}\n" for verdict, code in told)
    assert output.read_text(encoding="utf-8") == f"one=1\n{lines}"
    end = "\n## quantdrift gate: error\n\nexpected a baseline; `x_y.json` does not exist\n\n`<b>`\n"
    assert summary.read_text(encoding="utf-8").endswith(end)
    assert tell_ci(JUDGED, {"GITHUB_STEP_SUMMARY": "", "CI": "true"}) == []


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("missing/summary", "No such file or directory"),
        (".", "Is a directory"),
        ("pipe", "expected a file"),
        ("/dev/full", "expected a file"),
        ("/dev/zero", "expected a file"),
    ],
)
def test_a_place_that_cannot_be_written_is_a_note_and_the_other_is_told(tmp_path: Path, place: str, told: str) -> None:
    path = tmp_path / place  # an absolute one stays itself
    if place == "pipe":
        os.mkfifo(path)  # nobody reads or writes it: whoever opens it would wait
    for variable, other in (("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"), ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")):
        (note,) = tell_ci(JUDGED, {variable: str(path), other: str(tmp_path / other)})
        assert f"({variable}): {told}" in note
        assert "fail" in (tmp_path / other).read_text(encoding="utf-8")


def test_a_summary_is_not_filled_beyond_what_is_shown(tmp_path: Path) -> None:
    summary = tmp_path / "summary"
    room = 1024 * 1024 - len(markdown_text(JUDGED).encode())
    summary.write_bytes(b"x" * (room - 1) + b"\n")
    environ = {"GITHUB_STEP_SUMMARY": str(summary)}
    assert tell_ci(JUDGED, environ) == []
    (note,) = tell_ci(JUDGED, environ)
    assert "it would be longer than 1,048,576 bytes" in note
    assert summary.stat().st_size == 1024 * 1024


# --- what is told of a baseline when it is written --------------------------------------------


def test_means_are_of_the_inputs_that_have_a_value() -> None:
    values = {"flip@1": ones(4, [0]), "ndcg@10": np.array([0.5, 0.25, np.nan, 1.0]), "gold_lost@1": np.full(4, np.nan)}
    assert means_line(snapshot(values)) == "flip@1 25.0 %, ndcg@10 0.5833"


def test_a_rule_is_beyond_reach_of_too_few_inputs() -> None:
    """0.97^99 is below 0.05, and 0.95^90 below 0.01."""
    lost = ones(120, [])
    lost[50:] = np.nan
    held = snapshot({"flip@1": ones(120, []), "gold_lost@10": lost, "served_relevance": np.ones(120)})
    asked = rules(
        "flip@1 no worse by 0.03",
        "gold_lost@10 no worse by 0.05",
        "flip@1 <= 0.1",
        "flip@1 no worse",
        "flip@1 [german] no worse by 0.03",
        "ndcg@10 no worse by 0.03",  # the baseline does not hold it
        "served_relevance no worse by 0.1",  # it has no greatest value
    )
    (line,) = beyond_reach(asked[:1], held.part(range(98)), alpha=0.05)
    assert "rests on 98 inputs" in line
    assert "takes 99 to show it" in line
    (line,) = beyond_reach(asked[1:], held, alpha=0.01)
    assert "rests on 50 inputs" in line
    assert "takes 90 to show it" in line
    assert beyond_reach(asked[:1], held.part(range(99)), alpha=0.05) == []
