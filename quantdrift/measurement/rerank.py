"""Reranking by both arms: every pair of a fixed shortlist is scored twice, and evidence comes out.

Only the cross-encoder is quantized. Whatever is not in a query's shortlist cannot be found by
either arm, and epsilon is exact over what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quantdrift.calibration.sample import draw_sample
from quantdrift.errors import DataError, ScoreError
from quantdrift.evidence import Noise
from quantdrift.measurement.assembly import Qrels, assemble
from quantdrift.measurement.encoding import Encoding
from quantdrift.measurement.inputs import Inputs
from quantdrift.measurement.noise import noise_of_scores, other_batch_size
from quantdrift.measurement.refusals import refuse_for_reranking
from quantdrift.measurement.rerank_pairs import Pairs
from quantdrift.measurement.retrieval import Measured, not_calibrated_on
from quantdrift.measurement.steps import NOISE_DEPTH
from quantdrift.pair import QuantizedPair
from quantdrift.scoring import ScoreState, score_ragged

__all__ = ["RerankJob", "measure_reranking"]


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
        self.calibrate(
            lambda pair: draw_sample(self.calibration, pair.scheme, self.settings.batch_size)
        )

    def state(self, reference: NDArray[np.float32], candidate: NDArray[np.float32]) -> ScoreState:
        """The state of all queries against their own shortlists.

        Args:
            reference: float32 [n_pairs].
            candidate: float32 [n_pairs].
        """
        starts = self.pairs.starts.tolist()
        rows = [
            (self.pairs.document_rows[a:b], reference[a:b], candidate[a:b])
            for a, b in pairwise(starts)
        ]
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
