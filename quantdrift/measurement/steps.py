"""The steps of a measurement: both sides by both arms, their scores, the noise floor.

`measure_retrieval` takes them once over a whole corpus, `measure_sizes` over parts of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.for_search import allocate_for_search
from quantdrift.calibration.sample import draw_sample
from quantdrift.errors import DataError
from quantdrift.evidence import Noise
from quantdrift.measurement.embeddings import EmbeddingStore, digest_of, key_of
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.measurement.noise import compare_rankings, other_batch_size
from quantdrift.measurement.pair import Pair
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.scoring import ScoreState, Similarity, check_embeddings, score_embeddings

__all__ = ["Arms", "Job", "Settings"]

PROBE = 2
"""Inputs that are run once with an eye on which layers they reach."""

NOISE_DEPTH = 10
"""Ranks of the reference that are embedded again: numeric noise swaps neighbours, not strangers."""


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
class Arms:
    """The embeddings of a pair.

    Attributes:
        reference: of the queries [n_queries, dim] and the documents [n_docs, dim].
        candidate: likewise; with a `+query` scheme its documents are the reference's own object.
        fingerprint: digest of the reference's weights.
    """

    reference: tuple[Any, Any]
    candidate: tuple[Any, Any]
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The steps of a measurement, for whoever puts them together in another way.

    Attributes:
        pair: the model; in the reference arm between steps.
        queries: what is searched for.
        documents: what is searched.
        similarity: how embeddings become scores.
        settings: how.
        store: where embeddings are kept, and layers that were calibrated.
        progress: where progress is shown.
        calibration: what the candidate is calibrated on, where it needs that; the documents if not
            given.
        excluded: per query one document position that does not count, or -1.
        dataset: name of the data, where it has one.
        seconds: time per stage so far.
    """

    pair: Pair
    queries: Inputs
    documents: Inputs
    similarity: Similarity
    settings: Settings
    store: EmbeddingStore
    progress: Progress
    calibration: Inputs | None = None
    excluded: NDArray[np.int64] | None = None
    dataset: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, shown: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a stage of `total` steps and note under `name` how long it took."""
        start = time.perf_counter()
        try:
            with self.progress.stage(shown, total) as tell:
                yield tell
        finally:
            self.seconds[name] = round(time.perf_counter() - start, 3)

    def embed(self) -> Arms:
        """Both sides by both arms.

        Raises:
            DataError: there are no queries or no documents.
            ScoreError: an embedding is not finite.
            RunError: no space to keep embeddings.
        """
        (queries, documents), fingerprint = self.embed_reference()
        self._choose_widths(queries, documents)
        self._prepare()
        with self.pair.candidate():
            weights = self.pair.candidate_fingerprint()
            low_queries = self._embed(self.queries, "candidate", weights)
            low_documents = documents
            if not self.pair.query_only:
                low_documents = self._embed(self.documents, "candidate", weights)
        return Arms(
            reference=(queries, documents),
            candidate=(low_queries, low_documents),
            fingerprint=fingerprint,
        )

    def embed_reference(self) -> tuple[tuple[Vectors, Vectors], str]:
        """Queries and documents by the reference, and the digest of its weights.

        Raises:
            As `embed`.
        """
        sides = (self.queries, self.documents)
        if not all(len(side.ids) for side in sides):
            raise DataError(
                f"nothing to rank: {len(sides[0].ids)} queries and {len(sides[1].ids)} documents; "
                "expected at least one of each"
            )
        fingerprint = self.pair.fingerprint
        for side in sides:
            with self.pair.observed():
                side.encode(np.arange(min(PROBE, len(side.ids))), self.settings.batch_size)
        queries, documents = (self._embed(side, "reference", fingerprint) for side in sides)
        return (queries, documents), fingerprint

    def _choose_widths(self, queries: Vectors, documents: Vectors) -> None:
        """Give the candidate's layers their widths, where a criterion chooses them."""
        if not (isinstance(self.pair, QuantizedPair) and self.pair.needs_widths):
            return
        start = time.perf_counter()
        allocation = allocate_for_search(self, (queries, documents)).allocation
        widths = allocation.width_of
        chosen = [widths[layer.name] for layer in self.pair.layers]
        self.pair.choose(chosen, by=allocation, for_all_data=False)
        self.seconds["allocation"] = round(time.perf_counter() - start, 3)

    def _prepare(self) -> None:
        """Calibrate the candidate, where it needs that."""
        if not self.pair.needs_calibration:
            return
        assert isinstance(self.pair, QuantizedPair)  # no other candidate is made here
        start = time.perf_counter()
        inputs = self.documents if self.calibration is None else self.calibration
        sample = draw_sample(inputs, self.pair.scheme, self.settings.batch_size)
        self.pair.prepare(sample, root=self.store.root, progress=self.progress)
        self.seconds["calibration"] = round(time.perf_counter() - start, 3)

    def score(self, arms: Arms, *, tell: Callable[[int], None]) -> ScoreState:
        """The state of all queries against the documents that the arms hold.

        Raises:
            ScoreError: a score is not finite.
        """
        (queries, documents), (low_queries, low_documents) = arms.reference, arms.candidate
        return score_embeddings(
            queries,
            low_queries,
            documents,
            low_documents,
            similarity=self.similarity,
            k=self.settings.k,
            excluded=self.excluded,
            device=self.pair.device if self.pair.device.type == "cuda" else "cpu",
            progress=tell,
        )

    def _embed(self, side: Inputs, arm: str, weights: str) -> Vectors:
        """All embeddings of one side by the arm that is in place."""
        name = f"{arm}: {side.role} embeddings"
        with self.stage(name, name, len(side.ids)) as tell:
            vectors = self._get(side, side.order(), weights, self.settings.batch_size, tell)
            check_embeddings(vectors, arm=arm, what=side.role, ids=side.ids)
        return vectors

    def noise(self, state: ScoreState, arms: Arms) -> Noise:
        """Embed again, in another order and batch size, what could be first; compare."""
        rng = np.random.default_rng(self.settings.seed)
        size = other_batch_size(self.settings.batch_size)
        contenders = state.reference_top()[0][:, :NOISE_DEPTH]
        needed = np.unique(contenders[contenders >= 0])
        rerun = [(self.queries, np.arange(len(self.queries.ids)))]
        if not self.pair.query_only:  # the index is fixed there, so it has no noise
            rerun.append((self.documents, needed))
        total = sum(len(rows) for _, rows in rerun)
        queries, documents = arms.reference
        again = []
        with self.stage("noise floor", "noise floor: first documents", total) as tell:
            for side, rows in rerun:
                order = rng.permutation(len(rows))
                again.append(self._get(side.part(rows), order, arms.fingerprint, size, tell))
            if len(again) == 1:
                again.append(documents[needed])
            return compare_rankings(
                (queries, documents[needed]),
                (again[0], again[1]),
                np.where(contenders >= 0, np.searchsorted(needed, contenders), -1),
                self.similarity,
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
