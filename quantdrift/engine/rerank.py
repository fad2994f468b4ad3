"""Reranking by both arms: every pair of a fixed shortlist is scored twice, and evidence comes out.

Only the cross-encoder is quantized. Whatever is not in a query's shortlist cannot be found by
either arm, and epsilon is exact over what is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quantdrift.engine.calibration.sample import draw_sample
from quantdrift.engine.encoders.cross_encoder import CrossEncoderModel
from quantdrift.engine.inputs import Inputs
from quantdrift.engine.pair import QuantizedPair
from quantdrift.engine.refusals import refuse_for_reranking
from quantdrift.engine.scoring.state import ScoreState
from quantdrift.engine.scoring.streamed import score_ragged
from quantdrift.engine.search import (
    NOISE_DEPTH,
    Encoding,
    Measured,
    Qrels,
    assemble,
    noise_of_scores,
    not_calibrated_on,
    other_batch_size,
)
from quantdrift.engine.store import digest_of
from quantdrift.errors import DataError, ScoreError
from quantdrift.evidence import Noise

# --- rerank pairs ---------------------------------------------------------------------------------

OPENING = 12
"""Words of a document that stand for a query, where a model reads both together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """The query-document pairs of all shortlists, those of a query beside each other.

    Attributes:
        query_ids: of the queries that have a shortlist, in order.
        document_ids: of the whole corpus, by position.
        query_rows: int64 [n_pairs], numbers in `query_ids`.
        document_rows: int64 [n_pairs], positions in `document_ids`, increasing within a query.
        starts: int64 [n_queries + 1], where the pairs of each query begin.
    """

    query_ids: tuple[str, ...]
    document_ids: tuple[str, ...]
    query_rows: NDArray[np.int64]
    document_rows: NDArray[np.int64]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.query_rows)

    def ids(self) -> list[str]:
        """Names of the pairs, for messages."""
        return [
            f"{self.query_ids[query]} with {self.document_ids[document]}"
            for query, document in zip(self.query_rows.tolist(), self.document_rows.tolist(), strict=True)
        ]

    def numbers(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which pairs are of these documents.

        Args:
            positions: int64 [n_queries, depth], documents of each query's shortlist; -1 for none.

        Returns:
            int64 [n_queries, depth], numbers of pairs; -1 for none.
        """
        found = np.full(positions.shape, -1, dtype=np.int64)
        for row, wanted in enumerate(positions):
            start, stop = self.starts[row : row + 2]
            there = wanted >= 0
            own = self.document_rows[start:stop]
            found[row, there] = start + np.searchsorted(own, wanted[there])
        return found


def pairs_of(shortlist: Mapping[str, Sequence[str]], document_ids: Sequence[str]) -> Pairs:
    """The pairs of shortlists.

    Args:
        shortlist: query id to document ids, each at most once; its order is that of the queries.
        document_ids: of the whole corpus, all of the shortlists' among them.
    """
    position = {name: row for row, name in enumerate(document_ids)}
    rows = [np.sort(np.array([position[name] for name in names], dtype=np.int64)) for names in shortlist.values()]
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    return Pairs(
        query_ids=tuple(shortlist),
        document_ids=tuple(document_ids),
        query_rows=np.repeat(np.arange(len(rows), dtype=np.int64), counts),
        document_rows=np.concatenate([np.empty(0, dtype=np.int64), *rows]),
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


def pair_inputs(model: CrossEncoderModel, pairs: Pairs, queries: Sequence[str], documents: Sequence[str]) -> Inputs:
    """Pairs as inputs, whose one number is their score.

    Args:
        model: what scores them.
        pairs: which.
        queries: texts of the pairs' queries, as numbered there.
        documents: texts of the whole corpus.
    """
    query_rows, document_rows = pairs.query_rows, pairs.document_rows

    def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        chosen = zip(query_rows[rows].tolist(), document_rows[rows].tolist(), strict=True)
        texts = [(queries[query], documents[document]) for query, document in chosen]
        return model.encode(texts, "pair", batch_size)

    lengths = [np.array([len(t) for t in side], dtype=np.int64) for side in (queries, documents)]
    return Inputs(
        role="pair",
        ids=pairs.ids(),
        encode=encode,
        key={
            "queries": digest_of(queries),
            "documents": digest_of(documents[row] for row in np.unique(document_rows).tolist()),
            "pairs": [digest_of(query_rows), digest_of(document_rows)],
            **model.key("pair"),
        },
        lengths=lengths[0][query_rows] + lengths[1][document_rows],
    )


def asked_for(model: CrossEncoderModel, documents: Sequence[str]) -> Inputs:
    """Documents, each asked for by its own first words: to calibrate on without using a query.

    Args:
        model: what reads them.
        documents: texts.
    """
    kept = tuple(documents)

    def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        texts = [kept[row] for row in rows.tolist()]
        return model.encode([(opening_of(text), text) for text in texts], "document", batch_size)

    return Inputs(
        role="document",
        ids=tuple(str(number) for number in range(len(kept))),
        encode=encode,
        key={"texts": digest_of(kept), "opening": OPENING, **model.key("document")},
        lengths=np.array([len(text) for text in kept], dtype=np.int64),
    )


def opening_of(text: str) -> str:
    """The first words of a document, in place of a query.

    >>> opening_of("Of mice  and men")
    'Of mice and men'

    Args:
        text: of the document.

    Returns:
        Never empty: a full stop where there is no word.
    """
    return " ".join(text.split()[:OPENING]) or "."


# --- rerank ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankJob(Encoding):
    """The steps of a measurement of a cross-encoder.

    Attributes:
        pairs: query and document of every pair.
        inputs: the same as the model takes them; each gives one number, its score.
        calibration: what the candidate is calibrated on, where it needs that; no query among it.
        dataset: name of the data.
    """

    pairs: Pairs
    inputs: Inputs
    calibration: Inputs
    dataset: str | None = None

    def scores(self, arm: str, weights: str) -> NDArray[np.float32]:
        """The scores of all pairs by the arm that is in place, float32 [n_pairs].

        Args:
            arm: "reference" or "candidate".
            weights: digest of that arm's weights.

        Raises:
            ScoreError: a score is not finite.
            RunError: no space to keep them.
        """
        size, name = self.settings.batch_size, f"{arm}: pair scores"
        with self.stage(name, name, len(self.pairs)) as tell:
            found = self.encoded(self.inputs, self.inputs.order(), weights, size, tell)
        scores = np.asarray(found)[:, 0]
        bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            raise ScoreError(
                f"the {arm} model's score of query {self.inputs.ids[bad[0]]} is NaN or infinite; "
                "expected finite numbers. Check that pair, or run the model in float32"
            )
        return scores

    def prepare(self) -> None:
        """Calibrate the candidate, where it needs that."""
        self.calibrate(lambda pair: draw_sample(self.calibration, pair.scheme, self.settings.batch_size))

    def state(self, reference: NDArray[np.float32], candidate: NDArray[np.float32]) -> ScoreState:
        """The state of all queries against their own shortlists.

        Args:
            reference: float32 [n_pairs].
            candidate: float32 [n_pairs].
        """
        starts = self.pairs.starts.tolist()
        rows = [(self.pairs.document_rows[a:b], reference[a:b], candidate[a:b]) for a, b in pairwise(starts)]
        return score_ragged(rows, k=self.settings.k)

    def noise(self, state: ScoreState, reference: NDArray[np.float32], weights: str) -> Noise:
        """Score again, in another order and batch size, what could be first; compare.

        Args:
            state: of both arms.
            reference: float32 [n_pairs].
            weights: digest of the reference's weights.
        """
        positions = state.reference_top()[0][:, :NOISE_DEPTH]
        contenders = self.pairs.numbers(positions)
        needed = np.unique(contenders[contenders >= 0])
        order = np.random.default_rng(self.settings.seed).permutation(len(needed))
        size = other_batch_size(self.settings.batch_size)
        with self.stage("noise floor", "noise floor: first documents", len(needed)) as tell:
            found = self.encoded(self.inputs.part(needed), order, weights, size, tell)
        again = np.asarray(found)[:, 0]
        places = np.searchsorted(needed, contenders.clip(min=0))
        return noise_of_scores(
            reference[contenders.clip(min=0)].astype(np.float64),
            again[places.clip(max=len(needed) - 1)].astype(np.float64),
            positions,
        )


def measure_reranking(job: RerankJob, *, qrels: Qrels | None = None) -> Measured:
    """Measure what the pair's scheme does to the reranked order of every shortlist.

    Args:
        job: the pair, and what it scores; the pair is left in the reference arm.
        qrels: relevance labels. A relevant document outside of a shortlist counts in the ideal
            ranking and is found by no arm, as when the whole search is judged.

    Raises:
        UnsupportedError: the scheme has no meaning for a reranker.
        DataError: there are no pairs, or layers were measured on all queries.
        ScoreError: a score is not finite.
        RunError: no space to keep scores.
    """
    pair, pairs = job.pair, job.pairs
    assert isinstance(pair, QuantizedPair)  # two models are refused where they are named
    refuse_for_reranking(pair.scheme)
    if not len(pairs):
        raise DataError("nothing to rerank: the shortlists hold no document")
    rest = not_calibrated_on(pair, pairs.query_ids, job.dataset)  # refuses before hours go into it
    fingerprint = pair.fingerprint
    job.watch(job.inputs)
    reference = job.scores("reference", fingerprint)
    job.prepare()
    with pair.candidate():
        weights = pair.candidate_fingerprint()
        candidate = job.scores("candidate", weights)
    state = job.state(reference, candidate)
    evidence = assemble(
        state,
        input_ids=pairs.query_ids,
        item_ids=pairs.document_ids,
        qrels=qrels,
        noise=job.noise(state, reference, fingerprint) if job.settings.noise_floor else None,
    )
    left_out = len(pairs.query_ids) - len(rest)
    return Measured(
        evidence=evidence.part(rest) if left_out else evidence,
        left_out=left_out,
        state=state,
        fingerprint=fingerprint,
        candidate_fingerprint=weights,
        seconds=job.seconds,
    )
