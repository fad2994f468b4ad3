"""Run a spec on classification data, from loading the model to the finished run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quantdrift.datasets.labelled import ClassificationDataset
from quantdrift.errors import DataError
from quantdrift.measurement.class_readings import by_logits, by_probe
from quantdrift.measurement.classification import LabelledJob, measure_classes
from quantdrift.measurement.embeddings import EmbeddingStore
from quantdrift.measurement.encoding import Settings
from quantdrift.measurement.readers import Reader, check_scheme, load_reader
from quantdrift.measurement.record import describe_run, now
from quantdrift.models.sentence_encoder import SentenceEncoder
from quantdrift.progress import Progress
from quantdrift.runs import Run, check_place, write_run
from quantdrift.spec import Spec

__all__ = ["describe_labelled", "labelled_job", "probe_labels", "run_classification"]


def run_classification(
    spec: Spec,
    dataset: ClassificationDataset,
    *,
    out: Path,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
    device: str | None = None,
    revision: str | None = None,
    encoder: SentenceEncoder | None = None,
) -> Run:
    """Measure which classes a scheme changes and write the run.

    Args:
        spec: model and scheme; a classifier, or an embedding model, of which a probe makes one.
        dataset: labelled inputs.
        out: folder of the run.
        settings: how to measure.
        store: where embeddings, logits and probes are kept.
        progress: where progress is shown.
        device: where the model runs; the best there is if not given.
        revision: of a hub model.
        encoder: the model, where it is an embedding model that is loaded already.

    Returns:
        The finished run.

    Raises:
        QuantDriftError: anything that keeps the run from being made; nothing is left behind.
    """
    check_scheme(spec, dataset.kind)
    check_place(out.absolute())
    started = now()
    reader = load_reader(spec, dataset.kind, device=device, revision=revision, encoder=encoder)
    job = labelled_job(reader, spec, dataset, settings=settings, store=store, progress=progress)
    if reader.classes is None:
        reading = by_probe(job.probe(probe_labels(dataset, spec.model)))
    else:
        reading = by_logits(reader.classes)
    measured = measure_classes(job, job.run(reading), reading, labels=dataset.test.labels)
    record = describe_run(
        spec,
        job.pair,
        measured,
        settings,
        model=reader.model,
        data=describe_labelled(dataset, len(measured.reading.classes), measured.notes),
        reading=reading.record,
        started=started,
    )
    return write_run(out, evidence=measured.evidence, record=record, probe=reading.probe)


def labelled_job(
    reader: Reader,
    spec: Spec,
    dataset: ClassificationDataset,
    *,
    settings: Settings,
    store: EmbeddingStore,
    progress: Progress,
) -> LabelledJob:
    """The steps of a measurement of a loaded model.

    Args:
        reader: the model.
        spec: that its candidate is made by.
        dataset: labelled inputs.
        settings: how to measure.
        store: where embeddings, logits and probes are kept.
        progress: where progress is shown.

    Raises:
        QuantDriftError: the scheme cannot be made of this model, or not on these data.
    """
    job = LabelledJob(
        pair=reader.pair(spec.scheme),
        settings=settings,
        store=store,
        progress=progress,
        test=reader.inputs(dataset.test),
        train=None if dataset.train is None else reader.inputs(dataset.train),
        calibration=reader.calibration(spec.scheme),
        split=dataset.split,
        what=reader.gives,
        dataset=dataset.name,
    )
    job.check()
    return job


def probe_labels(dataset: ClassificationDataset, model: str) -> tuple[str, ...]:
    """The labels that a probe is fitted to.

    Args:
        dataset: labelled inputs.
        model: as the user wrote it, for the message.

    Raises:
        DataError: there are none, or all are the same.
    """
    need = (
        f"{model} is an embedding model: classes are read from its embeddings by a linear probe, "
        "which is fitted on labelled train inputs"
    )
    if dataset.train is None or dataset.train.labels is None:
        lacks = "no train part" if dataset.train is None else "no labels in its train part"
        raise DataError(
            f"{need}; {dataset.name} has {lacks}. Add train.jsonl with labels, or take a model "
            "that was trained to classify"
        )
    labels = dataset.train.labels
    if len(set(labels)) < 2:  # noqa: PLR2004 -- nothing to tell apart otherwise
        raise DataError(f"{need} of at least two classes; {dataset.name} has only {labels[0]!r}")
    return labels


def describe_labelled(
    dataset: ClassificationDataset, n_classes: int, notes: Sequence[str] = ()
) -> Mapping[str, Any]:
    """What run.json says of a dataset and of the classes that were told apart."""
    return {
        "name": dataset.name,
        "kind": "classification",
        "inputs": {"text": "texts", "image": "images"}[dataset.kind],
        "split": dataset.split,
        "fingerprint": dataset.fingerprint,
        "n_inputs": len(dataset.test.ids),
        "n_classes": n_classes,
        "n_train": 0 if dataset.train is None else len(dataset.train.ids),
        "warnings": [*dataset.warnings, *notes],
        "path": None if dataset.path is None else str(dataset.path),
    }
