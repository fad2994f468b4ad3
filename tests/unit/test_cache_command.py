"""`quantdrift cache`: every kind of what is kept, counted and cleared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from quantdrift.allocation.kept import KeptArrays
from quantdrift.calibration.driver import LayerCandidate
from quantdrift.calibration.store import CodeStore
from quantdrift.cli.cache import cache_command
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.probes import fitted_probe
from quantdrift.models.endpoint.address import Endpoint
from quantdrift.models.endpoint.identity import identify
from quantdrift.quantizers.rtn import quantize_rtn


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that each part of the program has put something into."""
    root = tmp_path / "cache"
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(root))
    encode = lambda rows: np.ones((len(rows), 250), dtype=np.float32)  # noqa: E731 -- short
    EmbeddingStore(root).get("ab1", order=np.arange(1000), encode=encode)
    quantized = quantize_rtn(torch.ones(2, 4), bits=4, group_size=None)
    for number in range(3):
        layer = LayerCandidate(name=f"layer {number}", quantized=quantized)
        CodeStore(root, "cd2").write(number, layer)
    for name in ("gap", "sqnr"):
        KeptArrays(root, "ef3").put(name, np.ones(4))
    fitted_probe(np.eye(2, dtype=np.float32), ["yes", "no"], key="gh4", root=root)
    on_server = Endpoint(url="http://localhost/v1", model="m")
    identify(lambda texts: np.ones((len(texts), 4), dtype=np.float32), on_server, root)
    (root / "mine.txt").write_text("not of quantdrift")
    return root


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_every_kind_is_counted_and_cleared(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache_command(clear=False)
    shown = lines(capsys)
    assert shown == [
        f"1 embedding files, 1.0 MB in {kept / 'embeddings'}",
        f"3 quantized layers, 0.0 MB in {kept / 'codes'}",
        f"2 sensitivities of layers, 0.0 MB in {kept / 'sensitivities'}",
        f"1 linear probes, 0.0 MB in {kept / 'probes'}",
        f"1 models seen on servers, 0.0 MB in {kept / 'servers'}",
    ]
    cache_command(clear=True)
    assert lines(capsys) == [f"deleted {line}" for line in shown]
    assert [path.name for path in kept.iterdir()] == ["mine.txt"]
    cache_command(clear=False)
    assert [line.split()[0] for line in lines(capsys)] == ["0"] * 5


def test_a_cache_that_is_off_holds_nothing_and_clears_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "off" / "embeddings" / "mine.npy"
    mine.parent.mkdir(parents=True)
    mine.write_text("a folder that happens to have that name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTDRIFT_CACHE", "off")
    cache_command(clear=True)
    assert lines(capsys) == ["nothing is kept: QUANTDRIFT_CACHE is off"]
    assert mine.exists()
