"""What calls of modules returned, for as long as a later run may ask for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quantdrift.allocation.prefix.calls import Call
from quantdrift.allocation.prefix.plan import Plan
from quantdrift.allocation.prefix.values import Hollow, Poison, hollowed, mapped, n_bytes

__all__ = ["Memory"]


class Memory:
    """What the calls of one run returned, by the number of the call.

    Attributes:
        sizes: bytes of all whose data was ever kept, or would have been.
    """

    def __init__(self, plan: Plan, poison: Poison) -> None:
        self.sizes: dict[int, int] = {}
        self._plan, self._poison = plan, poison
        self._entries: dict[int, Any] = {}
        self._held: dict[int, int] = {}

    @property
    def held(self) -> int:
        """Bytes that are kept now."""
        return sum(self._held.values())

    def has(self, call: Call) -> bool:
        """Whether what a call returned is here."""
        return call.number in self._entries

    def again(self, call: Call) -> Any:
        """What a call returned, in new containers: models fill up what they were given."""

        def filled(tensor: Tensor | Hollow) -> Tensor:
            if isinstance(tensor, Hollow):
                return tensor.filled(self._poison)
            return tensor.clone() if call.volatile else tensor

        return mapped(self._entries[call.number], filled)

    def keep(self, call: Call, output: Any, *, size_only: bool = False) -> None:
        """Keep what a call returned, if a run with a change will ask for it.

        Args:
            call: which has ended.
            output: what it returned.
            size_only: only note how much it would be.
        """
        if not self._plan.keeps(call):
            return
        with_data = self._plan.keeps_data(call)
        if with_data:
            self.sizes[call.number] = n_bytes(output)
        if size_only:
            return
        if with_data:
            self._held[call.number] = self.sizes[call.number]
            output = mapped(output, torch.clone if call.volatile else torch.detach)
        self._entries[call.number] = output if with_data else hollowed(output)

    def move(self, time: int) -> None:
        """Drop what no run asks for that leaves out what has ended by a time."""
        for number in list(self._entries):
            call = self._plan.calls[number]
            if call.kept_until <= time:
                del self._entries[number]
                self._held.pop(number, None)
            elif call.data_until <= time and self._held.pop(number, None) is not None:
                self._entries[number] = hollowed(self._entries[number])

    def branched(self) -> Memory:
        """The same, to go another way from here; what calls returned is shared."""
        other = Memory(self._plan, self._poison)
        other._entries, other._held = dict(self._entries), dict(self._held)
        return other

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self._held.clear()
