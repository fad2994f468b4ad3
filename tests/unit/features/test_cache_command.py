"""`quantdrift cache`: every kind of what is kept, counted and cleared."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quantdrift.asking.forecast import kept_at
from quantdrift.asking.rate import Rate, rate_of
from quantdrift.asking.streamed_search import KeptShards
from quantdrift.base.records import write_text
from quantdrift.builtin.rtn.work import quantize_rtn
from quantdrift.candidate.calibration.candidate import LayerStore
from quantdrift.candidate.calibration.in_order import LayerCandidate
from quantdrift.data.streamed import Shard
from quantdrift.measuring.problem import CachedArrays
from quantdrift.measuring.readings import fitted_probe
from quantdrift.models.files.shape import Shape
from quantdrift.models.inputs import Settings
from quantdrift.models.server import identify
from quantdrift.models.store import EmbeddingStore, key_of
from quantdrift.spec.grammar import Endpoint
from support.command_line import cli
from support.packaged_model import in_parts


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that each part of the program has put something into."""
    root = tmp_path / "cache"
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(root))
    encode = lambda rows: np.ones((len(rows), 250), dtype=np.float32)  # noqa: E731 -- short
    EmbeddingStore(root).get(key_of(kind=1), order=np.arange(1000), encode=encode)
    quantized = quantize_rtn(torch.ones(2, 4), bits=4, group_size=None)
    for number in range(3):
        layer = LayerCandidate(name=f"layer {number}", quantized=quantized)
        LayerStore(root, key_of(kind=2)).write(number, layer)
    for name in ("gap", "sqnr"):
        CachedArrays(root, key_of(kind=3)).get(name, lambda: np.ones(4))
    fitted_probe(np.eye(2, dtype=np.float32), ["yes", "no"], key="gh4", root=root)
    shard = Shard(url="a.parquet", digest="ab", size=1, start=0, n=2, row=0)
    KeptShards(root / "shards", key=key_of(kind=5)).write(shard, b"two names and a state")
    on_server = Endpoint(url="http://localhost/v1", model="m")
    identify(lambda texts: np.ones((len(texts), 4), dtype=np.float32), on_server, root)
    note = kept_at(EmbeddingStore(root), "openai:http://localhost/v1#m", "data", Settings())
    assert note is not None  # something is kept
    write_text(note, "", what="a note")
    rate = Rate(device="cpu", dtype="float32", operations=1e9, measured=0.0)
    monkeypatch.setattr("quantdrift.asking.rate.measured_rate", lambda *_, **__: rate)
    sizes: Any = {"hidden": 4, "heads": 1, "layers": 1, "matrices": ((4, 4),), "vocabulary": 8, "longest": 16}
    rate_of(Shape(**sizes), device="cpu", dtype="float32", root=root)
    monkeypatch.syspath_prepend(tmp_path)
    in_parts(tmp_path, {"config.json": b"{}", "model.safetensors": b"weights"}).unpacked()
    (root / "mine.txt").write_text("not of quantdrift")
    return root


def lines_of(*words: str) -> list[str]:
    return cli("cache", *words)[1].splitlines()


def test_every_kind_is_counted_and_cleared(kept: Path) -> None:
    shown = lines_of()
    assert shown == [
        f"1 embedding files, 1.0 MB in {kept / 'embeddings'}",
        f"3 quantized layers, 0.0 MB in {kept / 'codes'}",
        f"2 sensitivities of layers, 0.0 MB in {kept / 'sensitivities'}",
        f"1 linear probes, 0.0 MB in {kept / 'probes'}",
        f"1 parts of runs that were interrupted, 0.0 MB in {kept / 'shards'}",
        f"1 notes on what is embedded, 0.0 MB in {kept / 'references'}",
        f"1 rates of this machine, 0.0 MB in {kept / 'rates'}",
        f"1 models seen on servers, 0.0 MB in {kept / 'servers'}",
        f"1 models unpacked from packages, 0.0 MB in {kept / 'models'}",
    ]
    assert lines_of("--clear") == [f"deleted {line}" for line in shown]
    assert [path.name for path in kept.iterdir()] == ["mine.txt"]
    assert [line.split()[0] for line in lines_of()] == ["0"] * 9


def test_a_cache_that_is_off_holds_nothing_and_clears_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "off" / "embeddings" / "mine.npy"
    mine.parent.mkdir(parents=True)
    mine.write_text("a folder that happens to have that name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", "off")
    assert lines_of("--clear") == ["the cache is off: QUANTDRIFT_CACHE"]
    assert mine.exists()


def test_what_is_not_ours_stays_and_is_said_and_a_folder_that_is_a_link_is_followed(kept: Path, tmp_path: Path) -> None:
    elsewhere = (kept / "embeddings").rename(tmp_path / "elsewhere")
    (kept / "embeddings").symlink_to(elsewhere)
    (kept / "codes" / "link").symlink_to(elsewhere)  # not ours: never followed
    others = {
        kept / "embeddings" / "mine.txt": "names like no other",
        kept / "embeddings" / "mine.npy": "the suffix alone",
        kept / "embeddings" / "mine**.lock": "no pattern of glob",
        kept / "embeddings" / "ab" / ("cd" + "0" * 38 + ".npy"): "on another shelf",
        kept / "codes" / "model-00001.safetensors": "a model",
        kept / "sensitivities" / "project" / "notes.npy": "in a folder of its own",
    }
    for path, text in others.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shown = lines_of("--clear")
    left = {path: path.read_text() for path in [*elsewhere.rglob("*"), *kept.rglob("*")] if path.is_file()}
    named = {elsewhere / path.relative_to(kept / "embeddings"): text for path, text in list(others.items())[:4]}
    assert left == {**named, **dict(list(others.items())[4:]), kept / "mine.txt": "not of quantdrift"}
    assert shown[0] == f"deleted 1 embedding files, 1.0 MB in {kept / 'embeddings'}; left 4 other files alone"
    assert (kept / "embeddings").is_symlink()


def test_what_a_run_is_writing_stays_for_a_while(kept: Path) -> None:
    key = key_of(kind="unfinished")
    names = [f"embeddings/{key[:2]}/{key}{end}" for end in (".0.npy", ".1.npy", ".lock")]
    parts = [kept / name for name in (*names, f"probes/{key[:2]}/.{key}.npz.partial-0123abcd")]
    for path in parts:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    lines_of("--clear")
    assert all(path.exists() for path in parts)
    for path in parts:
        os.utime(path, (time.time() - 3600,) * 2)
    lines_of("--clear")
    assert [path.name for path in kept.iterdir()] == ["mine.txt"]
