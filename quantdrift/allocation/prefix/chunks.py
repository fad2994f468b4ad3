"""Batches whose intermediate results are remembered together, gone through layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Setting
from quantdrift.allocation.prefix.batches import BatchRun, Opening, rounded, same_bits
from quantdrift.allocation.prefix.check import check

__all__ = ["Chunk", "chunks_of"]


class Chunk:
    """Batches of one kind.

    Attributes:
        runs: the batches.
        rows: of the problem, in the order of `outputs`.
    """

    def __init__(self, runs: Sequence[BatchRun], setting: Setting) -> None:
        self.runs, self._setting = runs, setting
        self.rows = np.concatenate([run.batch.rows for run in runs])

    def try_out(self, opening: Opening, room: int) -> None:
        """Make sure, on the batch that takes least, that remembering changes nothing.

        Args:
            opening: knows what was tried before.
            room: bytes that each batch may hold from now on.
        """
        kept = {id(run): run.prefix for run in self.runs if run.prefix is not None}
        if not kept:
            return
        least = min((run for run in self.runs if run.prefix), key=lambda run: kept[id(run)].peak)
        plan, setting = kept[id(least)].plan, self._setting
        if plan.signature not in opening.tried:
            trial = BatchRun(least.batch, least.reference, kept[id(least)].branched())
            opening.tried[plan.signature] = check(
                trial,
                setting.layers,
                bits=setting.widths[0],
                group_size=setting.group_size,
                seed=setting.seed,
            )
        wrong = opening.tried[plan.signature]
        for run in self.runs:
            if wrong is not None:
                run.give_up(wrong)
            elif run.prefix is not None:
                run.prefix.room = room

    def outputs(
        self, wanted: Sequence[tuple[int, int]], step: Callable[[], None]
    ) -> Iterator[tuple[tuple[int, int], NDArray[np.float32]]]:
        """What these batches give with each layer rounded.

        Args:
            wanted: numbers of layer and width; those that no batch reaches are passed over.
            step: called for each.

        Yields:
            Numbers of layer and width, and outputs, float32 [n_rows, dim]. The model is unchanged
            then. If in the end what is remembered has changed, all come once more.
        """
        yield from self._outputs(wanted, step)
        if not self._are_still_right():
            yield from self._outputs(wanted, lambda: None)

    def _outputs(
        self, wanted: Sequence[tuple[int, int]], step: Callable[[], None]
    ) -> Iterator[tuple[tuple[int, int], NDArray[np.float32]]]:
        order = sorted(wanted, key=lambda one: (self._first_use(one[0]), one))
        for number, group in groupby(order, key=lambda one: one[0]):
            columns = [column for _, column in group]
            if any(run.reaches(number) for run in self.runs):
                found = self._rounded(number, columns)
                for column, outputs in zip(columns, found, strict=True):
                    yield (number, column), outputs
                    step()
            else:
                for _ in columns:
                    step()

    def _rounded(self, number: int, columns: Sequence[int]) -> list[NDArray[np.float32]]:
        setting, found = self._setting, []
        for run in self.runs:
            if run.reaches(number):
                run.before(number)
        with rounded(setting.layers[number], setting.group_size) as to_width:
            for column in columns:
                to_width(setting.widths[column])
                parts = [
                    run.outputs() if run.reaches(number) else run.reference for run in self.runs
                ]
                found.append(np.concatenate(parts))
        return found

    def _first_use(self, number: int) -> int:
        times = [run.uses[number] for run in self.runs if run.uses and number in run.uses]
        return min(times, default=0)

    def _are_still_right(self) -> bool:
        """Run what is left of each batch with the unchanged model."""
        right = True
        for run in self.runs:
            if run.prefix is not None and not same_bits(run.outputs(), run.reference):
                run.give_up("what was remembered of it has changed")
                right = False
        return right


def chunks_of(runs: Sequence[BatchRun], setting: Setting, memory: int) -> list[Chunk]:
    """Batches that make the same calls, as many together as fit in memory.

    In these the layers are first used in one order, so that what is remembered only moves on.

    Args:
        runs: all batches, run once.
        setting: of the chunks.
        memory: bytes.
    """
    kinds: dict[tuple[int, ...], list[list[BatchRun]]] = {}
    filled: dict[tuple[int, ...], int] = {}
    for run in runs:
        kind = () if run.prefix is None else run.prefix.plan.signature
        size = 0 if run.prefix is None else run.prefix.peak
        if kind not in kinds or filled[kind] + size > memory:
            kinds.setdefault(kind, []).append([])
            filled[kind] = 0
        kinds[kind][-1].append(run)
        filled[kind] += size
    chunks = [Chunk(part, setting) for parts in kinds.values() for part in parts]
    for chunk in chunks[1:]:  # their time comes later
        for run in chunk.runs:
            if run.prefix is not None:
                run.prefix.forget()
    return chunks
