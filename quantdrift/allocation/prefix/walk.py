"""One run along a plan: what was remembered is returned, what comes new is remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quantdrift.allocation.prefix.calls import Call
from quantdrift.allocation.prefix.memory import Memory
from quantdrift.allocation.prefix.plan import Plan

__all__ = ["FarEnough", "Replay", "Walk"]


class FarEnough(BaseException):
    """Ends a run that nobody needs the end of; no `except Exception` on the way holds it."""


class Replay:
    """Handles the calls of a run: those that had ended by a time are not run again.

    Args:
        plan: of the run.
        memory: has what these calls returned.
        time: of the first use of what was changed.

    Attributes:
        diverged: whether a call came that is not in the plan; nothing is left out from then on.
    """

    def __init__(self, plan: Plan, memory: Memory, time: int) -> None:
        self.diverged = False
        self._memory, self._time = memory, time
        self._siblings: Sequence[Call] = plan.outermost
        self._position = 0
        self._over = False

    def __call__(
        self,
        module: int,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Handle a module's call."""
        call = None if self._over else self._expected(module)
        if call is None:
            return forward(*args, **kwargs)
        if call.end <= self._time and self._memory.has(call):
            self._position += 1
            return self._memory.again(call)
        if self._beyond(call):
            self._over = True
            return forward(*args, **kwargs)
        siblings, position = self._siblings, self._position
        self._siblings, self._position = call.children, 0
        output = forward(*args, **kwargs)
        if not self._over:
            if self._position < len(call.children):
                self._lost()
            self._siblings, self._position = siblings, position + 1
            self._ended(call, output)
        return output

    def _expected(self, module: int) -> Call | None:
        if self._position < len(self._siblings):
            call = self._siblings[self._position]
            if call.module == module:
                return call
        self._lost()
        return None

    def _lost(self) -> None:
        self.diverged = self._over = True

    def _beyond(self, call: Call) -> bool:
        return call.start > self._time

    def _ended(self, call: Call, output: Any) -> None:
        """A call that was run has ended, all as planned."""


class Walk(Replay):
    """The same, and what calls return is remembered.

    Args:
        plan: of the run.
        memory: where to.
        time: of what is there already.
        needed: time up to which to remember in any case.
        room: bytes that may be held when more is remembered than that.
        whole: whether the run shall go to its end.

    Attributes:
        known: time up to which everything is remembered.
        events: the calls of a whole run: module's number at each begin, -1 at each end.
    """

    def __init__(
        self, plan: Plan, memory: Memory, time: int, *, needed: int, room: int, whole: bool
    ) -> None:
        super().__init__(plan, memory, time)
        self.known, self.events = plan.known_until(time), list[int]()
        self._plan, self._needed, self._room, self._whole = plan, needed, room, whole
        self._full = False

    def __call__(
        self,
        module: int,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Handle a module's call."""
        self.events.append(module)
        try:
            return super().__call__(module, forward, args, kwargs)
        finally:
            self.events.append(-1)

    def _beyond(self, call: Call) -> bool:
        return False

    def _ended(self, call: Call, output: Any) -> None:
        if self.diverged:
            return
        self._memory.keep(call, output, size_only=self._full)
        if self._full:
            return
        self.known = self._plan.known_until(call.end)
        if self.known < self._needed:
            return
        if self.known >= self._plan.last or self._memory.held > self._room:
            self._full = True
            if not self._whole:
                raise FarEnough
