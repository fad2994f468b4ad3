"""`quantdrift run`: where a run goes by default, and what is said of how its candidate was made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantdrift.cli.run import RUNS, candidate_lines, default_place, telling_replaced
from quantdrift.errors import UnsupportedError
from quantdrift.records import sealed
from quantdrift.spec import parse_pair
from support.command_line import cli


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def data(fingerprint: str) -> Any:
    return SimpleNamespace(name="mydata", fingerprint=fingerprint * 32)


def lies(place: Path, fingerprint: str, **more: Any) -> Path:
    record = {
        "format": "quantdrift-run",
        "format_version": 2,
        "files": {"evidence.parquet": "not looked at"},
        "spec": "minilm@W4-g128-rtn",
        "data": {"name": "mydata", "fingerprint": fingerprint * 32, **more},
        "times": {"finished": "2026-11-20T18:23:00+00:00"},
    }
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps(sealed(record)))
    return place


@pytest.mark.parametrize(
    ("pair", "name"),
    [
        ("minilm@W4", "minilm@W4-g128-rtn"),
        ("./my model@W4", "my_model@W4-g128-rtn"),
        ("minilm vs g1", "minilm_vs_g1"),
        ("minilm vs ./g1", "minilm_vs_g1"),
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
    assert default_place(pair, data("a")) == first


def test_runs_by_corpus_size_are_told_apart_by_the_whole_corpus() -> None:
    pair, ending = parse_pair("minilm@W4"), "_by_corpus_size"
    place = default_place(pair, data("a"), ending)
    lies(place / "docs-00250", "x", corpus_size={"corpus_fingerprint": "a" * 32})
    assert default_place(pair, data("a"), ending) == place
    assert default_place(pair, data("b"), ending).name.endswith("mydata-bbbbbbbb_by_corpus_size")


def test_files_that_are_no_runs_do_not_count() -> None:
    place = default_place(parse_pair("minilm@W4"), data("a"))
    for name, content in (("one", "[]"), ("two", "{"), ("three", '{"data": {}}')):
        (place / name).mkdir(parents=True)
        (place / name / "run.json").write_text(content)
    assert default_place(parse_pair("minilm@W4"), data("a")) == place


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where the command would have written to; it measures nothing here."""
    found: list[Path] = []

    def run(_spec: object, _dataset: object, *, out: Path, **_: object) -> Any:
        found.append(out)
        raise UnsupportedError("measured")

    monkeypatch.setattr("quantdrift.engine.run.run", run)
    monkeypatch.setattr("quantdrift.cli.run.corpus", lambda *_: data("b"))
    return found


def test_the_command_says_what_it_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = lies(tmp_path / "mine", "a")
    with telling_replaced(mine, tmp_path / "nothing"):
        assert not capsys.readouterr().err
    assert "replaced the run of 2026-11-20T18:23:00+00:00 (minilm@W4-g128-rtn on mydata)" in capsys.readouterr().err


def test_the_user_may_name_the_folder_of_a_run_on_other_data(measured: list[Path], tmp_path: Path) -> None:
    lies(default_place(parse_pair("minilm@W4"), data("b")), "a")
    cli("run", "minilm@W4", "--data", "mydata")
    cli("run", "minilm@W4", "--data", "mydata", "--out", lies(tmp_path / "mine", "a"))
    assert measured[0].name.endswith("-bbbbbbbb")
    assert measured[1] == tmp_path / "mine"


@pytest.mark.usefixtures("measured")
def test_after_ctrl_c_it_is_said_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("quantdrift.engine.run.run", interrupted)
    code, out, err = cli("run", "minilm@W4", "--data", "mydata")
    assert (code, out) == (130, "")
    assert "what was finished is kept, and the same command goes on" in err
    assert cli("run", "minilm@W4", "--data", "mydata", "--no-cache")[2] == (
        "quantdrift: interrupted; no run was written\n"
    )


# --- how the candidate was made -------------------------------------------------------------------


def told(record: Mapping[str, Any]) -> list[str]:
    return list(candidate_lines(record))


CALIBRATION = {"source": "corpus", "n_inputs": 512, "wanted": 512, "of": 1400, "seed": 0}
MADE: dict[str, Any] = {
    "quantizer": "gptq",
    "backend": "gptqmodel",
    "version": "7.6.0",
    "grid": "symmetric absmax",
    "calibration": CALIBRATION,
    "layers_kept_from_before": 0,
    "layers": [{}, {}],
    "seconds": 61.2,
    "seconds_in_method": 7.5,
    "fallbacks": {},
}


def lines(unreached: tuple[str, ...] = (), **changes: Any) -> list[str]:
    made = {**MADE, **changes}
    return told({"quantization": made, "model": {"layers_never_reached": list(unreached)}})


def test_library_and_calibration() -> None:
    assert lines() == [
        "gptq by gptqmodel 7.6.0, grid: symmetric absmax",
        "calibrated on 512 of 1,400 documents (seed 0) in 61 s, of which the method took 8",
    ]


def test_a_calibration_from_before_and_one_on_a_file() -> None:
    file = {**CALIBRATION, "source": "texts.txt", "n_inputs": 12, "of": 12}
    found = lines(layers_kept_from_before=2, calibration=file)[1]
    assert found == "calibrated on 12 texts of texts.txt (seed 0), kept from an earlier run"
    found = lines(layers_kept_from_before=2, calibration={**CALIBRATION, "source": "texts.txt"})[1]
    assert found.startswith("calibrated on 512 of 1,400 texts of texts.txt (seed 0)")


def test_fewer_documents_than_were_wanted() -> None:
    few = {**CALIBRATION, "n_inputs": 40, "of": 40}
    assert lines(calibration=few)[1].startswith("calibrated on all 40 documents (512 were wanted) in 61 s")
    enough = {**few, "wanted": 40}
    assert lines(calibration=enough)[1].startswith("calibrated on 40 of 40 documents (seed 0) in")
    del few["wanted"]  # a run of an earlier version
    assert lines(calibration=few)[1].startswith("calibrated on 40 of 40 documents (seed 0) in")


def test_few_tokens_deserve_a_word() -> None:
    layers = [{"n_tokens": 310}, {"n_tokens": 9_999}, {"n_tokens": None}]
    assert "few tokens to calibrate on: 9,999 at most in a layer" in lines(layers=layers)[2]
    assert len(lines(layers=[*layers, {"n_tokens": 10_000}])) == 2
    assert len(lines(layers=[{"n_tokens": 0}])) == 2  # nothing was reached: the fallbacks say so


def test_every_fallback_has_its_own_reason() -> None:
    fallbacks = {f"expert.{n}": "no calibration token reached it" for n in range(6)}
    fallbacks["pooler"] = "outside the blocks that optimum quantizes"
    assert lines(fallbacks=fallbacks)[2:] == [
        "rounded to nearest, no calibration token reached it: expert.0, expert.1, expert.2, expert.3 and 2 more",
        "rounded to nearest, outside the blocks that optimum quantizes: pooler",
    ]


def test_activations_that_are_quantized_in_part() -> None:
    part = {"bits": 8, "layers_covered": 2, "layers": 3, "not_covered": ["attention"]}
    assert lines(activations=part)[2] == (
        "inputs of 2 of 3 linear layers at 8 bits; not of attention, so activations are quantized only in part"
    )


def test_what_is_left_out_or_without_effect() -> None:
    found = lines(("pooler",), layers_left_out={"head": "shares its weight with an embedding"})
    assert found[2] == "left at full precision: head"
    assert found[3].startswith("unused layer")
    assert found[3].endswith(": pooler")


def test_a_run_of_an_earlier_version_says_nothing() -> None:
    assert told({"model": {}}) == []


ALLOCATION: dict[str, Any] = {
    "criterion": "gap",
    "bits_per_weight": 3.4963,
    "widths": {"a": 4, "b": 3, "c": 4},
    "calibration_inputs": 128,
    "dataset": "cranfield",
    "edited": False,
}


def widths(**changes: Any) -> str:
    made = {"quantizer": "rtn", "allocation": {**ALLOCATION, **changes}}
    (line,) = told({"quantization": made, "model": {}})
    return line


def test_widths_and_what_chose_them() -> None:
    assert widths() == ("3.50 bits per weight: layers 1 at 3 bits, 2 at 4 bits, by gap on 128 inputs of cranfield")
    assert widths(calibration_inputs=0, criterion="sqnr").endswith("4 bits, by sqnr")
    assert "4 bits, changed by hand after gap on 128 inputs" in widths(edited=True)
    assert "by gap on 128 inputs of the data" in widths(dataset=None)


def test_layers_that_are_kept_are_counted_too() -> None:
    kept = {"a": 4, "b": 8, "c": 16, "d": 16}
    assert "1 at 4 bits, 1 at 8 bits, 2 not quantized, by gap" in widths(widths=kept)
    assert widths(widths={"a": 16}, bits_per_weight=None).startswith("layers 1 not quantized, by")


def test_queries_that_were_left_out() -> None:
    made = {"quantizer": "rtn", "allocation": ALLOCATION}
    data = {"n_queries": 1500, "inputs_left_out": 128}
    record = {"quantization": made, "model": {}, "data": data}
    assert told(record)[1] == (
        "128 queries that layers were measured on are left out: every figure is over the other 1,372"
    )
    assert len(told({**record, "data": {**data, "inputs_left_out": 0}})) == 1
    assert len(told({**record, "data": {"n_queries": 1500}})) == 1  # an earlier run
