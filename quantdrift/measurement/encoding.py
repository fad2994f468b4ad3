"""What every measurement does with a pair: stages, embeddings by either arm, calibration.

`steps` puts it together for two sides of a retrieval task, `classification` for labelled inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantdrift.calibration.sample import Sample
from quantdrift.measurement.embeddings import (
    CHUNK_ELSEWHERE,
    EmbeddingStore,
    digest_of,
    key_of,
)
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.measurement.pair import Pair
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.scoring import check_embeddings

__all__ = ["Encoding", "Settings", "same_share"]

PROBE = 2
"""Inputs that are run once with an eye on which layers they reach."""
MANY = 0.1
"""Share of embeddings that are another's from which on it is said."""
FEW = 10
"""Inputs below which it is not: one that is there twice is no sign then."""
LOOKED_AT = 10_000
"""Embeddings at most that are held against each other."""
SAME = 1000
"""Steps of the largest number below which embeddings are the same: batches change last digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a pair is measured.

    Attributes:
        k: ranks kept of either arm.
        batch_size: inputs per forward pass.
        noise_floor: whether to run the reference a second time.
        seed: of the order in which the noise floor is run.
    """

    k: int = 200
    batch_size: int = 32
    noise_floor: bool = True
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """A pair, and how inputs go through it.

    Attributes:
        pair: the model; in the reference arm between steps.
        settings: how.
        store: where embeddings are kept, and layers that were calibrated.
        progress: where progress is shown.
        seconds: time per stage so far.
        notes: what deserves a word of the embeddings so far, one sentence each.
    """

    pair: Pair
    settings: Settings
    store: EmbeddingStore
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, shown: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a stage of `total` steps and note under `name` how long it took."""
        start = time.perf_counter()
        try:
            with self.progress.stage(shown, total) as tell:
                yield tell
        finally:
            self.seconds[name] = round(time.perf_counter() - start, 3)

    def watch(self, side: Inputs) -> None:
        """Run a few inputs with an eye on which layers they reach, where that can be seen."""
        if side.elsewhere:
            return
        with self.pair.observed():
            side.encode(np.arange(min(PROBE, len(side.ids))), self.settings.batch_size)

    def calibrate(self, draw: Callable[[QuantizedPair], Sample]) -> None:
        """Calibrate the candidate, where it needs that.

        Args:
            draw: what it is calibrated on.
        """
        if not self.pair.needs_calibration:
            return
        assert isinstance(self.pair, QuantizedPair)  # no other candidate is made here
        start = time.perf_counter()
        sample = draw(self.pair)
        self.pair.prepare(sample, root=self.store.root, progress=self.progress)
        self.seconds["calibration"] = round(time.perf_counter() - start, 3)

    def vectors(self, side: Inputs, arm: str, weights: str, what: str | None = None) -> Vectors:
        """All embeddings of one side by the arm that is in place.

        Args:
            side: the inputs.
            arm: "reference" or "candidate", for what is shown.
            weights: digest of that arm's weights.
            what: the stage is called, its role if not given.

        Raises:
            ScoreError: an embedding is not finite.
            RunError: no space to keep embeddings.
        """
        name = f"{arm}: {what or f'{side.role} embeddings'}"
        with self.stage(name, name, len(side.ids)) as tell:
            vectors = self.encoded(side, side.order(), weights, self.settings.batch_size, tell)
            check_embeddings(vectors, arm=arm, what=side.role, ids=side.ids)
        share = 0.0 if name.endswith("logits") else same_share(vectors)
        if share >= MANY and len(vectors) >= FEW:
            self.notes.append(
                f"{arm}: {100 * share:.0f} % of the {what or f'{side.role} embeddings'} are the "
                "very same as another's; either inputs are there twice, or the model does not tell "
                "them apart (its tokenizer may be another model's)"
            )
        return vectors

    def encoded(
        self,
        side: Inputs,
        order: NDArray[np.int64],
        weights: str,
        batch_size: int,
        tell: Callable[[int], None],
    ) -> Vectors:
        """All embeddings of one side, put through in an order, from the store where they are."""
        store = self.store if side.key is not None else EmbeddingStore(None)
        return store.get(
            self.key(side, order, weights, batch_size),
            order=order,
            encode=lambda rows: side.encode(rows, batch_size),
            progress=tell,
            chunk=CHUNK_ELSEWHERE if side.elsewhere else None,
        )

    def key(self, side: Inputs, order: NDArray[np.int64], weights: str, batch_size: int) -> str:
        """What the embeddings of one side are kept under: a digest of all that decides them."""
        return key_of(
            weights=weights,
            inputs=side.key,
            role=side.role,
            batch_size=None if side.elsewhere else batch_size,
            order=digest_of(order),
            runtime=None if side.elsewhere else self.pair.runtime,
        )


def same_share(vectors: Vectors) -> float:
    """The share of embeddings that are the very same as one before them, 0 to 1.

    >>> same_share(np.array([[1, 0], [0, 1], [1, 0], [1, 0]], dtype=np.float32))
    0.5

    Args:
        vectors: float32 [n, dim]; of many a part is looked at.
    """
    some = np.asarray(vectors[:: -(-len(vectors) // LOOKED_AT)])
    rounded = np.rint(some / (np.abs(some).max(initial=0) or 1) * SAME)
    return 1 - len({row.tobytes() for row in rounded.astype(np.int16)}) / len(some)
