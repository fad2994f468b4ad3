"""`last` in place of a run folder, and `--limit` for a quick try."""

import json
import os
from pathlib import Path

import pytest

from quantdrift.asking.opening import describe_data
from quantdrift.base.paths import RUNS
from quantdrift.data.labelled import limited
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.finished.texts import read_texts
from quantdrift.study.plan import DataEntry
from quantdrift.study.sources import Data
from support.beir_folder import numbered, write_beir_folder
from support.command_line import cli
from support.comparison_samples import run_of
from support.small_evidence import FOUR


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, seconds: int, spec: str) -> None:
    """A run that was written at a time."""
    place = run_of(RUNS / name, FOUR, spec=spec).path
    os.utime(place / "run.json", (seconds, seconds))


@pytest.mark.parametrize(
    "words", [("show", "last"), ("metrics", "last"), ("compare", "last", "last"), ("gate", "last", "-r", "flip@1 <= 1")]
)
def test_last_is_the_run_that_was_written_last(words: tuple[str, ...]) -> None:
    write("b", 200, "minilm@W4-g128-rtn")
    write("study/cells/z", 300, "minilm@W2-g128-rtn")
    write("a", 100, "minilm@W3-g128-rtn")
    code, out, err = cli(*words)
    assert code == 0, err
    assert "W2-g128-rtn" in out
    assert "W4-g128-rtn" not in out
    assert f"last is {RUNS / 'study' / 'cells' / 'z'}" in err


def test_last_without_a_run_is_refused_and_a_folder_of_that_name_wins() -> None:
    code, _, err = cli("show", "last")
    assert (code, "there is none here" in err) == (2, True)
    run_of(Path("last"), FOUR, spec="minilm@W8-g128-rtn")
    code, out, err = cli("show", "last")
    assert (code, err) == (0, "")
    assert "W8-g128-rtn" in out


@pytest.mark.parametrize("words", [("show",), ("report",), ("metrics",), ("run",), ("compare",), ("study", "status")])
def test_what_is_missing_is_one_line(words: tuple[str, ...]) -> None:
    code, out, err = cli(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--help" in err


@pytest.mark.parametrize("command", ["show", "report"])
def test_a_folder_of_runs_is_refused_with_the_newest(command: str) -> None:
    write("b", 200, "minilm@W4-g128-rtn")
    write("study/cells/z", 300, "minilm@W2-g128-rtn")
    code, _, err = cli(command, RUNS)
    assert (code, err.count("\n")) == (2, 1)
    assert f"holds 2, and the newest is {RUNS / 'study' / 'cells' / 'z'}" in err


def test_a_run_in_place_of_a_spec_is_refused_with_its_spec() -> None:
    write("minilm@W4_on_faq", 200, "minilm@W4-g128-rtn")
    code, _, err = cli("repair", RUNS / "minilm@W4_on_faq")
    assert (code, err.count("\n")) == (2, 1)
    assert "quantdrift repair minilm@W4-g128-rtn" in err


@pytest.mark.parametrize(("text", "code"), [("5%", 0), ("5 %", 0), ("0.05", 0), ("5", 2), ("a few", 2)])
def test_a_level_may_be_a_percentage(text: str, code: int) -> None:
    run_of(Path("a"), FOUR)
    run_of(Path("b"), FOUR)
    ended, out, err = cli("compare", "a", "b", "--alpha", text, "--json")
    assert ended == code, err
    assert code or json.loads(out)["alpha"] == 0.05


def folder(path: Path) -> Path:
    queries = numbered("q", [f"query {row}" for row in range(10)])
    documents = numbered("d", [f"document {row}" for row in range(4)])
    return write_beir_folder(path / "data", queries, documents, {name: ["d0"] for name in queries})


def test_the_first_queries_are_other_data_and_say_so(tmp_path: Path) -> None:
    whole = Data().of(DataEntry(folder=str(folder(tmp_path))))
    assert isinstance(whole, RetrievalDataset)
    part = limited(whole, 3)
    assert isinstance(part, RetrievalDataset)
    assert (part.query_ids, part.document_ids) == (whole.query_ids[:3], whole.document_ids)
    assert set(part.qrels) == set(whole.query_ids[:3])
    assert part.fingerprint != whole.fingerprint
    told = describe_data(part)
    assert told["limit"] == {"n": 3, "of": 10, "fingerprint": whole.fingerprint}
    assert told["warnings"][0] == "a quick try: only the first 3 of 10 inputs"
    for n in (10, 11):
        assert limited(whole, n) is whole
    assert "limit" not in describe_data(whole)


def test_a_study_of_first_inputs_has_cells_of_its_own(tmp_path: Path) -> None:
    place = str(folder(tmp_path))
    few, whole = DataEntry(folder=place, limit=3), DataEntry(folder=place)
    assert (few.called, whole.called) == ("data-first3", "data")
    data = Data()
    assert data.of(few) == limited(data.of(whole), 3)
    assert data.known(few).fingerprint != data.known(whole).fingerprint


def test_a_quick_try_finds_its_texts_and_is_no_baseline(tmp_path: Path) -> None:
    part = limited(Data().of(DataEntry(folder=str(folder(tmp_path)))), 3)
    run = run_of(tmp_path / "run", FOUR, data=describe_data(part))
    assert read_texts(run).inputs["q0"] == "query 0"
    code, _, err = cli("gate", run.path, "--update")
    assert code == 2
    assert "a quick try on the first 3 of 10" in err
    assert not Path("drift-baseline.json").exists()
    code, out, _ = cli("report", run.path, "--md")
    assert code == 0
    assert "only the first 3 of 10 inputs" in out
    assert "quantdrift gate" not in out  # which would refuse it


@pytest.mark.parametrize("limit", [{"n": "3"}, {"n": -1}, [3], "3"])
def test_a_limit_that_is_none_is_refused(limit: object, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", FOUR)
    record = json.loads((run.path / "run.json").read_text())
    record["data"]["limit"] = limit
    (run.path / "run.json").write_text(json.dumps(record))
    code, _, err = cli("show", run.path)
    assert (code, len(err.splitlines())) == (2, 1)
