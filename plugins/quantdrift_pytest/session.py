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
"""What a test has asserted since its last report."""

WORKER = "quantdrift"
"""Under this name pytest-xdist hands the session's id to its workers."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One pytest session; under pytest-xdist every process has its own, with a common id.

    Attributes:
        config: pytest's.
        id: of the session, the same in all its processes.
        item: the test that is running; None between tests.
        data: what was read from disk in this process, by place and what the files there look like.
        asserted: what the tests asserted, in the order in which they ended.
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
        """A folder of this session only."""
        return Path(tempfile.gettempdir()) / f"quantdrift-pytest-{self.id}"

    def folder(self, name: str, *, lasting: bool) -> Path:
        """A folder in pytest's cache; one of this session if it need not last, or there is no cache."""
        cache = getattr(self.config, "cache", None)
        if lasting and cache is not None:
            with suppress(OSError):  # it may not be writable, as pytest itself only warns of
                folder = Path(cache.mkdir("quantdrift")) / name
                folder.mkdir(exist_ok=True)
                return folder
        folder = self.temporary / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder


def is_worker(config: pytest.Config) -> bool:
    """Return whether this is one of pytest-xdist's workers, which leave writing to the controller."""
    return hasattr(config, "workerinput")


_RUNNING: list[Session] = []
"""The sessions of this process; more than one where a test runs pytest inside itself."""


def begin(config: pytest.Config) -> None:
    """A session begins."""
    handed: dict[str, Any] = getattr(config, "workerinput", {})
    _RUNNING.append(Session(config=config, id=handed.get(WORKER) or uuid4().hex))


def end(config: pytest.Config) -> None:
    """A session ends; what was only for it goes when no process needs it any more."""
    for session in [running for running in _RUNNING if running.config is config]:
        _RUNNING.remove(session)
        if not is_worker(config):
            shutil.rmtree(session.temporary, ignore_errors=True)


def current() -> Session:
    """The session that is running."""
    if not _RUNNING:
        raise pytest.UsageError(
            "this needs a session of pytest with the plugin quantdrift (-p quantdrift); in a program take "
            "quantdrift.drift"
        )
    return _RUNNING[-1]


def tersely(called: Callable[P, T]) -> Callable[P, T]:
    """Errors of ours come without a traceback, unless `QUANTDRIFT_DEBUG` is set; one of a spec shows where it is."""

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
