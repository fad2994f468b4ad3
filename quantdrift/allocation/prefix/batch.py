"""A batch of which only what comes after a changed weight is run; the rest is remembered.

Everything before the first use of a weight gives the same whatever the weight is. So in a run with
a changed layer, calls of modules that had ended before return what they returned the last time, and
the run begins in earnest where the layer is first used, be it in the middle of a block. Layers are
visited in the order of first use. Then what is remembered moves along with them: what is inside of
a block is forgotten once the block has ended, and a block's output once the next has taken it in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.prefix.calls import Interception
from quantdrift.allocation.prefix.memory import Memory
from quantdrift.allocation.prefix.plan import Plan
from quantdrift.allocation.prefix.values import Poison
from quantdrift.allocation.prefix.walk import FarEnough, Replay, Walk

__all__ = ["Diverged", "Prefix"]

Run = Callable[[], NDArray[np.float32]]


class Diverged(Exception):  # noqa: N818 -- no error: whoever asked runs it all
    """A run made other calls of modules than planned."""


class Prefix:
    """What is remembered of one batch.

    Args:
        interception: the model's modules.
        run: puts the batch through the model.
        plan: of a run with the same calls.
        room: bytes that may be held when more is remembered than what is needed next.
        poison: shared by all batches.
    """

    def __init__(
        self, interception: Interception, run: Run, plan: Plan, *, room: int, poison: Poison
    ) -> None:
        self.plan, self.room = plan, room
        self._interception, self._run = interception, run
        self._memory = Memory(plan, poison)
        self._time, self._known = 0, plan.known_until(0)

    @property
    def peak(self) -> int:
        """Bytes that are needed at most when no more is remembered than what is needed next."""
        return self.plan.peak(self._memory.sizes)

    @property
    def held(self) -> int:
        """Bytes that are remembered now."""
        return self._memory.held

    def first(self) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """A whole run of the unchanged model, remembered as far as there is room.

        Returns:
            What `run` does, and the signature of the calls it made. Where that is not the plan's,
            this batch needs another plan.
        """
        walk = Walk(self.plan, self._memory, 0, needed=0, room=self.room, whole=True)
        with self._interception.by(walk):
            outputs = self._run()
        self._known = walk.known
        if tuple(walk.events) != self.plan.signature:
            self.forget()
        return outputs, tuple(walk.events)

    def move(self, time: int) -> None:
        """Remember all that has ended by a time; the model has to be unchanged.

        Raises:
            Diverged: the run made other calls than planned.
        """
        if time < self._time:
            self.forget()
        if time > self._known:
            walk = Walk(
                self.plan, self._memory, self._time, needed=time, room=self.room, whole=False
            )
            try:
                with self._interception.by(walk):
                    self._run()
            except FarEnough:
                pass
            if walk.diverged or walk.known < time:
                raise Diverged
            self._known = walk.known
        self._time = time
        self._memory.move(time)

    def outputs(self) -> NDArray[np.float32]:
        """What `run` returns, without running what has ended by the time moved to.

        Raises:
            Diverged: the run made other calls than planned before that time.
        """
        replay = Replay(self.plan, self._memory, self._time)
        with self._interception.by(replay):
            outputs = self._run()
        if replay.diverged:
            raise Diverged
        return outputs

    def branched(self) -> Prefix:
        """Another that remembers the same and moves on by itself; nothing is run for it."""
        other = copy.copy(self)
        other._memory = self._memory.branched()
        return other

    def forget(self) -> None:
        """Remember nothing."""
        self._memory.clear()
        self._time, self._known = 0, self.plan.known_until(0)
