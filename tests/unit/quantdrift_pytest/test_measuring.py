"""What a kept run is known by: digests of files, the pair, and its settings."""

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from quantdrift.base.errors import QuantDriftError
from quantdrift.spec.grammar import parse_pair
from quantdrift_pytest import measuring
from quantdrift_pytest.measuring import content_digest, decided_by, read_settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    (place / "0_Transformer").mkdir(parents=True)
    (place / "config.json").write_text('{"model_type": "bert"}')
    (place / "0_Transformer" / "model.safetensors").write_bytes(b"\x00\x01")
    return place


def test_a_copy_has_the_digest_and_another_content_has_not(folder: Path) -> None:
    first = content_digest(folder)
    copy = shutil.copytree(folder, folder.parent / "copy")
    os.utime(copy / "config.json", (1, 1))
    assert content_digest(copy) == first
    weights = copy / "0_Transformer" / "model.safetensors"
    weights.write_bytes(b"\x00\x02")  # of the same size
    os.utime(weights, (2, 2))
    assert content_digest(copy) != first
    shutil.copy(folder / "0_Transformer" / "model.safetensors", weights)
    assert content_digest(copy) == first
    weights.rename(weights.with_name("other.safetensors"))
    assert content_digest(copy) != first


def parts(spec: str, revision: str | None = None) -> dict[str, Any]:
    return decided_by(parse_pair(spec), revision=revision)


def test_another_model_scheme_or_library_is_another_measurement(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("one\n")
    spec = f"{folder}@W4-gptq+calib={texts}"
    found = [parts(spec), parts(f"{folder}@W8-rtn")]
    assert parts(spec) == found[0]
    texts.write_text("one\ntwo\n")
    found.append(parts(spec))
    monkeypatch.setattr(measuring, "version_of", {"torch": "2.6"}.get)
    found.append(parts(spec))
    monkeypatch.setattr(measuring.quantdrift, "__version__", "9.9")
    found.append(parts(spec))
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    found.append(parts(spec))
    assert all(one != other for one, other in itertools.combinations(found, 2))


def test_what_cannot_be_seen_from_here_does_not_last(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lasts(spec: str, revision: str | None = None) -> bool:
        return None not in parts(spec, revision)["models"]

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
    ("given", "told"),
    [
        ({"flip": 0.2}, "flip: extra inputs .* limits go to require"),
        ({"k": 0}, "k: .*greater than or equal to 1; got 0"),
    ],
)
def test_a_wrong_setting_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(QuantDriftError, match=told):
        read_settings(given)
