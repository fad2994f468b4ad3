"""`quantdrift run`: where a run goes by default, what is said of its candidate, and what is refused early."""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.paths import RUNS
from quantdrift.cli.measuring import default_place
from quantdrift.cli.options import decimals
from quantdrift.runs.words import candidate_lines
from quantdrift.spec.grammar import parse_pair
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
def test_a_pair_of_two_models_without_quotes_is_refused(words: list[str]) -> None:
    code, _, error = cli(*words)
    assert (code, "./q4g" in error) == (2, True)


def test_numbers_with_commas_are_each_once() -> None:
    assert decimals("-3.25, 4,4", "--edges", "0,1") == (-3.25, 4.0)


@pytest.mark.parametrize("text", ["", "3.5,", "3,5;4", "3.", ".5", "3.5.5", "inf", "nan", "1e1", "٣", "1234567890"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(QuantDriftError, match=r"--edges .*e\.g\. 0,1$"):
        decimals(text, "--edges", "0,1")
