"""Models with an adapter, which is merged into its base, and with Python code, which runs if that is asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="the extra 'models' is not installed")

import torch
from sentence_transformers import SentenceTransformer

from quantdrift import drift
from quantdrift.asking.ask import stamp_of
from quantdrift.base.errors import UnsupportedError
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.runs.folder import read_run, write_run
from support.candidate_samples import encoder
from support.row_models import round_by_hand, search_data
from support.tiny_command_line import Run, one_thread, place, quantdrift
from support.versus_samples import check

__all__ = ["one_thread", "place", "quantdrift"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    encoder(tmp_path / "backbone", prompts=None).save_pretrained(str(tmp_path / "base"))
    model: Any = SentenceTransformer(str(tmp_path / "base"), device="cpu")
    torch.manual_seed(3)
    model.add_adapter(peft.LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"], init_lora_weights=False))
    model.save_pretrained(str(tmp_path / "lora"))
    search_data(tmp_path / "rows")
    return tmp_path


def test_both_arms_are_those_of_the_merged_model(folder: Path, quantdrift: Run) -> None:
    quantdrift("run", f"{folder}/lora@W4-rtn-g64", "--data", f"{folder}/rows", "--out", "run")
    finished, scores = read_run(Path("run")), []
    data = read_beir_folder(folder / "rows")
    for rounded in (False, True):
        model: Any = SentenceTransformer(str(folder / "lora"), device="cpu")
        for layer in model[0].auto_model.encoder.layer:
            attention = layer.attention.self
            for name in ("query", "value"):
                lora = getattr(attention, name)
                down, up = lora.lora_A["default"].weight, lora.lora_B["default"].weight
                lora.base_layer.weight.data += 8 / 4 * (up @ down).detach()
                setattr(attention, name, lora.base_layer)
        if rounded:
            round_by_hand(model, 4, 64)
        scores.append(model.similarity(model.encode(list(data.queries)), model.encode(list(data.documents))).numpy())
    check(finished, *scores, 1e-5, data.document_ids)
    assert not any("lora" in name for name in json.dumps(finished.record["quantization"]).split())
    assert any("adapter of" in note and "is merged into" in note for note in finished.record["data"]["warnings"])


def test_another_base_is_another_model(folder: Path) -> None:
    before = stamp_of(str(folder / "lora"))
    weights = next((folder / "base").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes() + b" ")
    assert stamp_of(str(folder / "lora")) != before


# --- code of its own ---------------------------------------------------------------------------------


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
