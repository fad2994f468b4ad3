"""Tests of the lm-eval plugin run on one thread, each with an empty cache; without lm-eval none is collected."""

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("lm_eval") else ["test_*.py"]

if find_spec("lm_eval"):
    from integration.quantdrift_lm_eval.lm_eval_samples_maker import save_model, write_tasks
    from support.threads import one_thread

    __all__ = ["one_thread"]  # a fixture

    @pytest.fixture(scope="module")
    def model(tmp_path_factory: pytest.TempPathFactory) -> str:
        return save_model(tmp_path_factory.mktemp("model"))

    @pytest.fixture(scope="module")
    def tasks(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return write_tasks(tmp_path_factory.mktemp("tasks"), model)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
