"""A pair starts at full precision: what is quantized already is refused before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine import opening as job
from quantdrift.errors import UnsupportedError
from quantdrift.models.checkpoint import full_precision
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


def test_a_saved_candidate_names_the_model_it_was_made_of(tmp_path: Path) -> None:
    place = folder(tmp_path / "g1", scheme=CANDIDATE)
    with pytest.raises(UnsupportedError, match="saved by quantdrift quantize") as refused:
        full_precision(place)
    assert f'quantdrift run "REFERENCE vs {place}"' in str(refused.value)


def test_a_quantized_checkpoint_is_refused_by_its_config(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"quantized already \(its config.json says gptq\)"):
        full_precision(folder(tmp_path / "m", GPTQ))
    with pytest.raises(UnsupportedError, match="a GGUF file"):
        full_precision("org/repo:q4.gguf")


@pytest.fixture
def _nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "load_encoder", lambda *_, **__: pytest.fail("the model was loaded"))


@pytest.mark.usefixtures("_nothing_is_loaded")
def test_a_run_refuses_before_the_model_is_loaded(tmp_path: Path) -> None:
    candidate = folder(tmp_path / "g1", scheme={**CANDIDATE, "model_format": "onnx"})
    with pytest.raises(UnsupportedError, match="saved by quantdrift quantize"):
        job.open_pair(parse(f"{candidate}@W4"), DATASET)
