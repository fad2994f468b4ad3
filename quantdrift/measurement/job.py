"""Run a spec on a dataset, from loading the model to the finished run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantdrift.calibration.sample import calibration_texts
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.readers import refuse_classifier
from quantdrift.measurement.record import describe_run, now
from quantdrift.measurement.retrieval import Inputs, Settings, measure_retrieval
from quantdrift.measurement.steps import Job
from quantdrift.measurement.text_inputs import text_inputs
from quantdrift.models.full_precision import full_precision, refuse_quantized
from quantdrift.models.sentence_encoder import SentenceEncoder, load_encoder, pick_device
from quantdrift.pair import QuantizedPair
from quantdrift.progress import Progress
from quantdrift.quantizers import methods_of
from quantdrift.runs import Run, check_place, write_run
from quantdrift.scoring import Similarity
from quantdrift.spec import Spec

__all__ = ["Opened", "describe_data", "describe_run", "open_pair", "run_spec"]


def run_spec(
    spec: Spec,
    dataset: RetrievalDataset,
    *,
    out: Path,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
    encoder: SentenceEncoder | None = None,
) -> Run:
    """Measure a pair on a dataset and write the run.

    Args:
        spec: model and scheme.
        dataset: queries, documents and, where there are any, relevance labels.
        out: folder of the run.
        settings: how to measure.
        store: where embeddings are kept.
        progress: where progress is shown.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.
        encoder: the model, where it is loaded already.

    Returns:
        The finished run.

    Raises:
        QuantDriftError: anything that keeps the run from being made; nothing is left behind.
    """
    opened = open_pair(
        spec, dataset, places=[out], device=device, revision=revision, encoder=encoder
    )
    measured = measure_retrieval(
        opened.pair,
        opened.queries,
        opened.documents,
        similarity=opened.similarity,
        settings=settings,
        store=store,
        progress=progress,
        qrels=dataset.qrels or None,
        calibration=opened.calibration,
        dataset=dataset.name,
    )
    record = describe_run(
        spec,
        opened.pair,
        measured,
        settings,
        model=opened.model,
        data=describe_data(dataset),
        similarity=str(opened.similarity),
        started=opened.started,
    )
    return write_run(out, evidence=measured.evidence, record=record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A pair that is loaded, and the data as it takes them.

    Attributes:
        pair: the model; in the reference arm.
        queries: what is searched for.
        documents: what is searched.
        similarity: how the model's embeddings become scores.
        dataset: name of the data.
        calibration: texts of a file that the scheme names, to calibrate on; None for documents.
        model: what is known of where the model came from.
        started: when loading began, ISO 8601.
    """

    pair: QuantizedPair
    queries: Inputs
    documents: Inputs
    similarity: Similarity
    dataset: str
    calibration: Inputs | None
    model: Mapping[str, Any]
    started: str

    def job(self, settings: Settings, store: EmbeddingStore, progress: Progress) -> Job:
        """The steps of a measurement of it.

        Args:
            settings: how to measure.
            store: where embeddings and what was measured of layers are kept.
            progress: where progress is shown.
        """
        return Job(
            pair=self.pair,
            queries=self.queries,
            documents=self.documents,
            similarity=self.similarity,
            settings=settings,
            store=store,
            progress=progress,
            calibration=self.calibration,
            dataset=self.dataset,
        )


def open_pair(
    spec: Spec,
    dataset: RetrievalDataset,
    *,
    places: Iterable[Path],
    device: str | None = None,
    revision: str | None = None,
    encoder: SentenceEncoder | None = None,
) -> Opened:
    """Load a pair for a dataset; everything that can be refused is refused before.

    Args:
        spec: model and scheme.
        dataset: what it will embed.
        places: folders that runs will be written to.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.
        encoder: the model, where it is loaded already.

    Raises:
        QuantDriftError: scheme, model, device or a place cannot be used.
    """
    methods_of(spec.scheme)
    texts = calibration_texts(spec.scheme)
    for place in places:
        check_place(place.absolute())
    started = now()
    if encoder is None:
        source = full_precision(spec.model)
        refuse_classifier(source)
        encoder = load_encoder(source, device=pick_device(device), revision=revision)
    refuse_quantized([encoder.module], spec.model)
    return Opened(
        pair=QuantizedPair([encoder.module], spec.scheme, name=repr(spec.model)),
        queries=text_inputs(encoder, dataset.queries, role="query", ids=dataset.query_ids),
        documents=text_inputs(encoder, dataset.documents, ids=dataset.document_ids),
        similarity=encoder.similarity,
        dataset=dataset.name,
        calibration=None if texts is None else text_inputs(encoder, texts),
        model={
            "canonical": encoder.source.canonical,
            "kind": encoder.source.kind,
            "revision": revision,
        },
        started=started,
    )


def describe_data(dataset: RetrievalDataset) -> dict[str, Any]:
    """What run.json says of a dataset."""
    return {
        "name": dataset.name,
        "split": dataset.split,
        "fingerprint": dataset.fingerprint,
        "n_queries": len(dataset.query_ids),
        "n_documents": len(dataset.document_ids),
        "warnings": list(dataset.warnings),
        "path": None if dataset.path is None else str(dataset.path),
    }
