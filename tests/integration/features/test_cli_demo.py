"""`quantdrift demo --quick` ends with the questions that broke, and with commands that work as printed."""

import shlex
from pathlib import Path

import pytest

from support.candidate_samples import tiny
from support.command_line import cli


def test_a_quick_demo_ends_with_what_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny().save(str(tmp_path / "tiny"))
    code, out, _ = cli("demo", "--quick", "--spec", "./tiny@W2-rtn")
    assert code == 0
    assert "Verdict: " in out
    assert "docstrings the 200 with the shortest documents" in out  # not taken for all of them
    assert any("PythonDocsShort: " in line and "inputs have another top-1" in line for line in out.splitlines())
    assert sum(line.startswith("reference  ") for line in out.splitlines()) == 3
    following = [line.split("   #")[0] for line in out.splitlines() if line.startswith("quantdrift ")]
    assert [line.split()[1] for line in following] == ["show", "report", "run", "run"]
    code, shown, _ = cli(*shlex.split(following[0])[1:])
    assert (code, "Texts are from PythonDocsShort" in shown) == (0, True)
    assert cli(*shlex.split(following[1])[1:])[0] == 0
