"""A small encoder for tests of the beir plugin, each with an empty cache; without beir none is collected."""

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("beir") else ["test_*.py"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from support.candidate_samples import encoder  # noqa: PLC0415 -- it imports torch

    place = tmp_path_factory.mktemp("model")
    encoder(place / "backbone").save_pretrained(str(place / "encoder"))
    return str(place / "encoder")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
