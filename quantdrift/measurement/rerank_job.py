"""Run a spec on the shortlists of a search, from loading the cross-encoder to the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantdrift.calibration.sample import calibration_texts
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.datasets.shortlist import Shortlist
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.encoding import Settings
from quantdrift.measurement.job import describe_data
from quantdrift.measurement.record import describe_run, now
from quantdrift.measurement.rerank import RerankJob, measure_reranking
from quantdrift.measurement.rerank_pairs import Pairs, asked_for, pair_inputs, pairs_of
from quantdrift.models.cross_encoder import load_cross_encoder
from quantdrift.models.full_precision import full_precision, refuse_quantized
from quantdrift.models.sentence_encoder import pick_device
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.quantizers import methods_of
from quantdrift.runs import Run, check_place, write_run
from quantdrift.spec import Spec

__all__ = ["run_reranking"]


def run_reranking(
    spec: Spec,
    dataset: RetrievalDataset,
    *,
    shortlist: Shortlist,
    out: Path,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
) -> Run:
    """Measure a quantized cross-encoder on a fixed shortlist and write the run.

    Args:
        spec: cross-encoder and scheme.
        dataset: queries, documents and, where there are any, relevance labels.
        shortlist: of the same data; both arms score its pairs.
        out: folder of the run.
        settings: how to measure.
        store: where scores are kept.
        progress: where progress is shown.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.

    Returns:
        The finished run.

    Raises:
        QuantDriftError: anything that keeps the run from being made; nothing is left behind.
    """
    methods_of(spec.scheme)
    texts = calibration_texts(spec.scheme)
    check_place(out.absolute())
    started = now()
    source = full_precision(spec.model)
    model = load_cross_encoder(source, device=pick_device(device), revision=revision)
    refuse_quantized([model.module], spec.model)
    text_of = dict(zip(dataset.query_ids, dataset.queries, strict=True))
    pairs = pairs_of(shortlist.documents, dataset.document_ids)
    queries = [text_of[name] for name in pairs.query_ids]
    job = RerankJob(
        pair=QuantizedPair([model.module], spec.scheme, name=repr(spec.model)),
        settings=settings,
        store=store,
        progress=progress,
        pairs=pairs,
        inputs=pair_inputs(model, pairs, queries, dataset.documents),
        calibration=asked_for(model, dataset.documents if texts is None else texts),
        dataset=dataset.name,
    )
    measured = measure_reranking(job, qrels=dataset.qrels or None)
    record = describe_run(
        spec,
        job.pair,
        measured,
        settings,
        model={"canonical": source.canonical, "kind": source.kind, "revision": revision},
        data=_described(dataset, shortlist, pairs),
        reading={
            "reading": "reranking",
            "shortlist": {"top": shortlist.top, "digest": shortlist.digest},
            "max_length": model.max_length,
        },
        started=started,
    )
    return write_run(out, evidence=measured.evidence, record=record)


def _described(dataset: RetrievalDataset, shortlist: Shortlist, pairs: Pairs) -> dict[str, Any]:
    """What run.json says of the data and of where the shortlist came from."""
    said = describe_data(dataset)
    return {
        **said,
        "n_queries": len(pairs.query_ids),
        "n_pairs": len(pairs),
        "shortlist": {**shortlist.record, **_found(dataset, shortlist)},
        "warnings": [*said["warnings"], *shortlist.notes],
    }


def _found(dataset: RetrievalDataset, shortlist: Shortlist) -> Mapping[str, int]:
    """How many relevant documents there are, and how many of them the shortlists hold."""
    if not dataset.qrels:
        return {}
    relevant = {
        query: {name for name, grade in dataset.qrels.get(query, {}).items() if grade > 0}
        for query in shortlist.documents
    }
    return {
        "n_relevant": sum(map(len, relevant.values())),
        "n_relevant_found": sum(
            len(names.intersection(shortlist.documents[query])) for query, names in relevant.items()
        ),
    }
