"""Commands that run a model, on data whose ids and folder attack who looks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from quantdrift.cli import main
from support.hostile_text import HOSTILE, check_clean, check_json
from support.tiny_command_line import N_DOCS, N_QUERIES, one_thread, place, text

__all__ = ["one_thread", "place"]  # fixtures


@pytest.fixture
def data(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in BEIR layout, in the working folder; no line is too long."""
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(place / "cache"))
    monkeypatch.setenv("COLUMNS", "9999")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / f"data {HOSTILE.replace('/', '')}"
    folder.mkdir()
    for name, n, length in (("queries", N_QUERIES, 5), ("corpus", N_DOCS, 9)):
        lines = [json.dumps({"_id": f"{HOSTILE}{row}", "text": text(row, length)}) for row in range(n)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("command", ["run", "corpus-size", "allocate", "predict"])
def test_what_is_measured(
    command: str, place: Path, data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scheme = {"run": "@W3", "corpus-size": "@W3", "allocate": "@W3.5+gap", "predict": ""}[command]
    more = ["--sizes", "10,30"] if command == "corpus-size" else []
    if command != "predict":
        more += ["--out", f"{command}{HOSTILE.replace('/', '')}.json"]
    words = ["quantdrift", command, f"{place / 'tiny'}{scheme}", "--data", data, *more]
    for ending in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", [*words, *ending])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert not ended.value.code, err
        check_clean(err)
        (check_json if ending else check_clean)(out)
