"""Progress of long work, on standard error so that standard output holds only results."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from quantdrift.base.display import clean


class Progress(Protocol):
    """Shows the progress of stages."""

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show one stage of `total` steps; the block gets a function to call with the number of new steps."""


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time of a block to that of a stage, in seconds."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = round(seconds.get(stage, 0.0) + time.perf_counter() - start, 3)


class Silent:
    """Shows nothing."""

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show nothing."""
        yield lambda _steps: None


class OfMany:
    """Shows the stages of many runs of one model: what all read is shown once, and each run by its name."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._seen, self.run = progress, set[str](), ""

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show one stage, unless it reads again what was shown."""
        of_all, again = name.startswith("reference: "), name in self._seen
        self._seen.add(name)
        shown = name if of_all or not self.run else f"{name}, {self.run}"
        with (Silent() if of_all and again else self._progress).stage(shown, total) as tell:
            yield tell


def progress_bars(*, quiet: bool, transient: bool = False) -> Progress:
    """Bars on the terminal, none with `quiet`; with `transient` a full bar goes away."""
    return Silent() if quiet else Terminal(transient)


class Terminal:
    """A bar for each stage, with the time left; plain lines without a terminal."""

    def __init__(self, transient: bool = False) -> None:
        from quantdrift.base.console import console  # noqa: PLC0415 -- only when something is shown

        here = console(error=True)
        gone = transient and not here.is_terminal  # a file would keep a blank line of each
        self._settings: Any = {"console": here, "transient": transient, "disable": gone}

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """One bar."""
        from rich import progress  # noqa: PLC0415 -- only when something is shown

        named = progress.TextColumn("{task.description:<32}", markup=False)  # names may hold what rich takes for markup
        columns = (named, progress.BarColumn(bar_width=24), progress.MofNCompleteColumn())
        with progress.Progress(*columns, progress.TimeRemainingColumn(), **self._settings) as bars:
            task = bars.add_task(clean(name), total=total)
            yield lambda steps: bars.advance(task, steps)
