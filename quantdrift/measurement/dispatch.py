"""From a pair and data to the measurement that fits both, for whoever lets a user name them.

Labelled inputs are classified, queries and documents searched or, with a shortlist, reranked, and
two models are measured against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from quantdrift.datasets.folder import Dataset
from quantdrift.datasets.labelled import ClassificationDataset
from quantdrift.datasets.shortlist import Shortlist
from quantdrift.measurement.classification_job import run_classification
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.encoding import Settings
from quantdrift.measurement.job import run_spec
from quantdrift.measurement.refusals import check_pair
from quantdrift.measurement.rerank_job import run_reranking
from quantdrift.measurement.versus_job import run_versus
from quantdrift.models.endpoint.encoder import Servers
from quantdrift.models.sentence_encoder import SentenceEncoder
from quantdrift.progress import Progress
from quantdrift.runs import Run
from quantdrift.spec import Spec
from quantdrift.versus import Versus

__all__ = ["measure"]


def measure(
    pair: Spec | Versus,
    dataset: Dataset,
    *,
    out: Path,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
    shortlist: Shortlist | None = None,
    servers: Servers | None = None,
    models: tuple[SentenceEncoder | None, SentenceEncoder | None] = (None, None),
) -> Run:
    """Measure a pair on data of either kind and write the run.

    Args:
        pair: model and scheme, or two models.
        dataset: queries and documents, or labelled inputs.
        out: folder of the run.
        settings: how to measure.
        store: where embeddings are kept.
        progress: where progress is shown.
        device: where models run; the best there is if not given.
        revision: of a hub model.
        shortlist: documents of each query that a cross-encoder ranks again; None to search.
        servers: how servers are asked, where a model is on one.
        models: reference and candidate, as far as they are loaded already.

    Returns:
        The finished run.

    Raises:
        QuantDriftError: anything that keeps the run from being made; nothing is left behind.
    """
    loaded = models != (None, None)
    check_pair(pair, dataset, reranks=shortlist is not None, loaded=loaded)
    job: Callable[..., Run] = partial(run_spec, encoder=models[0])
    if isinstance(dataset, ClassificationDataset):
        job = partial(run_classification, encoder=models[0])
    elif shortlist is not None:
        job = partial(run_reranking, shortlist=shortlist)
    elif isinstance(pair, Versus):
        job = partial(run_versus, servers=servers, models=models)
    return job(
        pair,
        dataset,
        out=out,
        settings=settings,
        store=store,
        progress=progress,
        device=device,
        revision=revision,
    )
