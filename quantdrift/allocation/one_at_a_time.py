"""Each layer rounded by itself, all others as they are: what the model then puts out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Kept, Setting
from quantdrift.allocation.prefix.batches import Opening, naive_runs
from quantdrift.allocation.prefix.calls import Interception
from quantdrift.allocation.prefix.chunks import Chunk, chunks_of
from quantdrift.allocation.problem import GapProblem

__all__ = ["MEMORY", "Rounded", "one_at_a_time"]

MEMORY = 2 * 2**30
"""Bytes of a model's intermediate results that are remembered, about."""

Place = tuple[int, int]
"""Numbers of a layer and of a width."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rounded:
    """What the model puts out with one layer rounded.

    Attributes:
        place: numbers of the layer and of the width.
        outputs: float32 [n_rows, dim]; None where no input reaches the layer.
        reference: what the unchanged model puts out, float32 [n_rows, dim].
    """

    place: Place
    outputs: NDArray[np.float32] | None
    reference: NDArray[np.float32]


def one_at_a_time(
    setting: Setting,
    problem: GapProblem,
    wanted: Sequence[Place],
    *,
    name: Callable[[Place], str],
    notes: list[str],
    cached: bool = True,
    memory: int = MEMORY,
) -> Iterator[Rounded]:
    """Round layers one at a time and run the problem's batches again.

    What comes before the layer is not computed again (see `Prefix`), and the outputs are those of
    whole runs, bit for bit; where that is not so, whole runs are made. Batches that do not use a
    layer are not run for it. Batches of several kinds, or whose intermediate results do not fit in
    memory together, are gone through chunk by chunk, and results come with the last one.

    Args:
        setting: layers, widths, progress, and where the chunks' results are kept meanwhile.
        problem: the batches.
        wanted: layers and widths.
        name: of what is kept for a layer and a width.
        notes: gets why something was run naively.
        cached: False makes whole runs, of every layer, for comparison.
        memory: bytes to remember.

    Yields:
        Every wanted layer and width, and again where the first result was wrong. The model is
        unchanged then.
    """
    with setting.progress.stage("quantizing layers one at a time", len(wanted)) as tell:
        opening = Opening(
            Interception(setting.modules), setting.layers, room=memory // len(problem.batches)
        )
        if cached:
            runs = [opening.open(batch) for batch in problem.batches]
        else:
            runs = naive_runs(problem.batches)
        reference = np.empty((problem.n_rows, runs[0].reference.shape[1]), dtype=np.float32)
        for run in runs:
            reference[run.batch.rows] = run.reference
        chunks = chunks_of(runs, setting, memory)
        step = _Steps(tell, len(wanted), len(chunks))
        parts = _Parts(setting.kept if len(chunks) > 1 else None, name)
        unreached = set(wanted)
        for chunk in chunks:
            chunk.try_out(opening, memory // len(chunk.runs))
            missing = [place for place in wanted if not parts.has(place, chunk.rows)]
            step.many(len(wanted) - len(missing))
            for place, found in chunk.outputs(missing, step):
                parts.put(place, chunk.rows, found)
                if len(chunks) == 1:
                    unreached.discard(place)
                    yield parts.joined(reference, place, chunks)
            for note in dict.fromkeys(run.note for run in chunk.runs if run.note):
                notes += [note] if note not in notes else []
        for place in wanted if len(chunks) > 1 else sorted(unreached):
            yield parts.joined(reference, place, chunks)


class _Parts:
    """The outputs of chunks, until those of the last one are there."""

    def __init__(self, kept: Kept | None, name: Callable[[Place], str]) -> None:
        self._kept, self._name = kept, name
        self._here: dict[str, NDArray[np.float32]] = {}

    def has(self, place: Place, rows: NDArray[np.int64]) -> bool:
        return self._get(self._named(place, rows)) is not None

    def put(self, place: Place, rows: NDArray[np.int64], outputs: NDArray[np.float32]) -> None:
        name = self._named(place, rows)
        if self._kept is None:
            self._here[name] = outputs
        else:
            self._kept.put(name, outputs.astype(np.float64))

    def joined(
        self, reference: NDArray[np.float32], place: Place, chunks: Sequence[Chunk]
    ) -> Rounded:
        """The outputs of all rows; they are not kept any longer."""
        outputs = None
        for chunk in chunks:
            name = self._named(place, chunk.rows)
            found = self._get(name)
            if found is None:
                continue
            outputs = reference.copy() if outputs is None else outputs
            outputs[chunk.rows] = found
            self._here.pop(name, None)
            if self._kept is not None:
                self._kept.put(name, np.zeros(0))  # makes room
        return Rounded(place=place, outputs=outputs, reference=reference)

    def _get(self, name: str) -> NDArray[np.floating] | None:
        found = self._here.get(name) if self._kept is None else self._kept.get(name)
        return found if found is not None and found.size else None

    def _named(self, place: Place, rows: NDArray[np.int64]) -> str:
        which = hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()[:12]
        return f"{self._name(place)}-rows-{which}"


class _Steps:
    """Tells of steps when every chunk has made them."""

    def __init__(self, tell: Callable[[int], None], total: int, n_chunks: int) -> None:
        self._tell, self._n_chunks = tell, n_chunks
        self._done, self._told, self._total = 0, 0, total

    def __call__(self) -> None:
        self.many(1)

    def many(self, steps: int) -> None:
        self._done += steps
        told = min(self._total, self._done // self._n_chunks)
        self._tell(told - self._told)
        self._told = told
