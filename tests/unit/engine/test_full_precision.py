"""A pair starts at full precision: what is quantized already is refused before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine import opening as job
from quantdrift.errors import SpecError, UnsupportedError
from quantdrift.models.checkpoint import full_precision, refuse_quantized
from quantdrift.spec import parse

CANDIDATE = {"format": "quantdrift-candidate", "format_version": 1, "base_model": {"name": "minilm"}}
GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
DATASET = RetrievalDataset(
    name="one",
    query_ids=("q",),
    queries=("a text",),
    document_ids=("d",),
    documents=("a text",),
    qrels={},
    split="test",
)


def folder(place: Path, config: dict[str, Any] | None = None, **files: Any) -> str:
    place.mkdir()
    contents = {"config.json": config or {}, **{f"{name}.json": files[name] for name in files}}
    for name, content in contents.items():
        (place / name).write_text(json.dumps(content))
    return str(place)


def test_a_model_of_which_nothing_says_so_is_taken(tmp_path: Path) -> None:
    place = folder(tmp_path / "m", {"quantization_config": None}, scheme={"colours": []})
    assert full_precision(place).location == place
    assert full_precision("org/model").kind == "hub"  # asked when it is loaded


def test_a_saved_candidate_names_the_model_it_was_made_of(tmp_path: Path) -> None:
    place = folder(tmp_path / "g1", scheme=CANDIDATE)
    with pytest.raises(UnsupportedError, match="saved by quantdrift quantize") as refused:
        full_precision(place)
    assert f'quantdrift run "minilm vs {place}"' in str(refused.value)


def test_a_candidate_of_another_version_is_one_all_the_same(tmp_path: Path) -> None:
    place = folder(tmp_path / "g1", scheme={**CANDIDATE, "format_version": 99})
    with pytest.raises(UnsupportedError, match=r'quantdrift run "REFERENCE vs .*g1"'):
        full_precision(place)


def test_a_quantized_checkpoint_is_refused_by_its_config(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"quantized already \(its config.json says gptq\)"):
        full_precision(folder(tmp_path / "m", GPTQ))
    with pytest.raises(UnsupportedError, match="a GGUF file"):
        full_precision("org/repo:q4.gguf")


@pytest.mark.parametrize("content", [{"quant_method": "awq"}, {"load_in_4bit": True}])
def test_a_model_from_the_hub_is_looked_at_when_it_is_loaded(content: dict[str, Any]) -> None:
    said = {"quant_method": "awq", "load_in_4bit": True}
    for config in (content, SimpleNamespace(to_dict=lambda: content)):
        body: Any = nn.Linear(2, 2)
        body.config = SimpleNamespace(quantization_config=config)
        method = "awq" if content == {"quant_method": said["quant_method"]} else "bitsandbytes"
        with pytest.raises(UnsupportedError, match=f"org/m is quantized .* says {method}"):
            refuse_quantized([nn.Sequential(body)], "org/m")
    plain: Any = nn.Linear(2, 2)
    plain.config = SimpleNamespace(quantization_config=None)
    refuse_quantized([nn.Sequential(plain)], "org/m")


@pytest.fixture
def _nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "load_encoder", lambda *_, **__: pytest.fail("the model was loaded"))


@pytest.mark.usefixtures("_nothing_is_loaded")
def test_a_run_refuses_before_the_model_is_loaded(tmp_path: Path) -> None:
    candidate = folder(tmp_path / "g1", scheme={**CANDIDATE, "model_format": "onnx"})
    with pytest.raises(UnsupportedError, match="saved by quantdrift quantize"):
        job.open_pair(parse(f"{candidate}@W4"), DATASET)
    plain = folder(tmp_path / "m")
    with pytest.raises(SpecError, match="calib is '0'"):
        job.open_pair(parse(f"{plain}@W4-adaround+calib=0"), DATASET)


@pytest.mark.usefixtures("_nothing_is_loaded")
def test_a_loaded_model_is_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body: Any = nn.Linear(2, 2)
    body.config = SimpleNamespace(**GPTQ)
    monkeypatch.setattr(job, "load_encoder", lambda *_, **__: SimpleNamespace(module=body))
    with pytest.raises(UnsupportedError, match="says gptq"):
        job.open_pair(parse("org/m@W4"), DATASET)
