"""Where a run goes by default, and what is said of a run that lies there."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quantdrift.cli import Interrupted, places
from quantdrift.cli import run as command
from quantdrift.cli.places import default_place, earlier_run, tell_replaced
from quantdrift.engine import run as dispatch
from quantdrift.records import sealed
from quantdrift.spec import parse_pair

RUNS = Path("quantdrift-runs")


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


def test_a_run_that_is_replaced_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell_replaced(earlier_run(tmp_path))
    assert not capsys.readouterr().err
    tell_replaced(earlier_run(lies(tmp_path / "run", "a")))
    assert capsys.readouterr() == (
        "",
        "note: replaced the run of 2026-11-20T18:23:00+00:00 (minilm@W4-g128-rtn on mydata)\n",
    )


def options(out: Path | None = None, *, cache: bool = True) -> command.RunOptions:
    return command.RunOptions(
        spec="minilm@W4",
        data=Path("mydata"),
        task=None,
        split="test",
        out=out,
        k=10,
        batch_size=8,
        noise_floor=False,
        device=None,
        revision=None,
        seed=0,
        cache=cache,
        json_output=True,
        quiet=True,
    )


@pytest.fixture
def outs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where the command would have written to; it measures nothing here."""
    found: list[Path] = []

    def run(_spec: object, _dataset: object, *, out: Path, **_: object) -> Any:
        found.append(out)
        return SimpleNamespace(record={}, path=out)

    monkeypatch.setattr(dispatch, "run_pair", run)
    monkeypatch.setattr(command, "dataset_of", lambda _: data("b"))
    return found


def test_the_command_says_what_it_replaced(
    outs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lies(default_place(parse_pair("minilm@W4"), data("b")), "a")
    command.run_command(options())
    assert outs[0].name.endswith("-bbbbbbbb")
    assert "replaced" not in capsys.readouterr().err
    mine = lies(tmp_path / "mine", "a")
    command.run_command(options(mine))  # other data, but the user named the folder
    assert outs[1] == mine
    assert "replaced the run of 2026-11-20" in capsys.readouterr().err


@pytest.mark.usefixtures("outs")
def test_after_ctrl_c_it_is_said_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dispatch, "run_pair", interrupted)
    with pytest.raises(Interrupted, match="layers that were finished are kept"):
        command.run_command(options())
    with pytest.raises(Interrupted, match=r"^no run was written$"):
        command.run_command(options(cache=False))


def test_the_default_folder_is_below_the_present_one() -> None:
    assert places.RUNS == RUNS
