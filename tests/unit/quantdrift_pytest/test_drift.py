"""Limits as keywords of the pytest plugin, and the key of a run that is kept."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from quantdrift.asking.ask import Ask
from quantdrift.base.errors import QuantDriftError, UnknownNameError
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.gate.rules import RuleError, parse_rule
from quantdrift.metrics import MetricError
from quantdrift.spec.grammar import parse_pair
from quantdrift_pytest.drift import asked, limit_rule, read_settings


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("flip", 0.25, "flip@1 <= 0.25"),
        ("gold_lost_at_10", 0.1, "gold_lost@10 <= 0.1"),
        ("ndcg_at_10", 0.6, "ndcg@10 >= 0.6"),
        ("change_ndcg_at_10", -0.02, "change.ndcg@10 >= -0.02"),
        ("candidate_gap", 0.1, "candidate_gap >= 0.1"),  # a metric, not the gap of an arm
        ("S", 0.2, "S <= 0.2"),
    ],
)
def test_a_limit_is_a_maximum_where_lower_is_better_and_else_a_minimum(name: str, value: float, rule: str) -> None:
    assert limit_rule(name, value) == parse_rule(rule)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("flop", 0.2, UnknownNameError, "did you mean flip"),
        ("batch_size", 8, UnknownNameError, r"settings=\{'batch_size'"),
        ("ndcg", 0.6, RuleError, "such as ndcg_at_10=..."),
        ("change_flip", 0.1, MetricError, "no 'change.' form"),
        ("flip", "0.1", RuleError, "a number for the limit flip"),
        ("flip", float("nan"), RuleError, "a limit is a finite number"),
    ],
)
def test_what_is_no_limit_says_what_would_be(name: str, value: Any, error: type[QuantDriftError], message: str) -> None:
    with pytest.raises(error, match=message):
        limit_rule(name, value)


# --- the key of a kept run ---------------------------------------------------------------------------


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


def ask(spec: str, revision: str | None = None) -> Ask:
    return asked(parse_pair(spec), DATA, read_settings({"revision": revision} if revision else {}))


def test_a_model_of_other_content_is_another_measurement(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = f"{folder}@W4-rtn"
    first = ask(spec).fingerprint
    os.utime(folder / "config.json", (3, 3))  # as a copy has it
    assert ask(spec).fingerprint == first
    weights = folder / "0_Transformer" / "model.safetensors"
    weights.write_bytes(b"\x00\x02")  # of the same size
    os.utime(weights, (2, 2))
    second = ask(spec).fingerprint
    weights.rename(weights.with_name("other.safetensors"))
    third = ask(spec).fingerprint
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert len({first, second, third, ask(spec).fingerprint}) == 4


def test_what_cannot_be_seen_does_not_last(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lasts(spec: str, revision: str | None = None) -> bool:
        return None not in (ask(spec, revision).models or ())

    assert lasts(f"{folder}@W4-rtn")
    assert not lasts(f"{folder} vs openai:http://localhost:8000/v1#model")
    pytest.importorskip("huggingface_hub", reason="the hub's own library is not installed")
    hub = tmp_path / "hub"
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(hub))
    assert not lasts("org/model@W4-rtn")  # not downloaded yet
    place = hub / "models--org--model"
    (place / "refs").mkdir(parents=True)
    for commit in ("a" * 40, "b" * 40):
        shutil.copytree(folder, place / "snapshots" / commit)
    (place / "refs" / "main").write_text("a" * 40)
    assert lasts("org/model@W4-rtn")
    assert lasts("org/model@W4-rtn", "b" * 40)
    assert not lasts("org/model@W4-rtn", "c" * 40)
    assert not lasts(f"{folder} vs org/other:q4.gguf")
    assert lasts(f"{folder} vs org/model:q4.gguf")


@pytest.mark.parametrize(
    ("given", "message"),
    [({"flip": 0.2}, "flip: extra inputs .* limits go to require"), ({"k": 0}, "k: .*equal to 1; got 0")],
)
def test_a_wrong_setting_is_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantDriftError, match=message):
        read_settings(given)
