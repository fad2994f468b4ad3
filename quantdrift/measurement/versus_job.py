"""Run two models on a dataset: a reference, and a candidate that is not made here."""

from __future__ import annotations

from pathlib import Path

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.job import describe_data
from quantdrift.measurement.record import describe_run, now
from quantdrift.measurement.retrieval import Settings, measure_retrieval
from quantdrift.measurement.versus_checkpoint import open_checkpoint
from quantdrift.measurement.versus_server import open_server
from quantdrift.models.endpoint.encoder import Servers
from quantdrift.models.sentence_encoder import SentenceEncoder, pick_device
from quantdrift.progress import Progress
from quantdrift.runs import Run, check_place, write_run
from quantdrift.versus import Versus

__all__ = ["run_versus"]


def run_versus(
    versus: Versus,
    dataset: RetrievalDataset,
    *,
    out: Path,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
    servers: Servers | None = None,
    models: tuple[SentenceEncoder | None, SentenceEncoder | None] = (None, None),
) -> Run:
    """Measure a candidate against its reference on a dataset and write the run.

    Args:
        versus: reference and candidate.
        dataset: queries, documents and, where there are any, relevance labels.
        out: folder of the run.
        settings: how to measure.
        store: where embeddings are kept.
        progress: where progress is shown.
        device: where the models run; the best there is if not given.
        revision: of a reference on the hub.
        servers: how servers are asked, where a model is on one.
        models: reference and candidate, as far as they are loaded already.

    Returns:
        The finished run.

    Raises:
        QuantDriftError: anything that keeps the run from being made; nothing is left behind.
    """
    check_place(out.absolute())
    started = now()
    where = pick_device(device)
    if versus.on_server and models == (None, None):
        opened = open_server(
            versus,
            dataset,
            servers=servers or Servers(),
            root=store.root,
            device=where,
            revision=revision,
        )
    else:
        opened = open_checkpoint(versus, dataset, device=where, revision=revision, models=models)
    measured = measure_retrieval(
        opened.pair,
        opened.queries,
        opened.documents,
        similarity=opened.similarity,
        settings=settings,
        store=store,
        progress=progress,
        qrels=dataset.qrels or None,
    )
    data = describe_data(dataset)
    data["warnings"] = [*data["warnings"], *opened.notes]
    record = describe_run(
        versus,
        opened.pair,
        measured,
        settings,
        model=opened.model,
        data=data,
        similarity=str(opened.similarity),
        started=started,
    )
    return write_run(out, evidence=measured.evidence, record=record)
