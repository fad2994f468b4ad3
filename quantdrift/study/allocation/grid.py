"""Measure the cells of a study on one corpus; answers are kept, so that a study goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantdrift.allocation.criteria.base import Kept
from quantdrift.allocation.first_answers import FirstAnswers
from quantdrift.allocation.for_search import SearchAllocation, allocate_for_search
from quantdrift.allocation.kept import HeldArrays, KeptArrays
from quantdrift.allocation.retrieval_problem import draw_queries
from quantdrift.calibration.sample import draw_sample
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.measurement.embeddings import EmbeddingStore, digest_of, key_of
from quantdrift.measurement.inputs import Inputs, Vectors
from quantdrift.measurement.job import open_pair
from quantdrift.measurement.steps import Job, Settings
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.quantizers import methods_of
from quantdrift.spec import Scheme, Spec
from quantdrift.study.allocation.cells import Cell, CorpusCells
from quantdrift.study.allocation.plan import AllocationPlan, Draw

__all__ = ["study_corpus"]

_VERSION = 1
"""Of what is kept of answers; a change in how they come about makes them void."""


def study_corpus(
    model: str,
    dataset: RetrievalDataset,
    plan: AllocationPlan,
    *,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
) -> CorpusCells:
    """Choose widths by every criterion, round by every quantizer, and see who answers what.

    Answers are looked for among the first documents of each query (`AllocationPlan.depth`).

    Args:
        model: name of it.
        dataset: queries and documents; labels, where there are any, give recall@1 and gold kept.
        plan: the grid.
        settings: batch size.
        store: where embeddings, sensitivities and answers are kept.
        progress: where progress is shown.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.

    Raises:
        QuantDriftError: model, data or a criterion cannot be used.
    """
    for quantizer in plan.quantizers:
        methods_of(plan.rounding(quantizer))  # what cannot be made is said before hours go into it
    spec = Spec(model=model, scheme=plan.rounding(plan.quantizers[0]))
    opened = open_pair(spec, dataset, places=[], device=device, revision=revision)
    job = opened.job(settings, store, progress)
    reference, fingerprint = job.embed_reference()
    pool = _drawn(len(job.queries.ids), plan.held_out)
    answering = _Answering(job, reference, pool, plan, fingerprint)
    chosen = [
        (draw, budget, criterion, _allocated(job, reference, scheme))
        for criterion, budget, draw, scheme in plan.schemes()
    ]
    layers = opened.pair.layers
    n_weights = np.array([layer.weight.numel() for layer in layers], dtype=np.int64)
    low, high, cells = {}, {}, []
    for quantizer in plan.quantizers:
        rounds = answering.by(quantizer)
        low[quantizer] = rounds([plan.low] * len(layers), f"{quantizer}, W{plan.low} throughout")
        high[quantizer] = rounds([plan.high] * len(layers), f"{quantizer}, W{plan.high} throughout")
        for draw, budget, criterion, found in chosen:
            widths = [layer.width for layer in found.allocation.layers]
            cells.append(
                Cell(
                    criterion=criterion,
                    budget=budget,
                    quantizer=quantizer,
                    seed=draw.seed,
                    n_queries=draw.n_queries,
                    widths=np.array(widths, dtype=np.int64),
                    scores=_scores(found, n_weights),
                    first=rounds(widths, f"{quantizer}, {_label(criterion, budget, draw, plan)}"),
                    counted=~np.isin(pool, _calibration(job, draw)),
                )
            )
    return CorpusCells(
        corpus=dataset.name,
        fingerprint=fingerprint,
        query_ids=[job.queries.ids[row] for row in pool.tolist()],
        layers=[layer.name for layer in layers],
        n_weights=n_weights,
        reference=answering.answers.reference,
        low=low,
        high=high,
        relevant=_relevant(dataset, job, pool),
        cells=cells,
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """Answers by widths, from the disk where they are there."""

    arrays: Kept
    make: Callable[[Sequence[int], str], NDArray[np.int64]]

    def __call__(self, widths: Sequence[int], shown: str) -> NDArray[np.int64]:
        name = digest_of(np.array(widths, dtype=np.int64))
        found = self.arrays.get(name)
        if found is None:
            made = self.make(widths, shown)
            self.arrays.put(name, made.astype(np.float64))
            return made
        return found.astype(np.int64)


class _Answering:
    """The queries of one corpus, answered by the model with any widths and any quantizer."""

    def __init__(
        self,
        job: Job,
        reference: tuple[Vectors, Vectors],
        pool: NDArray[np.int64],
        plan: AllocationPlan,
        fingerprint: str,
    ) -> None:
        self._job, self._plan, self._pool, self._fingerprint = job, plan, pool, fingerprint
        self.answers = FirstAnswers(
            job.queries.part(pool),
            job.documents,
            (np.asarray(reference[0])[pool], reference[1]),
            similarity=job.similarity,
            batch_size=job.settings.batch_size,
            depth=plan.depth,
        )

    def by(self, quantizer: str) -> _Kept:
        """Answers by one quantizer, from widths and what to show."""
        scheme = self._plan.rounding(quantizer)
        pair = _pair(self._job, scheme)

        def make(widths: Sequence[int], shown: str) -> NDArray[np.int64]:
            pair.choose(widths)
            if pair.needs_calibration:
                sample = draw_sample(self._job.documents, scheme, self._job.settings.batch_size)
                pair.prepare(sample, root=None, progress=self._job.progress)
            with (
                self._job.progress.stage(shown, self.answers.n_rows) as tell,
                pair.candidate(),
            ):
                return self.answers.now(tell)

        return _Kept(self._arrays(scheme, pair), make)

    def _arrays(self, scheme: Scheme, pair: QuantizedPair) -> Kept:
        job, root = self._job, self._job.store.root
        sides: tuple[Inputs, Inputs] = (job.queries, job.documents)
        if root is None or any(side.key is None for side in sides):
            return HeldArrays()
        return KeptArrays(
            Path(root),
            key_of(
                version=_VERSION,
                weights=self._fingerprint,
                scheme=str(scheme),
                quantizer=pair.describe(),
                inputs=[side.key for side in sides],
                queries=digest_of(self._pool),
                depth=self._plan.depth,
                similarity=str(job.similarity),
                batch_size=job.settings.batch_size,
                runtime=job.pair.runtime,
            ),
        )


def _pair(job: Job, scheme: Scheme) -> QuantizedPair:
    """Another candidate of the same resident model."""
    assert isinstance(job.pair, QuantizedPair)  # as `open_pair` makes it
    return QuantizedPair(job.pair.modules, scheme, name=job.pair.name)


def _allocated(job: Job, reference: tuple[Vectors, Vectors], scheme: Scheme) -> SearchAllocation:
    return allocate_for_search(replace(job, pair=_pair(job, scheme)), reference)


def _drawn(n_queries: int, wanted: int) -> NDArray[np.int64]:
    """Positions of the queries that answers are compared on, ascending; the same in every study."""
    rng = np.random.default_rng([0, 2])  # another stream than those of calibration queries
    chosen = rng.choice(n_queries, size=min(wanted, n_queries), replace=False)
    return np.sort(chosen).astype(np.int64)


def _calibration(job: Job, draw: Draw) -> NDArray[np.int64]:
    """The queries of a draw; also for criteria that do not look at them, so that all are paired."""
    return draw_queries(len(job.queries.ids), wanted=draw.n_queries, seed=draw.seed)


def _scores(found: SearchAllocation, n_weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Loss at the narrowest width per weight, by which layers are ranked."""
    losses = [layer.loss[0] if layer.loss else np.nan for layer in found.allocation.layers]
    scores: NDArray[np.float64] = np.array(losses) / n_weights
    return scores


def _label(criterion: str, budget: float, draw: Draw, plan: AllocationPlan) -> str:
    parts = [f"W{budget:g}+{criterion}"]
    if len(plan.sizes) > 1:
        parts.append(f"{draw.n_queries} queries")
    if len(plan.seeds) > 1:
        parts.append(f"seed {draw.seed}")
    return " ".join(parts)


def _relevant(
    dataset: RetrievalDataset, job: Job, pool: NDArray[np.int64]
) -> list[frozenset[int]] | None:
    """Positions of the relevant documents of every query."""
    if not dataset.qrels:
        return None
    place = {name: row for row, name in enumerate(dataset.document_ids)}
    return [
        frozenset(
            place[name]
            for name, grade in dataset.qrels.get(job.queries.ids[row], {}).items()
            if grade > 0 and name in place
        )
        for row in pool.tolist()
    ]
