"""The job itself: embed with both arms, score, and measure the noise floor.

It knows neither files nor harnesses: what is encoded comes as `Inputs`, what comes out is evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import DataError
from quantdrift.evidence import Evidence
from quantdrift.measurement.assembly import Qrels, assemble
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.inputs import Inputs
from quantdrift.measurement.pair import Pair
from quantdrift.measurement.steps import Job, Settings
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.scoring import ScoreState, Similarity

__all__ = ["Inputs", "Measured", "Settings", "measure_retrieval", "not_calibrated_on"]


@dataclass(slots=True, kw_only=True)
class Measured:
    """What a measurement gave.

    Attributes:
        evidence: the per-input record, without inputs that layers were measured on.
        state: the scores it came from, of all inputs, k ranks deep.
        seconds: time per stage.
        notes: what deserves a word of the embeddings, one sentence each.
        fingerprint: digest of the reference's weights.
        candidate_fingerprint: digest of the candidate; None if it was not taken.
        left_out: number of inputs that layers were measured on.
    """

    evidence: Evidence
    state: ScoreState
    fingerprint: str
    candidate_fingerprint: str | None = None
    left_out: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def measure_retrieval(
    pair: Pair,
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
    calibration: Inputs | None = None,
    dataset: str | None = None,
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
        calibration: what the candidate is calibrated on, where it needs that; the documents if not
            given.
        dataset: name of the data, for what is stored of it.

    Raises:
        DataError: there are no queries or no documents, or all queries are those that a stored
            allocation was measured on.
        ScoreError: an embedding is not finite.
        RunError: no space to keep embeddings.
    """
    if isinstance(pair, QuantizedPair) and not pair.needs_widths:
        not_calibrated_on(pair, queries.ids, dataset)  # refuses before hours go into it
    job = Job(
        pair=pair,
        queries=queries,
        documents=documents,
        similarity=similarity,
        settings=settings,
        store=store,
        progress=progress,
        calibration=calibration,
        excluded=excluded,
        dataset=dataset,
    )
    arms = job.embed()
    with job.stage("scoring", "scoring both arms", len(documents.ids)) as tell:
        state = job.score(arms, tell=tell)
    evidence = assemble(
        state,
        input_ids=queries.ids,
        item_ids=documents.ids,
        qrels=qrels,
        noise=job.noise(state, arms) if settings.noise_floor else None,
        depth=depth,
    )
    rest = not_calibrated_on(pair, queries.ids, dataset)
    return Measured(
        evidence=evidence if len(rest) == len(queries.ids) else evidence.part(rest),
        left_out=len(queries.ids) - len(rest),
        state=state,
        fingerprint=arms.fingerprint,
        candidate_fingerprint=arms.candidate_fingerprint,
        seconds=job.seconds,
        notes=job.notes,
    )


def not_calibrated_on(
    pair: Pair, ids: Sequence[str], dataset: str | None = None
) -> NDArray[np.int64]:
    """Positions of the queries that no layer was measured on; rates are over these.

    Which data an allocation of a file was made on is known by the name of the data, else by those
    of its inputs: if all of them are here, these are left out.

    Args:
        pair: with its widths.
        ids: of all queries.
        dataset: name of the data.

    Raises:
        DataError: layers were measured on every one of them.
    """
    allocation = pair.allocation if isinstance(pair, QuantizedPair) else None
    if allocation is None or not allocation.input_ids:
        return np.arange(len(ids), dtype=np.int64)
    measured = set(allocation.input_ids)
    same = dataset is not None and dataset == allocation.dataset
    if not same and not measured.issubset(ids):
        return np.arange(len(ids), dtype=np.int64)
    rows = [row for row, name in enumerate(ids) if name not in measured]
    if not rows and len(ids):
        raise DataError(
            f"the widths of {allocation.model} were chosen on these {len(ids)} queries, "
            "and rates are over others; expected more queries than the allocation was measured on"
        )
    return np.array(rows, dtype=np.int64)
