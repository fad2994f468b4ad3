"""The same `quantdrift run` once more: what is finished is shown, and measured again where anything differs."""

import os
from pathlib import Path

import pytest

from quantdrift.asking import run as engine
from support.tiny_command_line import Run, corpora, one_thread, place, quantdrift

__all__ = ["corpora", "one_thread", "place", "quantdrift"]

COMMAND = ("run", "TINY@W3", "--data", "ROOT/data", "--out", "out")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where runs were measured, one entry a time."""
    places: list[Path] = []
    measured_run = engine.measured_run
    monkeypatch.setattr(
        engine, "measured_run", lambda opened, **more: (places.append(more["out"]), measured_run(opened, **more))[1]
    )
    return places


def test_a_finished_run_is_shown_and_not_measured(quantdrift: Run, measured: list[Path]) -> None:
    first, second = quantdrift(*COMMAND, "--json"), quantdrift(*COMMAND, "--json")
    assert (first, len(measured)) == (second, 1)


@pytest.mark.parametrize("more", [("--no-cache",), ("-k", "7"), ("--batch-size", "3"), ("--no-noise-floor",)])
def test_other_settings_are_measured(more: tuple[str, ...], quantdrift: Run, measured: list[Path]) -> None:
    quantdrift(*COMMAND)
    quantdrift(*COMMAND, *more)
    assert len(measured) == 2


def test_what_is_other_or_damaged_is_measured_again(quantdrift: Run, measured: list[Path], place: Path) -> None:
    quantdrift(*COMMAND)
    quantdrift(*COMMAND[:-2], "--data", "ROOT/a", "--out", "out")
    quantdrift(*COMMAND)
    assert len(measured) == 3
    weights = place / "tiny" / "model.safetensors"
    before = weights.stat()
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))
    quantdrift(*COMMAND)
    assert len(measured) == 4
    evidence = Path("out/evidence.parquet")
    evidence.write_bytes(evidence.read_bytes()[:-1])
    quantdrift(*COMMAND)
    assert len(measured) == 5
