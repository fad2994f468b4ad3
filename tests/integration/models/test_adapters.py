"""An adapter is merged into its base before anything is rounded; its base decides a run as its own files do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import nn

pytest.importorskip("peft", reason="peft is not installed")

from peft import LoraConfig

from quantdrift.asking.ask import stamp_of
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.runs.folder import read_run
from support.candidate_samples import encoder
from support.row_models import search_data
from support.tiny_command_line import Run, one_thread, place, quantdrift

__all__ = ["one_thread", "place", "quantdrift"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    encoder(tmp_path / "backbone", prompts=None).save_pretrained(str(tmp_path / "base"))
    model: Any = SentenceTransformer(str(tmp_path / "base"), device="cpu")
    torch.manual_seed(3)
    model.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"], init_lora_weights=False))
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
        for module in model.modules():
            if isinstance(module, nn.Linear) and rounded:
                for part in module.weight.data.split(64, dim=1):
                    scale = part.abs().amax(1, keepdim=True) / 7
                    part.copy_((part / scale).round() * scale)
        scores.append(model.similarity(model.encode(list(data.queries)), model.encode(list(data.documents))).numpy())
    delta = scores[1] - scores[0]
    assert finished.evidence().delta_max == pytest.approx(delta.max(axis=1), abs=1e-5)
    assert finished.evidence().delta_min == pytest.approx(delta.min(axis=1), abs=1e-5)
    assert not any("lora" in name for name in json.dumps(finished.record["quantization"]).split())
    assert any("adapter of" in note and "is merged into" in note for note in finished.record["data"]["warnings"])


def test_another_base_is_another_model(folder: Path) -> None:
    before = stamp_of(str(folder / "lora"))
    weights = next((folder / "base").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes() + b" ")
    assert stamp_of(str(folder / "lora")) != before
