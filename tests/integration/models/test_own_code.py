"""Models with Python code of their own, which runs if that is asked for."""

import json
from pathlib import Path

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

from quantdrift import drift
from quantdrift.base.errors import UnsupportedError
from quantdrift.runs.folder import read_run, write_run
from support.candidate_samples import encoder
from support.row_models import search_data
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]


CODE = """
import torch
from sentence_transformers.base.modules import Module


class Twice(Module):
    config_keys = []

    def forward(self, features, **kwargs):
        features["sentence_embedding"] = 2 * features["sentence_embedding"]
        return features

    def save(self, output_path, *args, **kwargs):
        pass

    @classmethod
    def load(cls, *args, **kwargs):
        return cls()
"""


@pytest.fixture
def with_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    encoder(tmp_path / "backbone", prompts=None).save_pretrained(str(tmp_path / "own"))
    modules = json.loads((tmp_path / "own" / "modules.json").read_text())
    modules.append({"idx": len(modules), "name": str(len(modules)), "path": "", "type": "twice.Twice"})
    (tmp_path / "own" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "own" / "twice.py").write_text(CODE)
    search_data(tmp_path / "rows")
    return tmp_path


def test_its_code_runs_if_that_is_asked_for(with_code: Path, quantdrift: Run) -> None:
    words = ("run", f"{with_code}/own@W4", "--data", f"{with_code}/rows", "--out", "run")
    assert "code that comes with a model is not run" in quantdrift(*words, code=2)
    quantdrift(*words, "--trust-remote-code")
    finished = read_run(Path("run"))
    assert finished.record["settings"]["trust_remote_code"] is True
    assert any("Python code that comes with" in note for note in finished.record["data"]["warnings"])
    quantdrift("gate", "run", "--update", quiet=False)
    assert json.loads(Path("drift-baseline.json").read_text())["settings"]["trust_remote_code"] is True
    judged = " ".join(quantdrift("gate", "run", "--accept-underpowered", quiet=False).split())
    assert f"Note: Python code that comes with {with_code}/own was allowed to run" in judged
    settings = {name: value for name, value in finished.record["settings"].items() if name != "trust_remote_code"}
    write_run(Path("without"), evidence=finished.evidence(), record={**finished.record, "settings": settings})
    quantdrift("gate", "without", "--report", "gate.json", quiet=False, code=3)
    differs = "setting trust_remote_code: True in the baseline, nothing now"
    assert json.loads(Path("gate.json").read_text())["differs"] == [differs]
    (with_code / "own" / "twice.py").write_text(CODE.replace("2 *", "features['sentence_embedding'].abs() *"))
    quantdrift("run", words[1], *words[2:4], "--out", "changed", "--trust-remote-code")
    runs = [read_run(Path(name)).evidence().reference_top.reference_scores for name in ("run", "changed")]
    assert (runs[0] != runs[1]).any()  # nothing is kept of what code may change
    plain = drift(str(with_code / "backbone"), "W4", str(with_code / "rows"), progress=False)
    assert "trust_remote_code" not in plain.record["settings"]


def test_in_python_and_in_a_study(with_code: Path, quantdrift: Run) -> None:
    with pytest.raises(UnsupportedError, match="code that comes"):
        drift(str(with_code / "own"), "W4", str(with_code / "rows"), progress=False)
    run = drift(str(with_code / "own"), "W4", str(with_code / "rows"), trust_remote_code=True, progress=False)
    study = {"models": [str(with_code / "own")], "schemes": ["W4"], "data": [{"folder": str(with_code / "rows")}]}
    Path("study.yaml").write_text(json.dumps({**study, "settings": {"trust_remote_code": True}}))
    quantdrift("study", "run", "study.yaml", "--out", "study")
    (cell,) = Path("study").rglob("run.json")
    assert json.loads(cell.read_text())["metrics"]["flip@1"] == run.record["metrics"]["flip@1"]
