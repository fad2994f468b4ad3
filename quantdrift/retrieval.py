"""The job itself: embed with both arms, score, and measure the noise floor.

It knows neither files nor harnesses: what is encoded comes as `Inputs`, what comes out is evidence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantdrift.assembly import Qrels, assemble
from quantdrift.embeddings import EmbeddingStore, digest_of, key_of
from quantdrift.errors import DataError
from quantdrift.evidence import Evidence, Noise
from quantdrift.inputs import Inputs, Vectors
from quantdrift.noise import compare_rankings, other_batch_size
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.scoring import ScoreState, Similarity, check_embeddings, score_embeddings

__all__ = ["Inputs", "Measured", "Settings", "measure_retrieval"]

PROBE = 2
"""Inputs that are run once with an eye on which layers they reach."""


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


@dataclass(slots=True, kw_only=True)
class Measured:
    """What a measurement gave.

    Attributes:
        evidence: the per-input record.
        state: the scores it came from, k ranks deep.
        seconds: time per stage.
        fingerprint: digest of the reference's weights.
    """

    evidence: Evidence
    state: ScoreState
    fingerprint: str
    seconds: dict[str, float] = field(default_factory=dict)


def measure_retrieval(
    pair: QuantizedPair,
    queries: Inputs,
    documents: Inputs,
    *,
    similarity: Similarity,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    qrels: Qrels | None = None,
    excluded: NDArray[np.int64] | None = None,
    depth: int | None = None,
) -> Measured:
    """Measure what the pair's scheme does to the ranking of every query.

    Args:
        pair: the model; in the reference arm, and left so.
        queries: what is searched for.
        documents: what is searched. With a `+query` scheme they are embedded by the reference only.
        similarity: how embeddings become scores.
        settings: how.
        store: where embeddings are kept.
        progress: where progress is shown.
        qrels: relevance labels.
        excluded: per query one document position that does not count, or -1.
        depth: ranks to keep in the evidence, `settings.k` if not given.

    Raises:
        DataError: there are no queries or no documents.
        ScoreError: an embedding is not finite.
        RunError: no space to keep embeddings.
    """
    if not len(queries.ids) or not len(documents.ids):
        raise DataError(
            f"nothing to rank: {len(queries.ids)} queries and {len(documents.ids)} documents; "
            "expected at least one of each"
        )
    seconds: dict[str, float] = {}
    fingerprint = pair.fingerprint
    job = _Job(pair, settings, store, progress, seconds)
    for side in (queries, documents):
        with pair.observed():
            side.encode(np.arange(min(PROBE, len(side.ids))), settings.batch_size)
    reference = [job.embed(side, "reference", fingerprint) for side in (queries, documents)]
    with pair.candidate():
        weights = pair.candidate_fingerprint()
        candidate = [job.embed(queries, "candidate", weights)]
        if pair.scheme.query_only:
            candidate.append(reference[1])
        else:
            candidate.append(job.embed(documents, "candidate", weights))
    with (
        _timed(seconds, "scoring"),
        progress.stage("scoring both arms", len(documents.ids)) as tell,
    ):
        state = score_embeddings(
            reference[0],
            candidate[0],
            reference[1],
            candidate[1],
            similarity=similarity,
            k=settings.k,
            excluded=excluded,
            device=pair.device if pair.device.type == "cuda" else "cpu",
            progress=tell,
        )
    noise = None
    if settings.noise_floor:
        noise = job.noise(state, (queries, documents), reference, similarity, fingerprint)
    evidence = assemble(
        state,
        input_ids=queries.ids,
        item_ids=documents.ids,
        qrels=qrels,
        noise=noise,
        depth=depth,
    )
    return Measured(evidence=evidence, state=state, fingerprint=fingerprint, seconds=seconds)


@dataclass(frozen=True, slots=True)
class _Job:
    pair: QuantizedPair
    settings: Settings
    store: EmbeddingStore
    progress: Progress
    seconds: dict[str, float]

    def embed(self, side: Inputs, arm: str, weights: str) -> Vectors:
        """All embeddings of one side by the arm that is in place."""
        name = f"{arm}: {side.role} embeddings"
        size = self.settings.batch_size
        with _timed(self.seconds, name), self.progress.stage(name, len(side.ids)) as tell:
            vectors = self._get(side, side.order(), weights, size, tell)
            check_embeddings(vectors, arm=arm, what=side.role, ids=side.ids)
        return vectors

    def noise(
        self,
        state: ScoreState,
        sides: tuple[Inputs, Inputs],
        reference: Sequence[Vectors],
        similarity: Similarity,
        weights: str,
    ) -> Noise:
        """Embed again, in another order and batch size, what could be first; compare."""
        rng = np.random.default_rng(self.settings.seed)
        size = other_batch_size(self.settings.batch_size)
        contenders = state.reference_top()[0][:, :NOISE_DEPTH]
        needed = np.unique(contenders[contenders >= 0])
        rerun = [(sides[0], np.arange(len(sides[0].ids)))]
        if not self.pair.scheme.query_only:  # the index is fixed there, so it has no noise
            rerun.append((sides[1], needed))
        total = sum(len(rows) for _, rows in rerun)
        again = []
        with (
            _timed(self.seconds, "noise floor"),
            self.progress.stage("noise floor: reference again", total) as tell,
        ):
            for side, rows in rerun:
                part = side.part(rows)
                again.append(self._get(part, rng.permutation(len(rows)), weights, size, tell))
            if len(again) == 1:
                again.append(reference[1][needed])
            return compare_rankings(
                (reference[0], reference[1][needed]),
                (again[0], again[1]),
                np.where(contenders >= 0, np.searchsorted(needed, contenders), -1),
                similarity,
            )

    def _get(
        self,
        side: Inputs,
        order: NDArray[np.int64],
        weights: str,
        batch_size: int,
        tell: Callable[[int], None],
    ) -> Vectors:
        store = self.store if side.key is not None else EmbeddingStore(None)
        key = key_of(
            weights=weights,
            inputs=side.key,
            role=side.role,
            batch_size=batch_size,
            order=digest_of(order),
            runtime=self.pair.runtime,
        )
        return store.get(
            key, order=order, encode=lambda rows: side.encode(rows, batch_size), progress=tell
        )


NOISE_DEPTH = 10
"""Ranks of the reference that are embedded again: numeric noise swaps neighbours, not strangers."""


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = round(time.perf_counter() - start, 3)
