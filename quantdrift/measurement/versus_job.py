"""Run two models on a dataset: a reference, and a candidate that is quantized already."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.errors import UnsupportedError
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.job import describe_data, describe_run
from quantdrift.measurement.retrieval import Inputs, Settings, measure_retrieval
from quantdrift.measurement.text_inputs import text_inputs
from quantdrift.models.checkpoint import Checkpoint, find_checkpoint, refuse_missing
from quantdrift.models.checkpoint_loading import load_checkpoint
from quantdrift.models.resolve import ModelSource, resolve
from quantdrift.models.sentence_encoder import Role, SentenceEncoder, load_encoder, pick_device
from quantdrift.models.two_models import TwoModels
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
) -> Run:
    """Measure a stored candidate against its reference on a dataset and write the run.

    The reference is embedded as in any other run of it, so its embeddings are shared.

    Args:
        versus: reference and candidate.
        dataset: queries, documents and, where there are any, relevance labels.
        out: folder of the run.
        settings: how to measure.
        store: where embeddings are kept.
        progress: where progress is shown.
        device: where the models run; the best there is if not given.
        revision: of a reference on the hub.

    Returns:
        The finished run.

    Raises:
        QuantDriftError: anything that keeps the run from being made; nothing is left behind.
    """
    check_place(out.absolute())
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    where = pick_device(device)
    source = resolve(versus.reference)
    checkpoint = find_checkpoint(versus.candidate)
    refuse_missing(checkpoint)
    _check_reference(source, checkpoint)
    reference = load_encoder(source, device=where, revision=revision)
    _refuse_quantized(versus, reference)
    candidate = load_checkpoint(checkpoint, reference, device=where)
    models = TwoModels(reference, candidate)
    measured = measure_retrieval(
        models,
        _inputs(models, reference, "query", dataset.query_ids, dataset.queries),
        _inputs(models, reference, "document", dataset.document_ids, dataset.documents),
        similarity=reference.similarity,
        settings=settings,
        store=store,
        progress=progress,
        qrels=dataset.qrels or None,
    )
    data = describe_data(dataset)
    data["warnings"] = [*data["warnings"], *candidate.notes]
    record = describe_run(
        versus,
        models,
        measured,
        settings,
        model={
            "canonical": source.canonical,
            "kind": source.kind,
            "revision": revision,
            "candidate": {
                **checkpoint.identify(),
                "fingerprint": models.candidate_fingerprint(),
            },
        },
        data=data,
        similarity=str(reference.similarity),
        started=started,
    )
    return write_run(out, evidence=measured.evidence, record=record)


def _check_reference(source: ModelSource, checkpoint: Checkpoint) -> None:
    """Refuse what can be refused before anything is loaded.

    Raises:
        UnsupportedError: both are one model, or the reference is quantized itself.
    """
    same_folder = source.kind != "hub" and Path(source.location).resolve() == checkpoint.folder
    same_id = source.kind == checkpoint.kind == "hub" and source.canonical == checkpoint.canonical
    if checkpoint.gguf is None and (same_folder or same_id):
        raise UnsupportedError(
            f"{source.name} and {checkpoint.name} are one model ({checkpoint.canonical}); expected "
            "a reference and another model. Its own noise is measured in every run (noise floor)"
        )
    if source.kind == "local":
        method = find_checkpoint(source.name).method
        if method != "none":
            raise UnsupportedError(_quantized(source.name, method))


def _refuse_quantized(versus: Versus, reference: SentenceEncoder) -> None:
    """Refuse a reference on the hub that turns out to be quantized.

    Raises:
        UnsupportedError: it is.
    """
    config = getattr(getattr(reference.model[0], "auto_model", None), "config", None)
    if getattr(config, "quantization_config", None):
        raise UnsupportedError(_quantized(versus.reference, "see its config.json"))


def _quantized(name: str, method: str) -> str:
    return (
        f"the reference {name} is quantized itself ({method}); expected a model at full precision "
        "first and the quantized one after vs"
    )


def _inputs(
    models: TwoModels,
    reference: SentenceEncoder,
    role: Role,
    ids: tuple[str, ...],
    texts: tuple[str, ...],
) -> Inputs:
    """One side, by whichever model is in place; the key is the reference's, as in other runs."""
    return replace(
        text_inputs(reference, texts, role=role, ids=ids),
        encode=lambda rows, batch_size: models.encode(
            [texts[row] for row in rows.tolist()], role, batch_size
        ),
    )
