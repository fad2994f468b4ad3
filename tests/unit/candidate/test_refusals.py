"""What needs no model is refused before torch is loaded, a place before anything is measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.beir_folder import write_beir_folder

REPORT = """
import contextlib, io, json, sys
from quantdrift.cli import main

told = {}
for command in json.load(sys.stdin):
    sys.argv = ["quantdrift", *command.split()]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try: main()
        except SystemExit as stopped: code = stopped.code
    told[command] = [code, "torch" in sys.modules, (said.getvalue().splitlines() or [""])[-1]]
print(json.dumps(told))
"""
MEASURED = {
    "run": "run minilm@W4 --data data",
    "quantize": "quantize minilm@W4 -o out",
    "allocate": "allocate minilm@W3.5+gap --data data",
    "gate": "gate minilm@W4 --data data --rule flip@1<=0.5",
}


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_beir_folder(tmp_path / "data", {"q": "b"}, {"d": "a"})
    (tmp_path / "classes").mkdir()
    for part in ("train", "test"):
        lines = [f'{{"text": "{part} {n}", "label": "{n % 2}"}}\n' for n in range(8)]
        (tmp_path / f"classes/{part}.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")


def refused(*commands: str) -> dict[str, str]:
    """Command to the last line of its standard error; all must end in 2 without torch."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT], input=json.dumps(commands), capture_output=True, text=True, check=True
    )
    ended = json.loads(done.stdout)
    assert {c: v[:2] for c, v in ended.items()} == {c: [2, False] for c in commands}, ended
    return {command: line for command, (_, _, line) in ended.items()}


def test_what_needs_no_model_is_refused_before_torch_is_loaded() -> None:
    expected = {
        "run minilm@W4-rtn+grid=paper --data data": "+grid=",
        "run minilm@W4+query --data classes": "+query",
        "run ./nothing@W4 --data data": "nothing",
        "run minilm@W4 --data nowhere": "nowhere",
        "quantize minilm@W4A8 -o out": "A8",
        "allocate minilm@W3.5+gap+solver=best --data data": "solver",
        "allocate minilm@W3.5+gap --data nowhere": "nowhere",
        "mteb run --model quantdrift:minilm@W4-gtpq -t X": "gptq",
        "lm-eval --model quantdrift --model_args pretrained=X,scheme=W4-gtpq": "gptq",
    }
    messages = refused(*expected)
    assert {command for command in expected if expected[command] not in messages[command]} == set()


def test_a_place_that_cannot_be_written_is_refused_before_torch_is_loaded() -> None:
    places = [f"{line} --out file/below.json".replace(" -o out", "") for line in MEASURED.values()]
    places += [
        f"{MEASURED['gate']} --update --baseline file/b.json",
        f"{MEASURED['gate']} --report file/r.md",
        "certify . --save file/c.json",
        "route . --save file/r.json",
        "diff . . -o file/d",
    ]
    for command, line in refused(*places).items():
        assert "cannot be written to" in line, command
    assert not (Path.cwd() / "quantdrift-runs").exists()
