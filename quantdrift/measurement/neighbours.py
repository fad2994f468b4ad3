"""Self-retrieval: every input searches the others of its own part, itself left out.

It is no deployed system but a control: the embeddings are those that classes are read from, so only
how they are read differs. Source: paper, appendix "Image self-retrieval", and its table of the
contrast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quantdrift.errors import DataError
from quantdrift.evidence import Evidence
from quantdrift.measurement.assembly import assemble
from quantdrift.measurement.classification import LabelledJob, OneSide
from quantdrift.measurement.noise import compare_rankings
from quantdrift.measurement.retrieval import not_calibrated_on
from quantdrift.measurement.steps import NOISE_DEPTH
from quantdrift.scoring import Similarity, score_embeddings

__all__ = ["LEAST", "SIMILARITY", "Neighbours", "check_size", "measure_neighbours"]

SIMILARITY = Similarity.COSINE
LEAST = 3
"""Inputs: itself, a first and a runner-up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Neighbours:
    """What self-retrieval gave.

    Attributes:
        evidence: the per-input record, without inputs that layers were measured on.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
        left_out: number of inputs that layers were measured on.
        seconds: time per stage.
        notes: what deserves a word of the embeddings, one sentence each.
    """

    evidence: Evidence
    fingerprint: str
    left_out: int
    seconds: Mapping[str, float]
    notes: tuple[str, ...]
    candidate_fingerprint: str | None = None


def check_size(n: int, name: str) -> None:
    """Refuse data of which no input has a first neighbour and a runner-up.

    Args:
        n: inputs.
        name: of the data.

    Raises:
        DataError: there are fewer than three.
    """
    if n < LEAST:
        raise DataError(
            f"{name} has {n} inputs to search among; expected at least {LEAST}, so that each has a "
            "nearest neighbour and a runner-up"
        )


def measure_neighbours(job: LabelledJob, side: OneSide) -> Neighbours:
    """The evidence of nearest neighbours by cosine, every input ranking all others.

    Args:
        job: what the embeddings came from.
        side: embeddings of the evaluated inputs by both arms.

    Raises:
        DataError: there are too few inputs.
        ScoreError: a score is not finite.
    """
    ids = job.test.ids
    check_size(len(ids), str(job.dataset))
    with job.stage("self-retrieval", "ranking the neighbours", len(ids)) as tell:
        state = score_embeddings(
            side.reference,
            side.candidate,
            side.reference,
            side.candidate,
            similarity=SIMILARITY,
            k=job.settings.k,
            excluded=np.arange(len(ids)),
            device=job.pair.device if job.pair.device.type == "cuda" else "cpu",
            progress=tell,
        )
    noise = None
    if side.again is not None:
        noise = compare_rankings(
            (side.reference, side.reference),
            (side.again, side.again),
            state.reference_top()[0][:, :NOISE_DEPTH],
            SIMILARITY,
        )
    evidence = assemble(state, input_ids=ids, item_ids=ids, noise=noise)
    rest = not_calibrated_on(job.pair, ids, job.dataset)
    left_out = len(ids) - len(rest)
    return Neighbours(
        evidence=evidence.part(rest) if left_out else evidence,
        fingerprint=side.fingerprint,
        candidate_fingerprint=side.candidate_fingerprint,
        left_out=left_out,
        seconds=dict(job.seconds),
        notes=tuple(job.notes),
    )
