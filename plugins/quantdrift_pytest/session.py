"""What the plugin knows during one pytest session, and the session that is running."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from quantdrift.display import printable
from quantdrift.errors import QuantDriftError, SpecError, UnknownNameError

if TYPE_CHECKING:
    from quantdrift.datasets.labelled import Dataset
    from quantdrift_pytest.drift import Drift

# --- What the plugin knows during one pytest session, and the session that is running -------------

ASSERTED = pytest.StashKey[list[dict[str, Any]]]()
"""What a test has asserted since its last report."""

WORKER = "quantdrift"
"""Under this name pytest-xdist hands the session's id to its workers."""


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One pytest session; under pytest-xdist every process has its own, with a common id.

    Attributes:
        config: pytest's.
        id: of the session, the same in all its processes.
        item: the test that is running; None between tests.
        measured: what was measured or read back in this process, by the name it is kept under.
        data: what was read from disk in this process, by place and what the files there look like.
        told: what the tests asserted, in the order in which they ended.
        written: lines on baselines, for the end of the session.
    """

    config: pytest.Config
    id: str
    item: pytest.Item | None = None
    measured: dict[str, Drift] = field(default_factory=dict)
    data: dict[tuple[object, ...], Dataset] = field(default_factory=dict)
    told: list[dict[str, Any]] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """Where paths begin that tests name: pytest's rootdir."""
        return self.config.rootpath

    @property
    def is_worker(self) -> bool:
        """Whether it is one of pytest-xdist's workers, which leave writing to the controller."""
        return hasattr(self.config, "workerinput")

    @property
    def updates(self) -> bool:
        """Whether baselines are written instead of compared with."""
        return bool(self.config.getoption("quantdrift_update"))

    @property
    def anew(self) -> bool:
        """Whether nothing is taken from earlier sessions."""
        return bool(self.config.getoption("quantdrift_no_cache"))

    def folder(self, name: str) -> Path:
        """A folder that stays between sessions, in pytest's cache; made if need be.

        Without pytest's cache (`-p no:cacheprovider`, or it cannot be written) it is a temporary
        one of this session.

        Args:
            name: of the folder.
        """
        cache = getattr(self.config, "cache", None)
        if cache is not None:
            with suppress(OSError):  # it may not be writable, as pytest itself only warns of
                folder = Path(cache.mkdir("quantdrift")) / name
                folder.mkdir(exist_ok=True)
                return folder
        folder = self._temporary() / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    def forget(self) -> None:
        """Remove what was only for this session, when no process needs it any more."""
        if not self.is_worker:
            shutil.rmtree(self._temporary(), ignore_errors=True)

    def _temporary(self) -> Path:
        return Path(tempfile.gettempdir()) / f"quantdrift-pytest-{self.id}"


_RUNNING: list[Session] = []
"""The sessions of this process; more than one where a test runs pytest inside itself."""


def begin(config: pytest.Config) -> Session:
    """A session begins.

    Args:
        config: pytest's.
    """
    handed: dict[str, Any] = getattr(config, "workerinput", {})
    session = Session(config=config, id=handed.get(WORKER) or uuid4().hex)
    _RUNNING.append(session)
    return session


def end(config: pytest.Config) -> None:
    """A session ends.

    Args:
        config: pytest's.
    """
    for session in [each for each in _RUNNING if each.config is config]:
        _RUNNING.remove(session)
        session.forget()


def current() -> Session:
    """The session that is running.

    Raises:
        pytest.UsageError: there is none, or not with this plugin.
    """
    if not _RUNNING:
        raise pytest.UsageError(
            "this needs pytest and its plugin quantdrift, and neither a session nor the plugin is "
            "active: run it in a test, without -p no:quantdrift and, where "
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD is set, with -p quantdrift. In a program "
            "take quantdrift.drift and quantdrift.gate"
        )
    return _RUNNING[-1]


# --- How a pair is measured, as a test may ask for it ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """The settings of a measurement; those of `quantdrift run`.

    Attributes:
        k: ranks kept of either arm.
        batch_size: inputs per forward pass.
        noise_floor: whether to run the reference a second time.
        seed: of the order in which that is done.
        device: where models run; the best there is if not given.
        revision: of a hub model.
    """

    k: int = 200
    batch_size: int = 32
    noise_floor: bool = True
    seed: int = 0
    device: str | None = None
    revision: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


SETTINGS: Mapping[str, str] = {
    "k": "a whole number from 1",
    "batch_size": "a whole number from 1",
    "noise_floor": "True or False",
    "seed": "a whole number from 0",
    "device": "a name such as 'cpu'",
    "revision": "a branch or commit of a hub model",
}
"""Name to what it takes."""


def read_settings(given: Mapping[str, Any]) -> Measuring:
    """Settings by name, checked.

    Args:
        given: those that a test gave.

    Raises:
        UnknownNameError: there is no such setting; carries the nearest names.
        QuantDriftError: a value of another kind.
    """
    for name, value in given.items():
        if name not in SETTINGS:
            hint = f"(settings are {', '.join(SETTINGS)}; limits go to require or assert_drift)"
            raise UnknownNameError("setting", name, SETTINGS, hint=hint)
        if not _fits(name, value):
            raise QuantDriftError(f"the setting {name} is {SETTINGS[name]}; got {value!r}")
    return Measuring(**given)


def _fits(name: str, value: object) -> bool:
    kinds = {field.name: field.default for field in fields(Measuring)}
    default = kinds[name]
    if default is None:
        return value is None or isinstance(value, str)
    if isinstance(default, bool):
        return isinstance(value, bool)
    least = 0 if name == "seed" else 1
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


# --- Errors of ours in a test: the line that asked and the message, without the way in between ----

OURS = (QuantDriftError, pytest.UsageError)
"""What is raised on purpose, with a message that says what to do."""


def in_short(error: Exception) -> Exception:
    """The error without its traceback, to be raised again; one of a spec shows where it is.

    `QUANTDRIFT_DEBUG=1` keeps the traceback.

    Args:
        error: that was caught.
    """
    error.args = tuple(printable(x) if isinstance(x, str) else x for x in error.args)
    if isinstance(error, SpecError) and error.text and not hasattr(error, "__notes__"):
        error.add_note(error.caret())
    if not os.environ.get("QUANTDRIFT_DEBUG"):
        error.with_traceback(None)
    return error
