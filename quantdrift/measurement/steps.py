"""The steps of a measurement: both sides by both arms, their scores, the noise floor.

`measure_retrieval` takes them once over a whole corpus, `measure_sizes` over parts of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.for_search import allocate_for_search
from quantdrift.calibration.sample import draw_sample
from quantdrift.errors import DataError
from quantdrift.evidence import Noise
from quantdrift.measurement.encoding import Encoding, Settings
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.measurement.noise import compare_rankings, other_batch_size
from quantdrift.pair import QuantizedPair
from quantdrift.scoring import ScoreState, Similarity, score_embeddings

__all__ = ["Arms", "Job", "Settings"]

NOISE_DEPTH = 10
"""Ranks of the reference that are embedded again: numeric noise swaps neighbours, not strangers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """The embeddings of a pair.

    Attributes:
        reference: of the queries [n_queries, dim] and the documents [n_docs, dim].
        candidate: likewise; with a `+query` scheme its documents are the reference's own object.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
    """

    reference: tuple[Any, Any]
    candidate: tuple[Any, Any]
    fingerprint: str
    candidate_fingerprint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Encoding):
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

    queries: Inputs
    documents: Inputs
    similarity: Similarity
    calibration: Inputs | None = None
    excluded: NDArray[np.int64] | None = None
    dataset: str | None = None

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
            low_queries = self.vectors(self.queries.of_candidate, "candidate", weights)
            low_documents = documents
            if not self.pair.query_only:
                low_documents = self.vectors(self.documents.of_candidate, "candidate", weights)
        return Arms(
            reference=(queries, documents),
            candidate=(low_queries, low_documents),
            fingerprint=fingerprint,
            candidate_fingerprint=weights,
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
            self.watch(side)
        queries, documents = (self.vectors(side, "reference", fingerprint) for side in sides)
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
        inputs = self.documents if self.calibration is None else self.calibration
        self.calibrate(lambda pair: draw_sample(inputs, pair.scheme, self.settings.batch_size))

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
                again.append(self.encoded(side.part(rows), order, arms.fingerprint, size, tell))
            if len(again) == 1:
                again.append(documents[needed])
            return compare_rankings(
                (queries, documents[needed]),
                (again[0], again[1]),
                np.where(contenders >= 0, np.searchsorted(needed, contenders), -1),
                self.similarity,
            )
