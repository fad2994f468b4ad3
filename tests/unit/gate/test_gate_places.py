"""Where a judged run is written: files by their suffix, and the files that a CI names."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from quantdrift.errors import QuantDriftError, RunError
from quantdrift.gate.output import (
    check_report,
    exit_code,
    junit_text,
    markdown_text,
    report_json,
    tell_ci,
    tell_ci_of_error,
    write_report,
)
from support.gate_result_samples import FEW, LIMIT, OTHER, UNDEFINED, WORSE, result, worst

JUDGED = result(WORSE, worst=(worst(),))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gate.md", markdown_text(JUDGED)),
        ("gate.markdown", markdown_text(JUDGED)),
        ("gate.xml", junit_text(JUDGED)),
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
        ("README.md", "# A project\n\n## quantdrift gate: pass\n"),
        ("pom.xml", "<project/>"),
        ("drift-baseline.json", '{"format": "quantdrift-baseline", "rules": 1}'),
        ("list.json", '["verdict", "rules"]'),
        ("broken.json", "{"),
    ],
)
def test_what_is_no_report_is_not_replaced(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match="not a report of the gate"):
        write_report(JUDGED, path)
    assert path.read_text(encoding="utf-8") == content


def test_a_place_is_checked_without_writing(tmp_path: Path) -> None:
    check_report(tmp_path / "gate.md")
    (tmp_path / "gate.md").mkdir()
    with pytest.raises(RunError, match="not a report of the gate"):
        check_report(tmp_path / "gate.md")
    (tmp_path / "gate.xml").write_bytes(b"")
    check_report(tmp_path / "gate.xml")
    (tmp_path / "gate.json").write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match="not a report of the gate"):
        check_report(tmp_path / "gate.json")


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(RunError, match="the report cannot be written to"):
        write_report(JUDGED, tmp_path / "file" / "gate.md")


def test_reports_know_what_is_accepted(tmp_path: Path) -> None:
    few = result(FEW)
    for name in ("gate.md", "gate.xml", "gate.json"):
        write_report(few, tmp_path / name, accept_underpowered=True)
    assert "underpowered (accepted)" in (tmp_path / "gate.md").read_text(encoding="utf-8")
    root = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert root.attrib["failures"] == "0"
    content = json.loads((tmp_path / "gate.json").read_text(encoding="utf-8"))
    assert (content["verdict"], content["exit_code"]) == ("underpowered", 0)


def test_json_is_the_result_in_ascii() -> None:
    judged = replace(JUDGED, worst=(worst("Größe \ud800"),))
    text = report_json(judged)
    assert text.isascii()
    assert text.endswith("}\n")
    assert json.loads(text) == json.loads(json.dumps(judged.to_json()))


@pytest.mark.parametrize(
    ("rule", "code", "accepted"), [(LIMIT, 0, 0), (WORSE, 1, 1), (UNDEFINED, 2, 2), (OTHER, 3, 3), (FEW, 4, 0)]
)
def test_only_too_few_inputs_can_be_accepted(rule: object, code: int, accepted: int) -> None:
    judged = result(rule)  # type: ignore[arg-type] # a judgement
    assert exit_code(judged, accept_underpowered=False) == code
    assert exit_code(judged, accept_underpowered=True) == accepted


def test_nothing_is_told_where_there_is_no_ci(tmp_path: Path) -> None:
    assert tell_ci(JUDGED, {}) == []
    assert tell_ci(JUDGED, {"GITHUB_STEP_SUMMARY": "", "GITHUB_OUTPUT": ""}) == []
    assert tell_ci_of_error("wrong", {"CI": "true"}) == []


def test_the_ci_gets_the_summary_and_the_verdict_after_what_is_there(tmp_path: Path) -> None:
    summary, output = tmp_path / "summary", tmp_path / "output"
    summary.write_text("# Before\n", encoding="utf-8")
    output.write_text("one=1", encoding="utf-8")  # without the end of its line
    environ = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(output)}
    assert tell_ci(JUDGED, environ) == []
    assert summary.read_text(encoding="utf-8") == "# Before\n" + markdown_text(JUDGED)
    assert output.read_text(encoding="utf-8") == "one=1\nverdict=fail\nexit-code=1\n"


def test_each_place_is_told_by_itself(tmp_path: Path) -> None:
    output = tmp_path / "output"
    assert tell_ci(result(FEW), {"GITHUB_OUTPUT": str(output)}, accept_underpowered=True) == []
    assert output.read_bytes() == b"verdict=underpowered\nexit-code=0\n"
    assert tell_ci(result(FEW), {"GITHUB_OUTPUT": str(output)}) == []
    assert output.read_bytes().endswith(b"\nverdict=underpowered\nexit-code=4\n")
    assert list(tmp_path.iterdir()) == [output]


def test_a_place_that_cannot_be_written_is_a_note_and_the_other_is_told(tmp_path: Path) -> None:
    output = tmp_path / "output"
    environ = {"GITHUB_STEP_SUMMARY": str(tmp_path / "missing" / "summary"), "GITHUB_OUTPUT": str(output)}
    (note,) = tell_ci(JUDGED, environ)
    assert note.startswith("the summary of the CI was not written to ")
    assert note.endswith("(GITHUB_STEP_SUMMARY): No such file or directory")
    assert output.read_text(encoding="utf-8") == "verdict=fail\nexit-code=1\n"
    (note,) = tell_ci(JUDGED, {"GITHUB_OUTPUT": str(tmp_path)})
    assert "(GITHUB_OUTPUT): Is a directory" in note


@pytest.mark.parametrize("place", ["pipe", "/dev/full", "/dev/null", "/dev/zero"])
def test_a_place_that_is_no_file_is_refused_at_once(tmp_path: Path, place: str) -> None:
    path = tmp_path / place  # an absolute one stays itself
    if place == "pipe":
        os.mkfifo(path)  # nobody reads or writes it: whoever opens it would wait
    elif not path.exists():
        pytest.skip("no such device")
    for variable in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        (note,) = tell_ci(JUDGED, {variable: str(path)})
        assert f"{path} ({variable}): expected a file" in note


def test_a_summary_is_not_filled_beyond_what_is_shown(tmp_path: Path) -> None:
    summary = tmp_path / "summary"
    room = 1024 * 1024 - len(markdown_text(JUDGED).encode())
    summary.write_bytes(b"x" * (room - 1) + b"\n")
    environ = {"GITHUB_STEP_SUMMARY": str(summary)}
    assert tell_ci(JUDGED, environ) == []
    assert summary.stat().st_size == 1024 * 1024
    (note,) = tell_ci(JUDGED, environ)
    assert "it would be longer than 1,048,576 bytes" in note
    assert summary.stat().st_size == 1024 * 1024


def test_an_error_is_told_too(tmp_path: Path) -> None:
    summary, output = tmp_path / "summary", tmp_path / "output"
    environ = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(output)}
    assert tell_ci_of_error("expected a baseline; x_y.json does not exist", environ) == []
    assert summary.read_text(encoding="utf-8") == (
        "## quantdrift gate: error\n\nexpected a baseline; `x_y.json` does not exist\n"
    )
    assert output.read_text(encoding="utf-8") == "verdict=error\nexit-code=2\n"
