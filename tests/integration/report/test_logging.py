"""Runs logged by the clients themselves, to a place of the test's own, and read back from there."""

import json
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quantdrift.records import bytes_digest
from quantdrift.report.logging import CLIENTS, Client, Entry, entries_of, entry_of, log_to
from quantdrift.runs import read_run
from support.command_line import cli
from support.report_samples import written

Read = Callable[[], list[dict[str, Any]]]
"""Name, params, metrics and files of every run that a client holds."""
METRICS = {
    "flip@1": {"value": 0.5, "low": 0.15, "high": 0.85, "n": 4},
    "separation": {"value": 0.25, "low": None, "high": None, "n": 4, "bound": "upper"},
    "gold_lost@1": {"value": None, "reason": "no labels"},
}


def _of_mlflow(place: Path) -> list[dict[str, Any]]:
    client = import_module("mlflow").MlflowClient()
    experiments = [each.experiment_id for each in client.search_experiments() if each.name == "tests"]
    return [
        {
            "name": run.info.run_name,
            "params": run.data.params,
            "metrics": run.data.metrics,
            "files": {each.path for each in client.list_artifacts(run.info.run_id)},
        }
        for run in client.search_runs(experiments)
    ]


def _of_wandb(place: Path) -> list[dict[str, Any]]:
    record_of = import_module("wandb.proto.wandb_internal_pb2").Record.FromString
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(place.glob("wandb/offline-run-*/*.wandb")):
        own: dict[str, Any] = {"params": {}, "metrics": {}, "files": set()}
        for content in _records(file.read_bytes()):
            record = record_of(content)
            for part in (record.run.config.update, record.config.update):
                own["params"] |= {one.key: json.loads(one.value_json) for one in part if not one.key.startswith("_")}
            own["metrics"] |= {one.key: json.loads(one.value_json) for one in record.summary.update}
            own["files"] |= {one.path for one in record.request.log_artifact.artifact.manifest.contents}
            own["files"] |= {one.path for one in record.artifact.manifest.contents}
            own |= {"name": record.run.display_name} if record.run.display_name else {}
        found[file.stem] = own  # the name of the file is the id of the run
    return list(found.values())


def _records(content: bytes) -> list[bytes]:
    """Of a log in blocks of 32 KiB, each part with checksum, length and kind (whole, first, middle, last)."""
    place, found, open_part = 7, [], b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        open_part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:
            found.append(open_part)
            open_part = b""
    return found


def _of_trackio(place: Path) -> list[dict[str, Any]]:
    trackio = import_module("trackio")
    return [
        {
            "name": run.name,
            "params": run.config,
            "metrics": trackio.SQLiteStorage.get_logs("tests", run.name)[-1],
            "steps": len(trackio.SQLiteStorage.get_logs("tests", run.name)),
            # kept by what is in them
            "digests": {file.name for file in place.glob("artifacts/tests/blobs/sha256/*/*")},
        }
        for run in trackio.Api().runs("tests")
    ]


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Client, Read]:
    """A client that is installed, and how to read what it holds."""
    place = tmp_path / "kept"
    place.mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place.as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name, value in {"MODE": "offline", "DIR": place, "DATA_DIR": place, "CACHE_DIR": place}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    monkeypatch.setenv("TRACKIO_DIR", str(place))
    if request.param == "trackio" and "trackio" in sys.modules:
        pytest.skip("it reads where it keeps things when it is imported, which it was before")
    pytest.importorskip(request.param, reason=f"the client {request.param} is not installed")
    read = {"mlflow": _of_mlflow, "wandb": _of_wandb, "trackio": _of_trackio}[request.param]
    return request.param, lambda: read(place)


@pytest.mark.slow  # the clients take long to import
def test_a_run_is_there_once_with_its_settings_metrics_and_files(client: tuple[Client, Read], tmp_path: Path) -> None:
    name, read = client
    report = tmp_path / "report.md"
    report.write_text("what changed")
    run = written(tmp_path / "run", metrics=METRICS, cell=bytes_digest(b"a"))
    entries, group = entries_of(run.path, report)
    assert log_to(name, entries, project="tests", group=group) == 1
    assert log_to(name, entries, project="tests", group=group) == 0
    (found,) = read()
    assert found["name"].startswith("org/MiniLM@W4-g128-rtn on corpus")
    assert found["params"]["scheme"] == "W4-g128-rtn"
    assert float(found["params"]["bits_with_scales"]) == 4.1
    ends = {key: found["metrics"][f"drift_flip_at_1{key}"] for key in ("", "_low", "_high")}
    assert ends == {"": 0.5, "_low": 0.15, "_high": 0.85}
    assert found.get("files", {"run.json", "evidence.parquet", "report.md"}) == {
        "run.json",
        "evidence.parquet",
        "report.md",
    }
    assert found.get("steps", 1) == 1
    other = written(tmp_path / "other", data="other", metrics=METRICS, cell=bytes_digest(b"b"))
    assert log_to(name, [*entries, entry_of(other)], project="tests", group=group) == 1
    assert len(read()) == 2


def test_what_is_logged_tells_no_folder_of_the_user(tmp_path: Path) -> None:
    model = {"name": str(tmp_path / "secret"), "canonical": "secret", "kind": "local", "fingerprint": "weights"}
    run = written(tmp_path / "run", metrics=METRICS, model=model, spec=f"{tmp_path}/secret@W4")
    entry = entry_of(run)
    assert str(tmp_path) not in repr((entry.name, entry.params, entry.metrics))
    assert entry.name == "secret@W4-g128-rtn on corpus"
    assert entry.key == run.record["digest"]
    assert entry.metrics == {
        "drift_flip_at_1": 0.5,
        "drift_flip_at_1_low": 0.15,
        "drift_flip_at_1_high": 0.85,
        "drift_separation_median_at_most": 0.25,
    }


def test_a_record_from_elsewhere_names_no_other_file_and_asks_nothing(tmp_path: Path) -> None:
    run = written(tmp_path / "run", metrics=METRICS, cell="x' OR tags.a = 'b/../*")
    secret = tmp_path / "secret"
    secret.write_text("key")
    hostile = replace(run, record={**run.record, "files": {**run.record["files"], "../secret": "0", str(secret): "0"}})
    entry = entry_of(hostile)
    assert [file.name for file in entry.files] == ["run.json", "evidence.parquet"]
    assert re.fullmatch("[0-9a-f]{40}", entry.key)


def test_what_a_client_says_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> Callable[[Entry], bool]:
        def log(entry: Entry) -> bool:
            raise OSError("no route to host\nmore")

        return log

    monkeypatch.setattr("quantdrift.report.logging._OPEN", dict.fromkeys(CLIENTS, refuses))
    monkeypatch.setitem(sys.modules, "wandb", json)
    run = written(tmp_path / "run", metrics=METRICS)
    code, _, told = cli("report", run.path, "--md", "--log-to", "wandb")
    assert code == 2
    assert told.startswith("quantdrift: wandb did not take org/MiniLM@W4-g128-rtn on corpus: no route to host. What")
    assert len(told.splitlines()) == 1


def test_a_client_that_is_not_there_is_told_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path / "run", metrics=METRICS)
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "a.md"
    code, _, told = cli("report", run.path, "--md", "-o", out, "--log-to", "wandb")
    assert (code, out.exists()) == (2, False)
    assert 'pip install "quantdrift[wandb]"' in told
    assert "did you mean mlflow?" in cli("report", run.path, "--md", "--log-to", "mlfow")[2]
    assert read_run(run.path).record == run.record
