"""One fingerprint of everything that decides a run, and the run that has it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quantdrift.asking import ask as asking
from quantdrift.asking.ask import LIBRARIES, Ask, attempted, libraries, stamp_of
from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.spec.grammar import parse_pair


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    libraries.cache_clear()
    yield
    libraries.cache_clear()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "model.safetensors").write_bytes(b"\x00\x01")
    return folder


def ask(spec: str) -> Ask:
    return Ask(pair=parse_pair(spec), data=["docs", "test", "digest"], settings={"k": 10, "dtype": "float32"})


def test_the_same_twice_has_one_fingerprint(model: Path) -> None:
    assert ask(f"{model}@W4-gptq").fingerprint == ask(f"{model}@W4-g128-gptq").fingerprint


def test_whatever_decides_a_run_is_in_it(model: Path) -> None:
    first = ask(f"{model}@W4-rtn")
    others = [
        ask(f"{model}@W3-rtn"),
        ask(f"{model} vs {model}"),
        replace(first, data=["docs", "test", "other"]),
        replace(first, data=["docs", "dev", "digest"]),
        replace(first, settings={**first.settings, "dtype": "bfloat16"}),
        replace(first, settings={**first.settings, "k": 11}),
        replace(first, part=["pilot", 100, 0]),
        replace(first, models=["content"]),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)


@pytest.mark.parametrize("option", ["calib", "allocation"])
def test_a_file_that_a_spec_names_is_read(option: str, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "named.txt"
    file.write_text("one\n")
    pair = parse_pair(f"{model}@W4-gptq+calib={file}")
    scheme = replace(pair.scheme, options=((option, str(file)),))
    spec = replace(pair, scheme=scheme)
    first = replace(ask(f"{model}@W4-gptq"), pair=spec).fingerprint
    at = file.stat().st_mtime
    file.write_text("two\n")  # of the same size and time
    os.utime(file, (at, at))
    assert replace(ask(f"{model}@W4-gptq"), pair=spec).fingerprint != first


@pytest.mark.parametrize("name", LIBRARIES)
def test_another_version_of_a_library_is_another_run(name: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints = []
    for version in ("1", "2", None):
        libraries.cache_clear()
        monkeypatch.setattr(asking, "version_of", lambda package, v=version: v if package == name else "0")
        fingerprints.append(ask(f"{model}@W4-rtn").fingerprint)
    assert len(set(fingerprints)) == 3


@pytest.mark.parametrize(("index", "package"), [("HNSW32", "faiss-cpu"), ("qdrant:int8", "qdrant-edge-py")])
def test_where_an_engine_counts(index: str, package: str, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprints: dict[str, set[str]] = {f"{model}@W4-rtn": set(), f"{model}@fp+index={index}": set()}
    for version in ("1", "2", None):
        libraries.cache_clear()
        monkeypatch.setattr(asking, "version_of", lambda name, v=version: v if name == package else "0")
        for spec, of_spec in fingerprints.items():
            of_spec.add(ask(spec).fingerprint)
    assert [len(of_spec) for of_spec in fingerprints.values()] == [1, 3]


def test_files_of_a_model_are_seen(model: Path, tmp_path: Path) -> None:
    first = stamp_of(str(model))
    os.utime(model / "config.json", (1, 1))
    second = stamp_of(str(model))
    (model / "more.bin").write_bytes(b"")
    graph = tmp_path / "graph.onnx"  # which transformers cannot load by itself
    graph.write_bytes(b"1")
    stamps = {first, second, stamp_of(str(model)), stamp_of(str(graph))}
    graph.write_bytes(b"12")
    assert len({*stamps, stamp_of(str(graph))}) == 5
    assert ask(f"{model} vs {graph}").certain
    stamps = set()
    (model / "onnx").mkdir()
    (model / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    for file in ("onnx/model.onnx", "onnx/model.onnx_data", "linked/config.json"):  # a graph is more than its file
        (model / file).write_bytes(b"1")
        stamps.add(stamp_of(str(model / "onnx" / "model.onnx")))
    assert len(stamps) == 3


def test_a_folder_with_a_model_s_name_is_not_that_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`minilm` is an alias, and ./minilm would be the folder."""
    monkeypatch.chdir(tmp_path)
    before = stamp_of("minilm"), ask("minilm@W4").certain
    Path("minilm").mkdir()
    Path("minilm/config.json").write_text("{}")
    assert (stamp_of("minilm"), ask("minilm@W4").certain) == before


_ATTEMPT = """
import os, sys
from pathlib import Path
from quantdrift.asking.ask import attempted
with attempted(Path(sys.argv[1]), sys.argv[2]):
    os.abort() if sys.argv[3] == "abort" else sys.exit(sys.argv[3])
"""


def test_two_attempts_without_a_word_are_the_last(tmp_path: Path) -> None:
    note = tmp_path / "running" / "cell"

    def ended(key: str, how: str) -> int:
        return subprocess.run(
            [sys.executable, "-c", _ATTEMPT, note, key, how], check=False, capture_output=True
        ).returncode

    assert ended("a", "a word") == 1  # it exits, which is a word
    assert not note.exists()
    assert [ended("a", "abort") for _ in range(2)] == [-signal.SIGABRT] * 2
    with pytest.raises(UnsupportedError, match="2 attempts"), attempted(note, "a"):
        pytest.fail("a third attempt")
    assert ended("b", "abort") == -signal.SIGABRT  # other libraries, data or settings are another thing
    with attempted(note, "b"):
        assert note.read_text() == "running: attempt 2 of b"
    assert not note.exists()
    note.write_bytes(b"\xff" * 1000)  # of somebody else
    with attempted(note, "a"):
        assert note.read_text() == "running: attempt 1 of a"


def test_what_can_change_unseen_is_not_certain(model: Path) -> None:
    assert ask(f"{model}@W4-rtn").certain
    assert not ask("org/model@W4-rtn").certain
    assert not ask(f"{model} vs openai:http://localhost:8000/v1#m").certain
    assert not replace(ask(f"{model}@W4-rtn"), models=[None]).certain  # who looked at the content saw none
    with pytest.raises(QuantDriftError):
        ask("./no-such-folder@W4-rtn").fingerprint  # noqa: B018 -- it is read
