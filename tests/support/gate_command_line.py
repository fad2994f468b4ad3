"""Small runs, a baseline of one of them, and `quantdrift gate` as a user types it."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from support import command_line, comparison_samples
from support.gate_samples import evidence

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


def run_of(path: Path, flips: Iterable[int], *, n: int = N, spec: str = "minilm@W4-g128-rtn") -> Path:
    """Write a run in which some inputs lose their relevant first item to the second; every third has a German name."""
    names = [f"{'de' if row % 3 == 0 else 'en'}-{row}" for row in range(n)]
    model = {"candidate_fingerprint": str(path)}
    return comparison_samples.run_of(path, evidence(flips, n=n, names=names), spec=spec, model=model).path


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
