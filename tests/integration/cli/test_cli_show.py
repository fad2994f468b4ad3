"""`quantdrift show` as a user types it: the changed inputs of small runs, with their texts."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.asking.opening import describe_data
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.evidence.record import Judgements
from quantdrift.finished.rankings import evidence_of_rankings
from quantdrift.measuring.flow import assemble
from quantdrift.runs.folder import Run, write_run
from quantdrift.scoring.streamed import score_matrix
from quantdrift.show.run import as_text, run_output
from support.beir_folder import write_beir_folder
from support.command_line import cli

QUERIES = {
    "q1": "loses its relevant answer, which led by 0.1",
    "q2": '=HYPERLINK("http://evil") loses one that led by 0.3',
    "q3": "gains one",
    "q4": "one wrong answer\ngives way to another \x1b[31m",
    "q5": "keeps its answer",
}
DOCUMENTS = {"a": "text of a", "b": "+text of b", "c": "text of c", "-d": "text of d"}
QRELS = {"q1": "a", "q2": "a", "q3": "b", "q4": "c", "q5": "a"}
A, B, D = [0.9, 0.8, 0.1, 0.0], [0.9, 0.7, 0.1, 0.0], [0.9, 0.5, 0.1, 0.4]
REFERENCE = [A, [0.9, 0.6, 0.1, 0.0], B, D, D]
CANDIDATE = [[0.8, 0.9, 0.1, 0.0], [0.6, 0.9, 0.1, 0.0], [0.7, 0.9, 0.1, 0.0], [0.5, 0.4, 0.1, 0.9], D]


def show(*words: object) -> tuple[int, str, str]:
    return cli("show", *words)


def changed(*words: object) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(show(*words, "--json")[1])["changed"]
    return result


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_beir_folder(tmp_path / "data", QUERIES, DOCUMENTS, {query: [item] for query, item in QRELS.items()})


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Run:
    """A run on that folder."""
    dataset = read_beir_folder(data)
    state = score_matrix(np.array(REFERENCE), np.array(CANDIDATE))
    evidence = assemble(state, input_ids=dataset.query_ids, item_ids=dataset.document_ids, qrels=dataset.qrels)
    record = {"spec": "minilm@W4-g128-rtn", "data": describe_data(dataset)}
    return write_run(tmp_path / "run", evidence=evidence, record=record)


def test_harmful_changes_come_first_and_the_largest_lead_among_them(run: Run) -> None:
    code, out, err = show(run.path, "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    kinds = [("q2", "harmful"), ("q1", "harmful"), ("q4", "neutral"), ("q3", "beneficial")]
    assert [(change["input_id"], change["kind"]) for change in result["changed"]] == kinds
    assert result["kinds"] == {"harmful": 2, "neutral": 1, "beneficial": 1}
    first = result["changed"][0]
    assert (first["before"], first["after"], first["was_right"], first["is_right"]) == ("a", "b", True, False)
    # 0.9 to 0.6 with a gap of 0.3, and scores that move by at most 0.3
    assert (first["gap"], first["separation"]) == (pytest.approx(0.3), pytest.approx(0.3 / (2 * 0.3)))
    assert (first["score_before"], first["score_after"]) == pytest.approx((0.9, 0.9))
    texts = (first["text"], first["text_before"], first["text_after"])
    assert texts == (QUERIES["q2"], DOCUMENTS["a"], DOCUMENTS["b"])


def test_texts_are_of_where_the_data_were_as_long_as_they_are_the_same(run: Run, data: Path) -> None:
    assert "text of d" in show(run.path)[1]
    moved = data.rename(data.with_name("moved"))
    assert next(line for line in run_output(run).next if "changed input" in line).startswith(
        f"quantdrift show {run.path} --data FOLDER   # "
    )
    out = show(run.path)[1]
    assert ("--data FOLDER" in out, "text of d" in out) == (True, False)
    assert "text of d" in show(run.path, "--data", moved)[1]
    with (moved / "corpus.jsonl").open("a") as file:
        file.write('\n{"_id": "e", "text": "one more"}')
    code, _, err = show(run.path, "--data", moved)  # asked for, it is refused
    assert (code, "digest" in err) == (2, True)
    moved.rename(data)
    out = show(run.path)[1]
    assert ("has changed since the run" in out, "text of d" in out) == (True, False)
    assert "has changed since the run" in as_text(run_output(run))


def test_kinds_and_how_many(run: Run) -> None:
    def ids(*options: object) -> list[str]:
        return [change["input_id"] for change in changed(run.path, *options)]

    assert (ids("--kind", "beneficial"), ids("--kind", "harmful", "-n", 1)) == (["q3"], ["q2"])
    assert len(ids("-n", 1, "--all")) == 4
    assert "The worst 1 of 4 changed inputs" in show(run.path, "-n", 1)[1]
    assert show(run.path, "--kind", "bad")[0] == 2


def test_what_left_the_first_two(tmp_path: Path) -> None:
    before, after = ({"q": dict(zip("abcd", row, strict=True))} for row in ((0.9, 0.8, 0.5, 0.1), (0.9, 0.4, 0.6, 0.1)))
    evidence = evidence_of_rankings(before, after, qrels={"q": {"b": 1, "a": 1}}, complete=True, depth=3)
    path = write_run(tmp_path / "two", evidence=evidence, record={"spec": "m@W4", "data": {"name": "x"}}).path
    assert changed(path) == []
    (change,) = changed(path, "-k", 2)
    assert (change["kind"], change["before"], change["after"]) == ("harmful", "b", "c")
    assert (change["rank_before"], change["rank_after"], change["gap"]) == (3, 3, pytest.approx(0.3))
    code, _, err = show(path, "-k", 4)
    assert (code, "3 ranks" in err) == (2, True)


def test_without_a_label_there_is_no_kind(run: Run, tmp_path: Path) -> None:
    evidence = run.evidence()
    some = Judgements.from_qrels({"q1": {"a": 1}}, [*QUERIES], [str(n) for n in evidence.item_ids])
    for name, judgements, kinds in (("bare", None, {None}), ("some", some, {"harmful", None})):
        path = write_run(tmp_path / name, evidence=replace(evidence, judgements=judgements), record=run.record).path
        assert {change["kind"] for change in changed(path)} == kinds
    assert show(tmp_path / "bare", "--kind", "harmful")[0] == 2


def test_csv_holds_no_formula_and_is_quoted(run: Run, tmp_path: Path) -> None:
    assert show(run.path, "-n", "1", "-o", tmp_path / "one.csv")[0] == 0
    assert len((tmp_path / "one.csv").read_text().splitlines()) == 2  # the head, and one
    assert show(run.path, "-o", tmp_path / "changed.csv")[0] == 0
    with (tmp_path / "changed.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["input_id"]: row for row in csv.DictReader(file)}
    assert len(rows) == 4  # all of them
    assert rows["q2"]["text"] == "'" + QUERIES["q2"]
    assert (rows["q1"]["text_after"], rows["q4"]["after"]) == ("'+text of b", "'-d")
    assert (float(rows["q1"]["score_before"]), rows["q1"]["was_right"]) == (pytest.approx(0.9), "true")
    cells = [cell for row in rows.values() for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@")) or "\n" in cell or "\x1b" in cell]
