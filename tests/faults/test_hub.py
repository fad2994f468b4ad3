"""A hub that is down: cells of its models fail with a line that says what to do, others go on, and retry works."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.hub import Hub, hub
from faults.processes import FULL, RETRY, RUN, Forks, essence, write_study

NAME = "someone/tiny"
WAIT = "2" if FULL else "20"  # seconds; only a hub that hangs takes them, and a busy machine must not seem to hang


@pytest.fixture
def server(root: Path) -> Iterator[Hub]:
    with hub(root / "tiny", NAME) as made:
        yield made


@pytest.fixture
def online(server: Hub, tmp_path: Path) -> Iterator[Forks]:
    there = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "hf")}
    there["HF_HUB_CACHE"] = str(tmp_path / "hf" / "hub")  # a library may have set another for this whole process
    with Forks(
        tmp_path,
        HF_HUB_OFFLINE="0",
        HF_HUB_DISABLE_XET="1",
        HF_HUB_DOWNLOAD_TIMEOUT=WAIT,
        HF_HUB_ETAG_TIMEOUT=WAIT,
        **there,
    ) as made:
        yield made


@pytest.mark.very_slow
def test_a_hub_that_is_down(tmp_path: Path, root: Path, server: Hub, online: Forks) -> None:
    models = [NAME, {"model": str(root / "tiny"), "name": "tiny"}]
    write_study(tmp_path, root, models=models, data=[str(root / "a")], schemes=["W8"], exclude=[])
    away = "someone_tiny@W8-g128-rtn_on_a"
    for mode in ("dropped", "500", "hang", "cut") if FULL else ("dropped", "cut"):
        server.mode = mode
        code, printed = online.run(*(RUN if mode == "dropped" else RETRY), cwd=tmp_path)
        assert code == 1, (printed, mode, server.asked, sorted((tmp_path / "hf").rglob("*.safetensors")))
        assert "Traceback" not in printed
        reason = json.loads((tmp_path / "out" / "failed" / f"{away}.json").read_text())["reason"]
        assert (tmp_path / "out" / "cells" / "tiny@W8-g128-rtn_on_a" / "run.json").is_file()
        assert "hub" in reason, reason
        assert NAME in reason, reason
        assert "retry" in reason or "again" in reason, reason
    server.mode = "up"
    code, printed = online.run(*RETRY, cwd=tmp_path)
    assert code == 0, printed
    cells = essence(tmp_path / "out")
    assert cells[away]["files"] == cells["tiny@W8-g128-rtn_on_a"]["files"]
