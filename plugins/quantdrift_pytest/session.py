"""The state of the plugin during a pytest session, and the session that is running."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from uuid import uuid4

import pytest

from quantdrift.base.display import printable
from quantdrift.base.errors import QuantDriftError, SpecError

if TYPE_CHECKING:
    from quantdrift.data.labelled import Dataset

ASSERTED = pytest.StashKey[list[dict[str, Any]]]()
"""The assertions of a test since its last report."""

WORKER = "quantdrift"
"""Name under which pytest-xdist hands the session's id to its workers."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One pytest session; under pytest-xdist every process has its own, with a common id.

    Attributes:
        config: pytest's configuration.
        id: id of the session, the same in all its processes.
        item: the running test; None between tests.
        data: data that this process has read, by their place and the state of the files.
        asserted: the tests' assertions, in the order in which tests ended.
        written: lines on baselines, for the end of the session.
    """

    config: pytest.Config
    id: str
    item: pytest.Item | None = None
    data: dict[tuple[object, ...], Dataset] = field(default_factory=dict)
    asserted: list[dict[str, Any]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    @property
    def temporary(self) -> Path:
        """The folder of this session."""
        return Path(tempfile.gettempdir()) / f"quantdrift-pytest-{self.id}"

    def folder(self, name: str, *, lasting: bool) -> Path:
        """Return a folder in pytest's cache if it is to last and there is a cache, else one of this session."""
        cache = getattr(self.config, "cache", None)
        if lasting and cache is not None:
            with suppress(OSError):  # it may not be writable, of which pytest only warns
                folder = Path(cache.mkdir("quantdrift")) / name
                folder.mkdir(exist_ok=True)
                return folder
        folder = self.temporary / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder


def is_worker(config: pytest.Config) -> bool:
    """Return whether this is a worker of pytest-xdist, which leaves writing to the controller."""
    return hasattr(config, "workerinput")


_RUNNING: list[Session] = []
"""The sessions of this process; several if a test runs pytest itself."""


def begin(config: pytest.Config) -> None:
    """Begin a session."""
    inputs: dict[str, Any] = getattr(config, "workerinput", {})
    _RUNNING.append(Session(config=config, id=inputs.get(WORKER) or uuid4().hex))


def end(config: pytest.Config) -> None:
    """End a session; the controller deletes its folder."""
    for session in [running for running in _RUNNING if running.config is config]:
        _RUNNING.remove(session)
        if not is_worker(config):
            shutil.rmtree(session.temporary, ignore_errors=True)


def current() -> Session:
    """Return the running session."""
    if not _RUNNING:
        raise pytest.UsageError(
            "this needs a session of pytest with the plugin quantdrift (-p quantdrift); in a program take "
            "quantdrift.drift"
        )
    return _RUNNING[-1]


def tersely(called: Callable[P, T]) -> Callable[P, T]:
    """Raise quantdrift's errors without a traceback, unless `QUANTDRIFT_DEBUG` is set; mark the place in a spec."""

    @functools.wraps(called)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return called(*args, **kwargs)
        except (QuantDriftError, pytest.UsageError) as raised:
            error: Exception = raised
            error.args = tuple(printable(x) if isinstance(x, str) else x for x in error.args)
            if isinstance(error, SpecError) and error.text and not hasattr(error, "__notes__"):
                error.add_note(error.caret())
            raise (error if os.environ.get("QUANTDRIFT_DEBUG") else error.with_traceback(None)) from None

    return wrapper
