"""What the faults share: a process that forks, inputs, an undisturbed study, and a line of what was seen of each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import faults
from support.faults import RUN, Forks, essence, files_in, write_inputs, write_study

Tell = Callable[[str], None]
_SEEN: list[str] = []


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Takes a line for the report of `make faults`."""
    return lambda line: _SEEN.append(f"{request.node.name}: {line}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the lines."""
    if faults.FULL and _SEEN:
        terminalreporter.section("faults")
        for line in _SEEN:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the inputs."""
    made = tmp_path_factory.mktemp("faults")
    write_inputs(made)
    return made


@pytest.fixture(scope="session")
def fork(root: Path) -> Iterator[Forks]:
    """Starts command lines."""
    with faults.forks(root, HF_HUB_OFFLINE="1") as made:
        yield made


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A study that nothing happened to.

    Attributes:
        root: folder with the inputs.
        fork: starts command lines.
        place: folder with its study.yaml, its cache in "cache" and itself in "out".
        cells: what the cells say.
        files: all that is there.
        changes: how often a file or folder was changed on the way.
        seconds: how long it took.
    """

    root: Path
    fork: Forks
    place: Path
    cells: dict[str, Any]
    files: list[str]
    changes: int
    seconds: float


@pytest.fixture(scope="session")
def undisturbed(root: Path, fork: Forks) -> Undisturbed:
    """The study that others are held against."""
    import time  # noqa: PLC0415 -- here alone

    place = root / "undisturbed"
    write_study(place, root)
    start = time.monotonic()
    code, told = fork.run(*RUN, cwd=place, count=place / "changes", QUANTDRIFT_CACHE=str(place / "cache"))
    seconds = time.monotonic() - start
    assert code == 1, told  # one cell fails
    return Undisturbed(
        root=root,
        fork=fork,
        place=place,
        cells=essence(place / "out"),
        files=files_in(place / "out", place / "cache"),
        changes=int((place / "changes").read_text()),
        seconds=seconds,
    )
