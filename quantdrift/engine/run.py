"""From a pair and data to the measurement that fits both, for whoever lets a user name them.

Labelled inputs are classified, queries and documents searched or, with a shortlist, reranked, and
two models are measured against each other.
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import torch

from quantdrift.datasets.labelled import ClassificationDataset, Dataset
from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.classes import LabelledJob, by_logits, by_probe, measure_classes
from quantdrift.engine.encoders.checkpoint import StoredCandidate, load_checkpoint
from quantdrift.engine.encoders.cross_encoder import load_cross_encoder
from quantdrift.engine.encoders.sentence import SentenceEncoder, load_encoder, pick_device
from quantdrift.engine.encoders.server import EndpointEncoder, Role, Servers, open_endpoint
from quantdrift.engine.inputs import Inputs, server_inputs, text_inputs
from quantdrift.engine.pair import Pair, PairName, QuantizedPair
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.engine.readers import Reader, check_scheme, load_reader, refuse_classifier
from quantdrift.engine.refusals import check_pair
from quantdrift.engine.rerank import Pairs, RerankJob, asked_for, measure_reranking, pair_inputs, pairs_of
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.search import Job, Settings, measure_retrieval
from quantdrift.engine.store import EmbeddingStore
from quantdrift.engine.two_models import LoadedCandidate, LocalReference, ServerSide, Side, TwoModels, TwoSides
from quantdrift.errors import DataError, UnsupportedError
from quantdrift.evidence import Evidence
from quantdrift.finished.shortlist import Shortlist
from quantdrift.metrics import measure
from quantdrift.models.checkpoint import Checkpoint, find_checkpoint, full_precision, refuse_missing, refuse_quantized
from quantdrift.models.named import ModelSource, resolve
from quantdrift.progress import Progress
from quantdrift.runs import Run, check_place, write_run
from quantdrift.spec import Spec, Versus, is_endpoint, read_endpoint

# --- The record of a run, run.json: how it was measured, and every default metric of it -----------

_PACKAGES = ("quantdrift", "torch", "transformers", "sentence-transformers", "numpy", "mteb", "lm_eval")


class Outcome(Protocol):
    """What a measurement gave, as far as its record tells it."""

    @property
    def evidence(self) -> Evidence:
        """The per-input record."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of the reference's weights."""
        ...

    @property
    def candidate_fingerprint(self) -> str | None:
        """Digest of the candidate; None if it was not taken."""
        ...

    @property
    def left_out(self) -> int:
        """Number of inputs that layers were measured on."""
        ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """Time per stage."""
        ...


def describe_run(
    spec: PairName,
    pair: Pair,
    measured: Outcome,
    settings: Settings,
    *,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    started: str,
    similarity: str | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of a run: everything that run.json holds.

    Args:
        spec: model and scheme.
        pair: the pair that was measured.
        measured: what came out.
        settings: how it was measured.
        model: what is known of where the model came from.
        data: what is known of the data.
        started: when, ISO 8601.
        similarity: how embeddings were compared, where they were.
        reading: how logits were had, where they were.
    """
    estimates = measure(measured.evidence)
    bits, made = pair.bits(), pair.describe()
    # what runs a model by itself, as some harnesses do, sees no embeddings and has no notes
    notes = [*data.get("warnings", ()), *getattr(measured, "notes", ()), *_on_what_is_ranked(made)]
    return {
        "spec": str(spec),
        "model": {
            "name": spec.model,
            **model,
            "fingerprint": measured.fingerprint,
            "candidate_fingerprint": measured.candidate_fingerprint,
            "layers_quantized": None if pair.layers is None else len(pair.layers),
            "layers_never_reached": pair.never_reached,
        },
        "bits_per_weight": None if bits is None else bits.to_json(),
        "quantization": made,
        "data": {**data, "inputs_left_out": measured.left_out, "warnings": list(dict.fromkeys(notes))},
        "settings": {
            "k": settings.k,
            "batch_size": settings.batch_size,
            "noise_floor": settings.noise_floor,
            "seed": settings.seed,
            **({} if similarity is None else {"similarity": similarity}),
            **(reading or {}),
            **pair.runtime,
        },
        "versions": _versions(),
        "times": {"started": started, "finished": now(), "seconds": dict(measured.seconds)},
        "metrics": {name: estimate.to_json() for name, estimate in estimates.items()},
    }


def _on_what_is_ranked(made: Mapping[str, Any]) -> list[str]:
    """Whether the candidate was fitted to the very documents that it ranks."""
    calibration = made.get("calibration") or {}
    n = calibration.get("n_inputs")
    if calibration.get("source") != "corpus" or n != calibration.get("of"):
        return []
    return [
        f"calibrated on all {n:,} documents, the very ones that are ranked: on other documents the "
        "candidate may change more answers. +calib=N takes fewer, +calib=FILE other texts"
    ]


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


# --- Run a spec on a dataset, from loading the model to the finished run folder -------------------


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
    opened = open_pair(spec, dataset, places=[out], device=device, revision=revision, encoder=encoder)
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
        model={"canonical": encoder.source.canonical, "kind": encoder.source.kind, "revision": revision},
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


# --- Run a spec on classification data, from loading the model to the finished run folder ---------


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


def describe_labelled(dataset: ClassificationDataset, n_classes: int, notes: Sequence[str] = ()) -> Mapping[str, Any]:
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


# --- rerank job -----------------------------------------------------------------------------------


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


# --- Two models that are ready to be compared, and what is loaded the same way for every kind -----


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedVersus:
    """Two models, and the data as they take it.

    Attributes:
        pair: the models; the reference is in place.
        queries: what is searched for.
        documents: what is searched.
        similarity: how embeddings become scores.
        model: what run.json says of the two, beside names and fingerprints.
        notes: in what beside weights they differ, and what else whoever reads the run should know.
    """

    pair: Pair
    queries: Inputs
    documents: Inputs
    similarity: Similarity
    model: Mapping[str, Any]
    notes: tuple[str, ...]


def refuse_reference(source: ModelSource, checkpoint: Checkpoint | None) -> None:
    """Refuse what can be refused before anything is loaded.

    Args:
        source: the reference.
        checkpoint: the candidate, where it lies here.

    Raises:
        UnsupportedError: both are one model, or the reference embeds nothing (a cross-encoder, a
            classifier) or is quantized itself.
    """
    if checkpoint is not None and checkpoint.gguf is None and _same(source, checkpoint):
        raise UnsupportedError(
            f"{source.name} and {checkpoint.name} are one model ({checkpoint.canonical}); expected "
            "a reference and another model. Its own noise is measured in every run (noise floor)"
        )
    refuse_classifier(source)
    if source.kind == "local":
        method = find_checkpoint(source.name).method
        if method != "none":
            raise UnsupportedError(_quantized(source.name, method))


def load_reference(source: ModelSource, *, device: torch.device, revision: str | None) -> SentenceEncoder:
    """Load a reference, and refuse one on the hub that turns out to be quantized.

    Args:
        source: where it lies.
        device: where it runs.
        revision: of a hub model.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
        UnsupportedError: it cannot be loaded, or is quantized.
    """
    reference = load_encoder(source, device=device, revision=revision)
    config = getattr(getattr(reference.model[0], "auto_model", None), "config", None)
    if getattr(config, "quantization_config", None):
        raise UnsupportedError(_quantized(source.name, "see its config.json"))
    return reference


def _same(source: ModelSource, checkpoint: Checkpoint) -> bool:
    if source.kind == checkpoint.kind == "hub":
        return source.canonical == checkpoint.canonical
    return source.kind != "hub" and Path(source.location).resolve() == checkpoint.folder


def _quantized(name: str, method: str) -> str:
    return (
        f"the reference {name} is quantized itself ({method}); expected a model at full precision "
        "first and the quantized one after vs"
    )


# --- A reference and a checkpoint that both run here ----------------------------------------------


def open_checkpoint(
    versus: Versus,
    dataset: RetrievalDataset,
    *,
    device: torch.device,
    revision: str | None,
    models: tuple[SentenceEncoder | None, SentenceEncoder | None] = (None, None),
) -> OpenedVersus:
    """Load both; everything that can be refused is refused before.

    The reference is embedded as in any other run of it, so its embeddings are shared.

    Args:
        versus: reference and candidate.
        dataset: what they will embed.
        device: where they run.
        revision: of a reference on the hub.
        models: reference and candidate, as far as they are loaded already.

    Raises:
        QuantDriftError: one of them cannot be used, or not beside the other.
    """
    reference, loaded = models
    checkpoint = None if loaded is not None else find_checkpoint(versus.candidate)
    if checkpoint is not None:
        refuse_missing(checkpoint)
    if reference is None:
        source = resolve(versus.reference)
        refuse_reference(source, checkpoint)
        reference = load_reference(source, device=device, revision=revision)
    candidate: StoredCandidate | LoadedCandidate
    if checkpoint is not None:
        candidate = load_checkpoint(checkpoint, reference, device=device)
    else:
        assert loaded is not None  # one of the two is there
        candidate = LoadedCandidate(loaded, reference)
    pair = TwoModels(reference, candidate)
    return OpenedVersus(
        pair=pair,
        queries=_inputs(pair, reference, "query", dataset.query_ids, dataset.queries),
        documents=_inputs(pair, reference, "document", dataset.document_ids, dataset.documents),
        similarity=reference.similarity,
        model={
            "canonical": reference.source.canonical,
            "kind": reference.source.kind,
            "revision": revision,
            "candidate": candidate.identify(),
        },
        notes=candidate.notes,
    )


def _inputs(
    models: TwoModels, reference: SentenceEncoder, role: Role, ids: tuple[str, ...], texts: tuple[str, ...]
) -> Inputs:
    """One side, by whichever model is in place; the key is the reference's, as in other runs."""
    return replace(
        text_inputs(reference, texts, role=role, ids=ids),
        encode=lambda rows, batch_size: models.encode([texts[row] for row in rows.tolist()], role, batch_size),
    )


# --- Two models of which at least one is on a server ----------------------------------------------

Encoder = SentenceEncoder | EndpointEncoder

NOISY = 0.01
"""Of an embedding's length, that two answers differ by: bfloat16 changes less, and three times this
is what 8-bit weights change, so those would not be noticed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """One of the two models: what embeds, what a pair asks of it, and what a run records."""

    encoder: Encoder
    side: Side
    identity: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def open_server(
    versus: Versus,
    dataset: RetrievalDataset,
    *,
    servers: Servers,
    root: Path | None,
    device: torch.device,
    revision: str | None,
) -> OpenedVersus:
    """Load what is here, reach what is not, and see which models answer.

    What a model that is loaded here puts before a text, a query's prompt for instance, is put
    before the texts that a server gets, too: servers add nothing of themselves.

    Args:
        versus: reference and candidate.
        dataset: what they will embed.
        servers: how servers are asked.
        root: of the cache, None if nothing is kept.
        device: where models run that are loaded here.
        revision: of a reference on the hub.

    Raises:
        QuantDriftError: one of them cannot be used, or not beside the other.
    """
    _refuse(versus, revision)
    names = [name for name in (versus.reference, versus.candidate) if is_endpoint(name)]
    hosts = sorted({read_endpoint(name).host for name in names})
    encoders = {  # before anything large is loaded: one of them may not be there
        name: open_endpoint(read_endpoint(name), servers, hosts=hosts, root=root) for name in names
    }
    local = _load_local(versus, device, revision)
    prompts: dict[str, str] = {}
    if local is not None and isinstance(local.encoder, SentenceEncoder):
        prompts = {role: local.encoder.prompt(role) for role in ("query", "document")}
    reached = {}
    for name, encoder in encoders.items():
        encoder.prefixes = {**prompts, **servers.prefixes}
        reached[name] = _reached(name, encoder, servers)
    reference = reached.get(versus.reference) or local
    candidate = reached.get(versus.candidate) or local
    assert reference is not None  # what is on no server was loaded
    assert candidate is not None
    similarity = Similarity.COSINE
    if local is not None and isinstance(local.encoder, SentenceEncoder):
        similarity = local.encoder.similarity
    return OpenedVersus(
        pair=TwoSides(reference.side, candidate.side, device=device),
        queries=_both(reference, candidate, dataset.query_ids, dataset.queries, "query"),
        documents=_both(reference, candidate, dataset.document_ids, dataset.documents, "document"),
        similarity=similarity,
        model={**reference.identity, "candidate": candidate.identity},
        notes=(*reference.notes, *candidate.notes),
    )


def _refuse(versus: Versus, revision: str | None) -> None:
    if not is_endpoint(versus.reference):
        refuse_reference(resolve(versus.reference), None)
        return
    if revision is not None:
        raise UnsupportedError(f"--revision is of a reference on the hub; {versus.reference} is on a server")
    if versus.reference == versus.candidate:
        raise UnsupportedError(
            f"both are {versus.reference}; expected a reference and another model. Its own noise "
            "is measured in every run (noise floor)"
        )


def _load_local(versus: Versus, device: torch.device, revision: str | None) -> _Loaded | None:
    """The model that is no server's; None if both are."""
    if not is_endpoint(versus.reference):
        source = resolve(versus.reference)
        encoder = load_reference(source, device=device, revision=revision)
        identity = {"canonical": source.canonical, "kind": source.kind, "revision": revision}
        return _Loaded(encoder=encoder, side=LocalReference(encoder), identity=identity)
    if is_endpoint(versus.candidate):
        return None
    checkpoint = find_checkpoint(versus.candidate)
    refuse_missing(checkpoint)
    candidate = load_checkpoint(checkpoint, None, device=device)
    return _Loaded(encoder=candidate, side=candidate, identity=candidate.identify(), notes=candidate.notes)


def _reached(name: str, encoder: EndpointEncoder, servers: Servers) -> _Loaded:
    identity = encoder.identity
    notes = []
    if identity.changed_since is not None:
        notes.append(
            f"another model answers to {name} than on {identity.changed_since}: embeddings of then are not used"
        )
    if identity.noise > NOISY:
        notes.append(
            f"{name} answered the same texts twice and differently, by {identity.noise:.1%} of an "
            f"embedding's length; another model there is noticed from {identity.tolerance:.1%} on"
        )
    for role, prefix in encoder.prefixes.items():
        if prefix:
            whose = "as asked for" if role in servers.prefixes else "as the other model does"
            notes.append(f"{name} gets {prefix!r} before every {role}, {whose}")
    return _Loaded(
        encoder=encoder,
        side=ServerSide(encoder),
        identity={
            "name": name,
            "canonical": encoder.endpoint.model,
            "kind": "server",
            "revision": None,
            "format": None,
            "fingerprint": identity.fingerprint,
            "server": encoder.describe(),
        },
        notes=tuple(notes),
    )


def _both(reference: _Loaded, candidate: _Loaded, ids: tuple[str, ...], texts: tuple[str, ...], role: Any) -> Inputs:
    first, second = (_versus_server_inputs(one.encoder, ids, texts, role) for one in (reference, candidate))
    return replace(first, candidate=second)


def _versus_server_inputs(encoder: Encoder, ids: tuple[str, ...], texts: tuple[str, ...], role: Any) -> Inputs:
    if isinstance(encoder, SentenceEncoder):
        return text_inputs(encoder, texts, role=role, ids=ids)
    return server_inputs(encoder, texts, role=role, ids=ids)


# --- Run two models on a dataset: a reference, and a candidate that is not made here --------------


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
            versus, dataset, servers=servers or Servers(), root=store.root, device=where, revision=revision
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


# --- From a pair and data to the measurement that fits both, for whoever lets a user name them ----


def run_pair(
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
        pair, dataset, out=out, settings=settings, store=store, progress=progress, device=device, revision=revision
    )
