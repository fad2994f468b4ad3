"""What of a run need not be computed again, for every time at which a weight is first used."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from quantdrift.allocation.prefix.calls import NEVER, Call

__all__ = ["Plan", "signature"]


class Plan:
    """The calls of a run and when it first uses which weight.

    Where the weight of a layer is first used at time t, calls that have ended by t give the same
    whatever the weight is. Of these only the outermost matter, and of what they returned only what
    is looked into by code that runs again.

    Attributes:
        outermost: calls that are made in no other.
        calls: all, by number.
        first_use: layer's number to the time; layers that the run does not use are not in it.
    """

    def __init__(
        self, *, outermost: Sequence[Call], calls: Sequence[Call], first_use: Mapping[int, int]
    ) -> None:
        self.outermost, self.calls, self.first_use = outermost, calls, first_use
        self.signature = signature(calls)
        self._times = sorted(set(first_use.values()))
        self._ends = sorted(call.end for call in calls)

    @property
    def last(self) -> int:
        """Time of the last first use; 0 if no layer is used."""
        return self._times[-1] if self._times else 0

    def next_use(self, call: Call) -> int:
        """The first time, once a call has ended, that a weight is first used at."""
        found = bisect_left(self._times, call.end)
        return self._times[found] if found < len(self._times) else NEVER

    def keeps(self, call: Call) -> bool:
        """Whether a run that leaves something out ever asks for what the call returned."""
        return call.skippable and self.next_use(call) < call.kept_until

    def keeps_data(self, call: Call) -> bool:
        """Whether it also looks into it."""
        return self.keeps(call) and self.next_use(call) < call.data_until

    def known_until(self, end: int) -> int:
        """The last time at which no more calls have ended than by the end of one."""
        behind = bisect_right(self._ends, end)
        return self._ends[behind] - 1 if behind < len(self._ends) else NEVER

    def peak(self, sizes: Mapping[int, int]) -> int:
        """Most bytes that are needed at once when layers are visited in the order of first use.

        Args:
            sizes: call's number to the bytes that it returned, of those whose data is kept.
        """
        steps: list[tuple[int, int]] = []
        for number, size in sizes.items():
            call = self.calls[number]
            steps += [(call.end, size), (min(call.data_until, call.kept_until), -size)]
        most = now = 0
        for _, step in sorted(steps):
            now += step
            most = max(most, now)
        return most


def signature(calls: Sequence[Call]) -> tuple[int, ...]:
    """Which modules a run called, in which order and nesting; equal for runs of one kind."""
    events = [(call.start, call.module) for call in calls]
    events += [(call.end, -1) for call in calls]
    return tuple(module for _, module in sorted(events))
