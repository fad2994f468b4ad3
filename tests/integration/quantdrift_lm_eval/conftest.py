"""Tests of the lm-eval plugin run on one thread, each with an empty cache; without lm-eval none is collected."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("lm_eval") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch  # noqa: PLC0415 -- only for these tests

    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
