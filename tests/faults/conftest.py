"""What the faults share: a process that forks, inputs, and an undisturbed study."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faults.processes import RUN, Forks, essence, files_in, write_inputs, write_study


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the inputs."""
    made = tmp_path_factory.mktemp("faults")
    write_inputs(made)
    return made


@pytest.fixture(scope="session")
def fork(root: Path) -> Iterator[Forks]:
    """Starts command lines."""
    with Forks(root, HF_HUB_OFFLINE="1") as made:
        yield made


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A study that nothing happened to.

    Attributes:
        place: folder with its study.yaml, its cache in "cache" and itself in "out".
        cells: what the cells say.
        files: all that is there.
        changes: how often a file or folder was changed on the way.
        seconds: how long it took.
    """

    place: Path
    cells: dict[str, Any]
    files: list[str]
    changes: int
    seconds: float


@pytest.fixture(scope="session")
def undisturbed(root: Path, fork: Forks) -> Undisturbed:
    """The study that others are held against."""
    place = root / "undisturbed"
    write_study(place, root)
    start = time.monotonic()
    code, printed = fork.run(*RUN, cwd=place, count=place / "changes")
    seconds = time.monotonic() - start
    assert code == 1, printed  # one cell fails
    return Undisturbed(
        place=place,
        cells=essence(place / "out"),
        files=files_in(place / "out", place / "cache"),
        changes=int((place / "changes").read_text()),
        seconds=seconds,
    )
