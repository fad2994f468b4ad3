"""`quantdrift run`, `last` in place of a run folder, `--limit`, and what is left of a study."""

import importlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantdrift.asking.opening import describe_data
from quantdrift.base.errors import QuantDriftError
from quantdrift.base.paths import RUNS
from quantdrift.cli import studying
from quantdrift.cli.measuring import default_place
from quantdrift.cli.options import decimals
from quantdrift.data.labelled import limited
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.finished.texts import read_texts
from quantdrift.runs.words import candidate_lines
from quantdrift.spec.grammar import parse_pair
from quantdrift.study.plan import DataEntry
from quantdrift.study.sources import Data
from support.beir_folder import numbered, write_beir_folder
from support.command_line import cli
from support.comparison_samples import run_of
from support.small_evidence import FOUR


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def data(fingerprint: str) -> Any:
    return SimpleNamespace(name="mydata", fingerprint=fingerprint * 32, split="test", kinds=("text", "text"))


def lies(place: Path, fingerprint: str) -> Path:
    run_of(place, FOUR, data={"fingerprint": fingerprint * 32})
    return place


@pytest.mark.parametrize(
    ("pair", "name"),
    [
        ("minilm@W4", "minilm@W4-g128-rtn"),
        ("./my model@W4", "my_model@W4-g128-rtn"),
        ("./minilm vs ./g1/", "minilm_vs_g1"),
        ("minilm vs org/repo:q4.gguf", "minilm_vs_org_repo_q4.gguf"),
    ],
)
def test_a_run_is_named_after_pair_and_data(pair: str, name: str) -> None:
    assert default_place(parse_pair(pair), data("a")) == RUNS / f"{name}_on_mydata"


def test_other_data_of_that_name_get_a_folder_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    pair = parse_pair("minilm@W4")
    first = lies(default_place(pair, data("a")), "a")
    assert default_place(pair, data("a")) == first  # the same data: it is replaced
    assert not capsys.readouterr().err
    second = default_place(pair, data("b"))
    assert second == RUNS / "minilm@W4-g128-rtn_on_mydata-bbbbbbbb"
    assert f"{first} holds a run on other data named mydata" in capsys.readouterr().err
    lies(second, "b")
    assert default_place(pair, data("b")) == second


def test_after_ctrl_c_it_is_said_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    importlib.import_module("quantdrift.study.sources")  # before it could take the other reader for its own
    monkeypatch.setattr("quantdrift.data.labelled.read_folder", lambda *_: data("b"))
    monkeypatch.setenv("QUANTDRIFT_FORECAST", "off")  # these data have no texts
    monkeypatch.setattr("quantdrift.asking.opening.open_pair", interrupted)
    code, out, err = cli("run", "minilm@W4", "--data", "mydata")
    assert (code, out) == (130, "")
    assert "the same command goes on" in err
    assert "no run was written" in cli("run", "minilm@W4", "--data", "mydata", "--no-cache")[2]


def test_widths_and_what_chose_them() -> None:
    def told(**changes: Any) -> str:
        chosen = {"criterion": "gap", "calibration_inputs": 128, "dataset": "cranfield", "edited": False, **changes}
        allocation = {"bits_per_weight": 3.4963, "widths": {"a": 4, "b": 3, "c": 4, "d": 16}, **chosen}
        return next(
            iter(candidate_lines({"quantization": {"quantizer": "rtn", "allocation": allocation}, "model": {}}))
        )

    widths = "layers 1 at 3 bits, 2 at 4 bits, 1 not quantized"
    assert told() == f"3.50 bits per weight: {widths}, by gap on 128 inputs of cranfield"
    assert told(calibration_inputs=0, criterion="sqnr").endswith(", by sqnr")
    assert "changed by hand after gap on 128 inputs" in told(edited=True)


@pytest.mark.parametrize("words", [["run", "minilm", "vs", "./q4g", "--k", "5"], ["gate", "minilm", "vs", "./q4g"]])
def test_a_pair_of_two_models_without_quotes_is_told_how_to_quote(words: list[str]) -> None:
    code, _, error = cli(*words)
    assert code == 2
    assert f"quantdrift {words[0]} 'minilm vs ./q4g'" in " ".join(error.split())


def test_numbers_with_commas_are_each_once() -> None:
    assert decimals("-3.25, 4,4", "--edges", "0,1") == (-3.25, 4.0)


@pytest.mark.parametrize("text", ["", "3.5,", "3,5;4", "3.", ".5", "3.5.5", "inf", "nan", "1e1", "٣", "1234567890"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(QuantDriftError, match=r"--edges .*e\.g\. 0,1$"):
        decimals(text, "--edges", "0,1")


# --- `last`, and the first inputs --------------------------------------------------------------------


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
def test_what_is_missing_is_one_line_with_the_newest_run(words: tuple[str, ...]) -> None:
    write("b", 200, "minilm@W4-g128-rtn")
    write("a", 100, "minilm@W3-g128-rtn")
    code, out, err = cli(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--help" in err
    takes_one_run = words[0] in {"show", "report", "metrics"}
    assert (f"quantdrift {words[0]} {RUNS / 'b'}" in err) == takes_one_run


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


# --- studies -----------------------------------------------------------------------------------------


def cell(name: str) -> Any:
    return SimpleNamespace(name=name, model="m", spec=SimpleNamespace(scheme=name), data=SimpleNamespace(called="d"))


@pytest.mark.parametrize(
    ("expected", "left"),
    [
        ([0.0, 20.0, 10.0], ["", "about 20 s left", "about 20 s left"]),  # of one nothing is known: cells are alike
        ([10.0, 30.0, 20.0], ["about 60 s left", "about 50 s left", "about 20 s left"]),  # as fast as expected
        ([1.0, 3.0, 2.0], ["about 6 s left", "about 50 s left", "about 20 s left"]),  # ten times as slow
    ],
)
def test_what_is_left_goes_by_the_forecast_and_then_by_the_cells_that_are_done(
    monkeypatch: pytest.MonkeyPatch, expected: list[float], left: list[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(studying.time, "monotonic", lambda: now[0])
    notes: list[str] = []
    monkeypatch.setattr(studying, "note", notes.append)
    announce = studying.announcer(expected)
    for name, clock in (("a", 0.0), ("b", 10.0), ("c", 40.0)):
        now[0] = clock
        announce(cell(name))
    assert [line.partition("; ")[2] for line in notes] == left
