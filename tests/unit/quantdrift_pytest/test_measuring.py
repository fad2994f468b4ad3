"""The key of a kept run: digests of files, the pair, and its settings."""

import os
from pathlib import Path
from typing import Any

import pytest

from quantdrift.asking.ask import Ask
from quantdrift.base.errors import QuantDriftError
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.spec.grammar import parse_pair
from quantdrift_pytest.drift import asked, read_settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    (place / "0_Transformer").mkdir(parents=True)
    (place / "config.json").write_text('{"model_type": "bert"}')
    (place / "0_Transformer" / "model.safetensors").write_bytes(b"\x00\x01")
    return place


DATA = RetrievalDataset(
    name="docs", query_ids=("q",), queries=["one"], document_ids=("d",), documents=["two"], qrels={}, split="test"
)


def ask(spec: str) -> Ask:
    return asked(parse_pair(spec), DATA, read_settings({}))


def test_a_model_of_other_content_is_another_measurement(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = f"{folder}@W4-rtn"
    first = ask(spec).fingerprint
    weights = folder / "0_Transformer" / "model.safetensors"
    weights.write_bytes(b"\x00\x02")  # of the same size
    os.utime(weights, (2, 2))
    second = ask(spec).fingerprint
    weights.rename(weights.with_name("other.safetensors"))
    third = ask(spec).fingerprint
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert len({first, second, third, ask(spec).fingerprint}) == 4


def test_what_cannot_be_seen_does_not_last(folder: Path) -> None:
    assert ask(f"{folder}@W4-rtn").certain
    assert not ask(f"{folder} vs openai:http://localhost:8000/v1#model").certain
    assert not ask("org/model@W4-rtn").certain


@pytest.mark.parametrize(
    ("given", "message"),
    [({"flip": 0.2}, "flip: extra inputs .* limits go to require"), ({"k": 0}, "k: .*equal to 1; got 0")],
)
def test_a_wrong_setting_is_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantDriftError, match=message):
        read_settings(given)
