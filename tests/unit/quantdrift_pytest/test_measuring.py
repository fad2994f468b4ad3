"""What a kept run is known by: digests of files, the pair, and its settings."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from quantdrift.errors import QuantDriftError
from quantdrift.identity import Identity
from quantdrift.spec import parse_pair
from quantdrift_pytest import measuring
from quantdrift_pytest.measuring import content_digest, identify, read_settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    (place / "0_Transformer").mkdir(parents=True)
    (place / "config.json").write_text('{"model_type": "bert"}')
    (place / "0_Transformer" / "model.safetensors").write_bytes(b"\x00\x01")
    return place


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return tmp_path / "known"


def test_a_copy_has_the_digest_and_another_content_has_not(folder: Path, known: Path) -> None:
    first = content_digest(folder, known)
    copy = shutil.copytree(folder, folder.parent / "copy")
    os.utime(copy / "config.json", (1, 1))
    assert content_digest(copy, known) == first
    weights = copy / "0_Transformer" / "model.safetensors"
    weights.write_bytes(b"\x00\x02")  # of the same size
    os.utime(weights, (2, 2))
    assert content_digest(copy, known) != first
    shutil.copy(folder / "0_Transformer" / "model.safetensors", weights)
    assert content_digest(copy, known) == first
    weights.rename(weights.with_name("other.safetensors"))
    assert content_digest(copy, known) != first


def test_files_that_were_not_touched_are_not_read_again(
    folder: Path, known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = content_digest(folder, known)
    with monkeypatch.context() as patch:
        patch.delattr(measuring, "_of_file")
        assert content_digest(folder, known) == first
        os.utime(folder / "config.json", (1, 1))
        with pytest.raises(NameError):
            content_digest(folder, known)
    (note,) = known.glob("*.json")
    for damaged in ("", "{", "[]", "[" * 10**5, json.dumps({"seen": None})):
        note.write_text(damaged)
        assert content_digest(folder, known) == first


def parts(spec: str, known: Path) -> Identity:
    return identify(parse_pair(spec), revision=None, known=known)


def test_another_model_scheme_or_library_is_another_measurement(
    folder: Path, known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = f"{folder}@W4-rtn"
    first = parts(spec, known)
    assert parts(spec, known) == first
    assert parts(f"{folder}@W8-rtn", known) != first
    versions = {"torch": "2.6", "numpy": "2.0"}
    monkeypatch.setattr(measuring, "version", versions.__getitem__)
    monkeypatch.setattr(measuring, "PackageNotFoundError", KeyError)
    second = parts(spec, known)
    assert second != first
    monkeypatch.setattr(measuring.quantdrift, "__version__", "9.9")
    fourth = parts(spec, known)
    assert fourth != second
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    assert parts(spec, known) not in [first, second, fourth]


def test_files_that_a_scheme_names_count(folder: Path, known: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("one\n")
    spec = f"{folder}@W4-gptq+calib={texts}"
    first = parts(spec, known)
    texts.write_text("one\ntwo\n")
    assert parts(spec, known) != first


def test_what_cannot_be_seen_from_here_does_not_last(
    folder: Path, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lasts(spec: str, revision: str | None = None) -> bool:
        found = identify(parse_pair(spec), revision=revision, known=known)
        return None not in (found.model_fingerprint, found.candidate_fingerprint)

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
    first = parts("org/model@W4-rtn", known)
    (place / "refs" / "main").write_text("b" * 40)
    assert parts("org/model@W4-rtn", known) == first  # another commit of the same content
    (place / "snapshots" / ("b" * 40) / "config.json").write_text("{}")
    assert parts("org/model@W4-rtn", known) != first


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"batchsize": 8}, "did you mean batch_size"),
        ({"flip": 0.2}, "limits go to require or assert_drift"),
        ({"k": 0}, "k: .*greater than or equal to 1; got 0"),
        ({"noise_floor": 0.01}, "noise_floor: .*valid boolean; got 0.01"),
    ],
)
def test_a_wrong_setting_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(QuantDriftError, match=told):
        read_settings(given)
