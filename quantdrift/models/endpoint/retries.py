"""When a request is sent again: after what the server asks for, else after longer and longer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quantdrift.models.endpoint.pace import Clock, Pace
from quantdrift.models.endpoint.refusals import TransientError

if TYPE_CHECKING:
    from tenacity import RetryCallState, Retrying

__all__ = ["Patience", "retrying"]

LONGEST_WAIT = 60.0
TOLD_WAIT = 5.0
"""Seconds of a wait from which the user is told."""


def _silent(_line: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long is waited, for what, and who is told.

    Attributes:
        requests_per_minute: that may start at most; None for no limit.
        timeout: seconds to wait for an answer; the first request may load the model.
        clock: how time passes.
        say: called with a line where a wait is long.
        transport: of httpx, in place of the network.
    """

    requests_per_minute: float | None = None
    timeout: float = 120.0
    clock: Clock = field(default_factory=Clock)
    say: Callable[[str], None] = _silent
    transport: Any = None


def retrying(url: str, pace: Pace, patience: Patience) -> Retrying:
    """What calls a function again for as long as that raises a `TransientError`.

    Between two calls it waits the seconds that the error carries; where it carries none, half a
    second, one, two and so on up to a minute, each with up to a second of chance, so that requests
    that failed together do not come back together.

    Args:
        url: that is asked, for messages.
        pace: waits.
        patience: who is told.

    Raises:
        ImportError: tenacity is not installed.
    """
    import tenacity  # noqa: PLC0415 -- an extra

    backoff = tenacity.wait_exponential(multiplier=0.5, max=LONGEST_WAIT)
    backoff_with_chance = backoff + tenacity.wait_random(0, 1)

    def wait(state: RetryCallState) -> float:
        asked = _error(state).retry_after
        return asked if asked is not None else float(backoff_with_chance(state))

    def tell(state: RetryCallState) -> None:
        seconds = state.next_action.sleep if state.next_action else 0.0
        if seconds >= TOLD_WAIT:
            patience.say(f"{url} {_error(state).reason}; next try in {seconds:.0f} s")

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TransientError),
        wait=wait,
        stop=lambda state: state.attempt_number >= _error(state).attempts,
        sleep=pace.pause,
        before_sleep=tell,
        reraise=True,
    )


def _error(state: RetryCallState) -> TransientError:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, TransientError)  # nothing else is tried again
    return error
