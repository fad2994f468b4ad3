"""For all tests: crashes are seen; and the slowest files come first, so that none is left alone."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from quantdrift.base.errors import MissingExtraError

settings.register_profile("quick", deadline=None, max_examples=30)
settings.load_profile("quick")
gc.set_threshold(5_000, 10, 10)  # as the command line does

SLOWEST = (  # files, and a folder
    "test_somebody_elses.py",
    "test_readme.py",
    "test_tutorials.py",
    "test_cli_verify.py",
    "test_mteb_cli.py",
    "test_lm_eval_cli.py",
    "test_pytest_sessions.py",
    "faults",
    "test_run_page.py",
)


def _rank(path: Path) -> int:
    return min((SLOWEST.index(part) for part in path.parts if part in SLOWEST), default=len(SLOWEST))


@pytest.fixture(autouse=True)
def _crashes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user is told in one line ends a test: it is nothing that a command does on purpose."""

    def through(error: Exception) -> None:
        raise error

    monkeypatch.setattr("quantdrift.cli.tell_crash", through)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out, unless the environment or `-m` asks for them; the slowest files come first."""
    asked = os.environ.get("QUANTDRIFT_SLOW_TESTS", "")
    left_out = {"slow", "very_slow"} if not asked else {"very_slow"} if asked != "all" else set()
    if config.getoption("markexpr"):
        left_out = set()
    there = [item for item in items if not any(item.get_closest_marker(mark) for mark in left_out)]
    config.hook.pytest_deselected(items=[item for item in items if item not in there])
    items[:] = sorted(there, key=lambda item: _rank(item.path))


def pytest_collection_finish() -> None:
    """What is imported stays: to look through it for garbage takes half a second every time."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """What libraries bind is taken apart as always."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip what needs a library that quantizes, where `make matrix` has left these out."""
    try:
        yield
    except (MissingExtraError, AssertionError) as error:
        told = "is not installed; install it with" in str(error)
        if not (os.environ.get("QUANTDRIFT_WITHOUT_QUANTIZERS") and told):
            raise
        pytest.skip(f"without libraries that quantize: {str(error).splitlines()[0][:120]}")
