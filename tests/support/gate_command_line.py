"""Small runs, a baseline of one of them, and `quantdrift gate` as a user types it."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantdrift.engine.flow import assemble
from quantdrift.engine.scoring.streamed import score_matrix
from quantdrift.runs.folder import write_run
from support import command_line

Cli = Callable[..., tuple[int, str, str]]
N = 300
RULE = "flip@1 no worse by 0.03"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Run a command line in an empty folder; gives exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    return command_line.cli


def run_of(path: Path, flips: Iterable[int], *, n: int = N, labels: bool = True, **changes: Any) -> Path:
    """The first of twelve items gives way to the second on some inputs; it is the relevant one."""
    reference = np.tile(np.linspace(1, 0, 12), (n, 1))
    candidate = reference.copy()
    candidate[list(flips), :2] = reference[0, 1::-1]
    names = [f"{'de' if row % 3 == 0 else 'en'}-{row}" for row in range(n)]
    evidence = assemble(
        score_matrix(reference, candidate, k=12),
        input_ids=names,
        item_ids=[f"doc{item}" for item in range(12)],
        qrels={name: {"doc0": 1} for name in names} if labels else None,
    )
    record: dict[str, Any] = {
        "spec": "minilm@W4-g128-rtn",
        "model": {"name": "minilm", "fingerprint": "reference", "candidate_fingerprint": str(path)},
        "data": {"name": "corpus", "split": "test", "fingerprint": "texts"},
        "settings": {"k": 12, "similarity": "cosine", "torch": "2.6"},
    }
    for part, change in changes.items():
        record[part] = {**record[part], **change} if isinstance(change, dict) else change
    return write_run(path, evidence=evidence, record=record).path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return run_of(tmp_path / "good", range(10))


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """Flips thirty inputs more."""
    return run_of(tmp_path / "bad", range(40), spec="minilm@W3-g128-rtn")


@pytest.fixture
def baseline(cli: Cli, good: Path, tmp_path: Path) -> Path:
    code, _, err = cli("gate", good, "--update")
    assert code == 0, err
    return tmp_path / "drift-baseline.json"
