"""When the next request may start: so many a minute, and none while the server asks to wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

__all__ = ["Clock", "Pace", "StoppedError", "seconds_asked"]


LONGEST = 1e9
"""Seconds of a wait that are believed."""


class StoppedError(Exception):
    """The run was given up while a request waited; nobody is there to hear of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How time is told and spent.

    Attributes:
        now: seconds since any moment, never going back.
        sleep: waits so many seconds.
        date: seconds since 1970.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    date: Callable[[], float] = time.time


class Pace:
    """Spaces out the requests to one server; several threads may ask.

    Requests start evenly, a minute over the limit apart, so no minute has more of them.
    """

    def __init__(self, per_minute: float | None, clock: Clock) -> None:
        """Start with a request allowed at once.

        Args:
            per_minute: requests that may start in any minute, at most; None for no limit.
            clock: how time passes.
        """
        self._interval = 0.0 if per_minute is None else 60.0 / per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._next = self._held = clock.now()
        self._stopped = False

    def wait(self) -> None:
        """Return when a request may start.

        Raises:
            StoppedError: the run was given up.
        """
        while True:
            with self._lock:
                now = self._clock.now()
                start = max(now, self._next)
                self._next = start + self._interval
            self.pause(start - now)
            if self._held <= start:  # else the server asked to wait for longer in the meantime
                return

    def pause(self, seconds: float) -> None:
        """Wait.

        Args:
            seconds: how long; nothing happens if it is not positive.

        Raises:
            StoppedError: the run was given up.
        """
        if seconds > 0:
            self._clock.sleep(seconds)
        if self._stopped:
            raise StoppedError

    def hold(self, seconds: float) -> None:
        """Let no request start for a while, of any thread: the server asks for it.

        Args:
            seconds: how long.
        """
        with self._lock:
            self._held = max(self._held, self._clock.now() + seconds)
            self._next = max(self._next, self._held)

    def stop(self) -> None:
        """Give up: whoever waits raises `StoppedError` when it wakes up."""
        self._stopped = True


def seconds_asked(retry_after: str | None, clock: Clock) -> float | None:
    """The seconds that a Retry-After header asks to wait; None where it says nothing.

    Args:
        retry_after: a number of seconds, or an HTTP date.
        clock: tells what date it is.
    """
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - clock.date()
        except ValueError:
            return None
    if seconds != seconds:  # noqa: PLR0124 -- NaN is no number
        return None
    return min(max(0.0, seconds), LONGEST)
