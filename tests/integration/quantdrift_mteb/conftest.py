"""Tests of the mteb plugin run on one thread; without mteb none is collected."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("mteb") else ["test_*.py"]

if find_spec("mteb"):
    from integration.quantdrift_mteb.mteb_samples import Model, one_thread, save_encoder
    from support.rerank_samples import save_cross_encoder

    __all__ = ["one_thread"]  # a fixture


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, in a folder that is the current one."""
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder."""
    return save_encoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def models(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Model]:
    """An encoder and a cross-encoder, each as a pair and as mteb loads it."""
    reranker = save_cross_encoder(tmp_path_factory.mktemp("cross") / "reranker")
    return {"encoder": Model.of(folder), "reranker": Model.of(reranker)}


@pytest.fixture
def model(models: Mapping[str, Model]) -> Model:
    return models["encoder"]
