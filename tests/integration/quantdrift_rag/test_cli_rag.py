"""`quantdrift rag` as a user sees it: tables, JSON, Markdown, and what it refuses before a model loads."""

import json
from pathlib import Path

import pytest

from quantdrift.base.progress import Silent
from quantdrift.runs.folder import read_run
from quantdrift_rag.questions import read_questions
from support.command_line import cli
from support.rag_samples import REFERENCE, Echo, write_search, write_world

SWAPPED = [[9, 5, 4, 3, 2, 1], [9, 5, 4, 3, 2, 1], [9, 4, 5, 3, 2, 1]]


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """What an echo of the first passage said: one of three answers turns from right to wrong."""
    data = write_world(tmp_path)
    runs = [write_search(tmp_path / name, data, SWAPPED) for name in ("W4+query", "W3+query+gap")]
    questions = read_questions([read_run(run) for run in runs], answers=None, data=None, n_passages=2)
    record = questions.answered_by(Echo(), None, Silent())
    hostile = [text.replace("who swam", "who \x1b[31mswam\n::error::x") for text in record.questions]
    record.model_copy(update={"questions": hostile}).write(tmp_path / "out" / "rag.json")
    return tmp_path / "out"


def test_the_table_and_the_json_have_the_columns_of_the_paper(result: Path) -> None:
    code, out, err = cli("rag", result, "--markdown")
    assert code == 0, err
    rows = [[cell.strip("` ") for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")]
    head = ["passages of", "exact match", "token F1", "gold in context"]
    assert [cell.strip() for cell in rows[0]] == [*head, "answers changed", "right to wrong", "wrong to right"]
    by_name = {row[0]: [cell.partition(" (")[0].strip("` ") for cell in row[1:]] for row in rows[2:6]}
    assert by_name["no passages"] == ["0.0 %", "0.0 %", "-", "-", "-", "-"]
    assert by_name["full precision"] == ["66.7 %", "66.7 %", "100.0 %", "-", "-", "-"]
    assert by_name["W4+query"] == ["33.3 %", "33.3 %", "100.0 %", "1", "1", "0"]
    assert by_name["W3+query+gap"] == by_name["W4+query"]
    assert "\x1b" not in out
    assert "\n::error::" not in out
    candidate = json.loads(cli("rag", result, "--json", "--changed", "1")[1])["conditions"][2]
    assert (candidate["name"], candidate["exact_match"]["value"]) == ("W4+query", pytest.approx(1 / 3))
    assert (candidate["right_to_wrong"], candidate["wrong_to_right"], candidate["other_passages"]) == (1, 0, 1)
    assert candidate["differences"]["exact_match"]["value"] == pytest.approx(-1 / 3)
    (change,) = candidate["changes"]
    assert (change["before"], change["after"], change["kind"]) == ("bob", "ann", "right to wrong")


def test_without_a_generator_nothing_is_asked(tmp_path: Path) -> None:
    run = write_search(tmp_path / "W4", write_world(tmp_path), REFERENCE)
    code, out, err = cli("rag", run)
    assert (code, out, err.strip().count("\n")) == (2, "", 0)
    assert "expected a generator" in err
