"""Run a spec on nested parts of a dataset's corpus, one ordinary run folder for each size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.corpus_size.sweep import measure_sizes, nested_subsets
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.measurement.assembly import Qrels
from quantdrift.measurement.embeddings import EmbeddingStore, digest_of, key_of
from quantdrift.measurement.job import describe_data, describe_run, open_pair
from quantdrift.measurement.steps import Settings
from quantdrift.progress import Progress
from quantdrift.runs import Run, write_run
from quantdrift.spec import Spec

__all__ = ["folder_of", "relevant_inside", "run_sizes"]


def run_sizes(
    spec: Spec,
    dataset: RetrievalDataset,
    *,
    out: Path,
    sizes: Sequence[int],
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
) -> list[Run]:
    """Measure a pair at every corpus size and write a run for each.

    Args:
        spec: model and scheme.
        dataset: queries, the whole corpus and, where there are any, relevance labels.
        out: folder that the runs are written into, `docs-00250` and so on.
        sizes: numbers of documents, rising.
        settings: how to measure; its seed is also that of the subsets, and its noise floor is
            measured at the largest size only.
        store: where embeddings are kept.
        progress: where progress is shown.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.

    Returns:
        The finished runs, smallest first. At the size of the whole corpus evidence and data
        fingerprint are those of `run_spec`.

    Raises:
        QuantDriftError: anything that keeps the runs from being made. They are written when all are
            measured, each in one step, so what is there is whole.
    """
    n_documents = len(dataset.document_ids)
    subsets = nested_subsets(n_documents, sizes, seed=settings.seed)
    places = [out / folder_of(size, n_documents) for size in sizes]
    opened = open_pair(spec, dataset, places=places, device=device, revision=revision)
    job = opened.job(settings, store, progress)
    runs = []
    for place, subset, measured in zip(
        places, subsets, measure_sizes(job, subsets, qrels=dataset.qrels or None), strict=True
    ):
        record = describe_run(
            spec,
            opened.pair,
            measured,
            settings,
            model=opened.model,
            data=_describe_part(dataset, subset, settings.seed),
            similarity=str(opened.similarity),
            started=opened.started,
        )
        record["settings"]["noise_floor"] = measured.evidence.noise is not None
        runs.append(write_run(place, evidence=measured.evidence, record=record))
    return runs


def folder_of(size: int, n_documents: int) -> str:
    """The name of a size's run folder; names sort as sizes do.

    >>> folder_of(250, 1400)
    'docs-00250'
    """
    return f"docs-{size:0{max(5, len(str(n_documents)))}}"


def relevant_inside(dataset: RetrievalDataset, subset: NDArray[np.int64]) -> dict[str, int]:
    """Number of queries by how many of their relevant documents are in a part of the corpus.

    Counted are relevant documents that the whole corpus holds; a query without any does not count.

    Args:
        dataset: queries, the whole corpus and its labels.
        subset: positions of the documents of the part.

    Returns:
        Counts by "all", "some" and "none".
    """
    known = set(dataset.document_ids)
    inside = {dataset.document_ids[position] for position in subset.tolist()}
    counts = {"all": 0, "some": 0, "none": 0}
    for query in dataset.query_ids:
        relevant = _relevant(dataset.qrels, query) & known
        if relevant:
            there = len(relevant & inside)
            share = "all" if there == len(relevant) else "some" if there else "none"
            counts[share] += 1
    return counts


def _relevant(qrels: Qrels, query: str) -> set[str]:
    return {document for document, grade in qrels.get(query, {}).items() if grade > 0}


def _describe_part(
    dataset: RetrievalDataset, subset: NDArray[np.int64], seed: int
) -> dict[str, Any]:
    """What run.json says of a part of a corpus; parts differ in fingerprint as corpora do."""
    data = describe_data(dataset)
    whole, n_documents = data["fingerprint"], data["n_documents"]
    data["corpus_size"] = {
        "seed": seed,
        "n": len(subset),
        "of": n_documents,
        "corpus": data["name"],
        "corpus_fingerprint": whole,
        "relevant_inside": relevant_inside(dataset, subset) if dataset.qrels else None,
    }
    data["n_documents"] = len(subset)
    if len(subset) < n_documents:
        data["name"] = f"{dataset.name}, {len(subset)} documents"
        # which documents, not how they were drawn: the same seed may draw others elsewhere
        data["fingerprint"] = key_of(corpus=whole, documents=digest_of(subset))
    return data
