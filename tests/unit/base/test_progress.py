"""What bars leave behind where there is no terminal, and of many runs of one model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from quantdrift.base.progress import OfMany, Terminal


class Names:
    """Keeps the names of the stages that it is told to show."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        self.shown.append(f"{name} {total}")
        yield lambda _: None


def test_of_many_runs_what_all_read_is_shown_once_and_the_rest_with_its_run() -> None:
    names = Names()
    many = OfMany(names)
    for run in ("W4", "W3"):
        many.run = run
        for name in ("reference: query embeddings", "candidate: query embeddings"):
            with many.stage(name, 3) as tell:
                tell(3)
    assert names.shown == [
        "reference: query embeddings 3",
        *(f"candidate: query embeddings, {run} 3" for run in ("W4", "W3")),
    ]


def test_bars_that_go_away_leave_no_blank_lines_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    left = []
    for transient in (False, True):
        with Terminal(transient).stage("encoding", 2) as tell:
            tell(2)
        left.append(capsys.readouterr().err)
    assert "encoding" in left[0]
    assert left[1] == ""
