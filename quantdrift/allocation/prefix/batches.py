"""The batches of a problem, each with what is remembered of it, and naive where that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from quantdrift.allocation.prefix.batch import Diverged, Prefix
from quantdrift.allocation.prefix.calls import Interception
from quantdrift.allocation.prefix.plan import Plan
from quantdrift.allocation.prefix.values import Poison
from quantdrift.allocation.prefix.watch import observe
from quantdrift.allocation.problem import Batch
from quantdrift.models.layers import LinearLayer
from quantdrift.quantizers.rtn import RoundToNearest

__all__ = ["BatchRun", "Opening", "naive_runs", "rounded", "same_bits"]


class BatchRun:
    """One batch, run with the model as it is.

    Attributes:
        batch: rows, and how to run them.
        reference: what the unchanged model gives, float32 [n_batch, dim].
        prefix: what is remembered of it; None where it is run naively.
        uses: layer's number to the time of its first use; None if that is not known.
        note: why it is run naively.
    """

    def __init__(
        self, batch: Batch, reference: NDArray[np.float32], prefix: Prefix | None, note: str = ""
    ) -> None:
        self.batch, self.reference, self.prefix, self.note = batch, reference, prefix, note
        self.uses = None if prefix is None else prefix.plan.first_use

    def reaches(self, layer: int) -> bool:
        """Whether its outputs can depend on a layer."""
        return self.uses is None or layer in self.uses

    def before(self, layer: int) -> None:
        """Remember what comes before a layer; the model has to be unchanged."""
        if self.prefix is None or self.uses is None:
            return
        try:
            with torch.no_grad():
                self.prefix.move(self.uses[layer])
        except Diverged:
            self.give_up("its modules are called in another order from run to run")

    def outputs(self) -> NDArray[np.float32]:
        """What the model gives where it was changed in that layer, float32 [n_batch, dim]."""
        if self.prefix is not None:
            try:
                with torch.no_grad():
                    outputs = self.prefix.outputs()
            except Diverged:
                self.give_up("its modules are called in another order from run to run")
            else:
                if not np.isnan(outputs).any():
                    return outputs
                whole = self.naive()
                if not np.isnan(whole).any():
                    self.give_up("it looks into results that no operation was seen to look into")
                return whole
        return self.naive()

    def naive(self) -> NDArray[np.float32]:
        """The same by a whole run."""
        with torch.no_grad():
            return self.batch.run()

    def give_up(self, note: str) -> None:
        """From now on run it naively."""
        if self.prefix is not None:
            self.prefix.forget()
        self.prefix, self.note = None, note


class Opening:
    """Runs each batch for the first time, and says what can be remembered of it.

    Args:
        interception: the model's modules.
        layers: that will be changed.
        room: bytes that a batch may hold when more is remembered than what is needed next.

    Attributes:
        tried: by signature, what is wrong with remembering in runs of a kind, None for nothing.
    """

    def __init__(
        self, interception: Interception, layers: Sequence[LinearLayer], *, room: int
    ) -> None:
        self.tried: dict[tuple[int, ...], str | None] = {}
        self._interception, self._layers, self._room = interception, layers, room
        # Which experts a batch goes to is its own matter, though it calls the same modules.
        self._alike = all(layer.expert is None for layer in layers)
        self._plans: dict[tuple[int, ...], Plan] = {}
        self._latest: Plan | None = None
        self._poison: Poison = {}

    def open(self, batch: Batch) -> BatchRun:
        """Run a batch with the unchanged model.

        Most batches make the same calls, so the last plan is tried first.
        """
        plan = self._latest if self._alike else None
        try:
            with torch.no_grad():
                for _ in range(2):
                    plan = plan or observe(self._interception, self._layers, batch.run)
                    prefix = self.prefix(batch, plan)
                    reference, signature = prefix.first()
                    if signature == plan.signature:
                        self._plans[signature] = self._latest = plan
                        return BatchRun(batch, reference, prefix)
                    plan = self._plans.get(signature) if self._alike else None
        except Exception as error:
            note = f"it cannot be observed ({type(error).__name__}: {error})"
        else:
            note = "its modules are called in another order from run to run"
        with torch.no_grad():
            return BatchRun(batch, batch.run(), None, note)

    def prefix(self, batch: Batch, plan: Plan) -> Prefix:
        """An empty memory for a batch."""
        return Prefix(self._interception, batch.run, plan, room=self._room, poison=self._poison)


def naive_runs(batches: Sequence[Batch]) -> list[BatchRun]:
    """Every batch run naively, first with the unchanged model."""
    with torch.no_grad():
        return [BatchRun(batch, batch.run(), None) for batch in batches]


@contextmanager
def rounded(layer: LinearLayer, group_size: int | None) -> Iterator[Callable[[int], None]]:
    """Inside, a layer's weight is what it is rounded to; then it is as it was, bit for bit.

    Yields:
        Called with a width, rounds to that width.
    """
    original = layer.weight.clone()

    def to_width(bits: int) -> None:
        quantized = RoundToNearest(bits=bits, group_size=group_size).quantize(original)
        layer.weight.copy_(quantized.dequantize(original.dtype))

    try:
        yield to_width
    finally:
        layer.weight.copy_(original)


def same_bits(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether two results are the same, bit for bit."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()
