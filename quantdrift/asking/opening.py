"""Load the pair of a name for some data, and choose how its outputs are read."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from torch import nn

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.registry import imported
from quantdrift.base.text import some
from quantdrift.builtin.classifier.work import Classifier
from quantdrift.builtin.cross_encoder.work import CrossEncoderModel
from quantdrift.builtin.sentence.work import SentenceEncoder, choose_prompts, differences, pick_device
from quantdrift.candidate.calibration.sample import calibration_texts
from quantdrift.candidate.checkpoint import candidate_source, load_checkpoint, load_stored_classifier
from quantdrift.candidate.pair import Model, Pair, QuantizedPair, TwoModels, methods_of
from quantdrift.candidate.tried import embedded
from quantdrift.data.images import Kind, contents_of
from quantdrift.data.labelled import ClassificationDataset, Dataset, Labelled, told_apart
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.data.streamed import StreamedDataset
from quantdrift.evidence.probe import LinearProbe
from quantdrift.finished.shortlist import Shortlist as Lists
from quantdrift.kinds.encoder import KINDS
from quantdrift.measuring.flow import Reading
from quantdrift.measuring.readings import Classes, Head, ReadOtherwise, Search, calibration_queries, shortlist_of
from quantdrift.models.files.checkpoint import find_checkpoint, full_precision_source, refuse_missing, refuse_quantized
from quantdrift.models.files.kinds import check_kind, kind_of, writes_text
from quantdrift.models.files.named import ModelSource
from quantdrift.models.heads import find_head
from quantdrift.models.inputs import Inputs, Rows, inputs_of, text_inputs
from quantdrift.models.model import EmbeddingModel
from quantdrift.models.server import Servers, open_endpoint
from quantdrift.models.store import digest_of
from quantdrift.runs.folder import now
from quantdrift.scoring.similarity import Similarity
from quantdrift.spec.grammar import Spec, Versus, is_endpoint, read_endpoint

LocalModel = EmbeddingModel | Classifier | CrossEncoderModel
InMemory = tuple[LocalModel | None, SentenceEncoder | None]
"""Reference and candidate; None for one that is to be loaded."""
NONE: InMemory = (None, None)


class Place(TypedDict, total=False):
    """How a model is loaded: device, revision, dtype, whether its code may run, and prompt names by role."""

    device: str | None
    revision: str | None
    dtype: str
    trusted: bool
    prompts: Mapping[str, str]


class Loading(Place, total=False):
    """How a pair is loaded: also the servers, the folder for what is kept of them, and models in memory."""

    servers: Servers | None
    root: Path | None
    models: InMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A pair that is loaded, and the data as it takes them.

    Attributes:
        name: the pair's name.
        pair: the pair, in the reference arm.
        reading: how its outputs are read.
        model: the models' origin, for run.json.
        data: the data's description, for run.json.
        started: when loading began, ISO 8601.
        closing: what ends when the run is written, or has failed.
    """

    name: Spec | Versus
    pair: Pair
    reading: Reading
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    started: str
    closing: ExitStack = field(default_factory=ExitStack)

    @property
    def quantized(self) -> QuantizedPair:
        """The pair of a spec."""
        assert isinstance(self.pair, QuantizedPair)  # callers have opened a spec
        return self.pair

    @property
    def search(self) -> Search:
        """The reading of queries and documents."""
        assert isinstance(self.reading, Search)  # callers have opened such data
        return self.reading


def open_pair(
    name: Spec | Versus,
    dataset: Dataset,
    *,
    shortlist: Lists | None = None,
    neighbours: bool = False,
    held_out: Rows | None = None,
    **how: Unpack[Loading],
) -> Opened:
    """Load a pair for a dataset.

    Calibration leaves out the queries that are `held_out`. With `neighbours` a classifier outputs its head's input.
    """
    started = now()
    kind = dataset.kind if isinstance(dataset, ClassificationDataset) else None
    texts = calibration_texts(name.scheme) if isinstance(name, Spec) else None
    pair = load_pair(name, kind, reranks=shortlist is not None, **how)
    reading: Reading
    encoder: Any = pair.encoder
    for model in pair.models:
        _refuse_prompts(model, dataset)
    if isinstance(dataset, ClassificationDataset):
        reading = _classes(name, dataset, pair, texts, neighbours=neighbours)
    elif shortlist is not None:
        lists = {"top": shortlist.top, "digest": shortlist.digest}
        record = {"reading": "reranking", "shortlist": lists, "max_length": encoder.max_length}
        record |= own_ids_record(dataset)
        reading = shortlist_of(dataset, shortlist.documents, record=record, texts=texts)
    else:
        refuse_kinds(pair.models, dataset)
        search = search_of(dataset, pair.similarity, texts, pair=pair, held_out=held_out)
        reading = encoder.reading(search) if isinstance(encoder, ReadOtherwise) else search
    origin, data = {"revision": how.get("revision"), **pair.identify()}, describe_data(dataset, shortlist)
    return Opened(name=name, pair=pair, reading=reading, model=origin, data=data, started=started)


def load_pair(
    name: Spec | Versus,
    kind: Kind | None = None,
    *,
    reranks: bool = False,
    servers: Servers | None = None,
    root: Path | None = None,
    models: InMemory = NONE,
    **where: Unpack[Place],
) -> Pair:
    """Load a pair that searches, reranks, or classifies inputs of a kind."""
    if isinstance(name, Spec):
        methods_of(name.scheme)
        model = models[0] or load_model(name.model, kind, reranks=reranks, **where)
        return QuantizedPair([model.module], name.scheme, name=repr(name.model), encoder=model)
    if kind is not None or reranks:
        return _two_with_heads(name, kind, **where)
    return _two_models(name, servers=servers or Servers(), root=root, models=models, **where)


def load_model(
    name: str,
    kind: Kind | None,
    *,
    reranks: bool = False,
    device: str | None = None,
    revision: str | None = None,
    dtype: str = "float32",
    trusted: bool = False,
    prompts: Mapping[str, str] | None = None,
) -> LocalModel:
    """Load a model at full precision, of the kind that these data need: it searches, classifies or reranks."""
    source, where = full_precision_source(name), pick_device(device)
    encoder_kind = kind_of(source, "classes" if kind is not None else "shortlist" if reranks else "search", revision)
    with KINDS.tried(encoder_kind):
        model: LocalModel = imported(encoder_kind.load)(
            source, device=where, revision=revision, dtype=dtype, **({"trusted": True} if trusted else {})
        )
        if KINDS.versions(encoder_kind):
            embedded(model)
    takes = model.takes if isinstance(model, Classifier) else "text"
    if kind not in {None, takes}:
        raise UnsupportedError(f"{name} takes {takes}s, and the data are {kind}s; expected a model that takes {kind}s")
    refuse_quantized([model.module], name)
    choose_prompts(model, prompts or {})
    return model


def load_searching(name: str, **where: Unpack[Place]) -> EmbeddingModel:
    """Load a model that searches."""
    model = load_model(name, None, **where)
    assert isinstance(model, EmbeddingModel)  # the kind of models that search
    return model


def search_of(
    dataset: RetrievalDataset,
    similarity: Similarity,
    texts: Sequence[str] | None = None,
    *,
    pair: Pair | None = None,
    held_out: Rows | None = None,
) -> Search:
    """Return the reading of a search; it is calibrated on its documents, or on texts.

    If queries and documents are of two kinds, the model has a tower for each, and both are calibrated: a quarter of
    the queries is set aside for that, and rates are over the others.
    """
    queries = inputs_of(dataset.queries, role="query", ids=dataset.query_ids)
    documents = inputs_of(dataset.documents, role="document", ids=dataset.document_ids)
    given = None if texts is None else text_inputs(texts)
    if given is not None and dataset.kinds == ("image", "image"):
        raise UnsupportedError("+calib= names a file of texts, and the data are images; leave it out, or give a number")
    calibration = [documents if given is None or dataset.kinds[1] == "image" else given]
    if pair is not None and dataset.kinds[0] != dataset.kinds[1]:
        if given is not None and dataset.kinds[0] == "text":
            calibration.append(replace(given, role="query"))
        else:
            also, held_out = calibration_queries(pair, queries, held_out)
            calibration += also
    return Search(
        queries=queries,
        documents=documents,
        similarity=similarity,
        excluded=dataset.own_rows,
        record=own_ids_record(dataset),
        calibration=tuple(calibration),
        held_out=held_out,
        qrels=dataset.qrels or None,
        dataset=dataset.name,
    )


def own_ids_record(dataset: RetrievalDataset | StreamedDataset) -> dict[str, str]:
    """Return the entry of run.json on queries that are documents too, if there are any."""
    return {} if dataset.own_ids is None else {"own_ids": dataset.own_ids}


def _refuse_prompts(model: Any, dataset: Dataset) -> None:
    """Refuse a model with prompts that the harness of these data uses in another way."""
    prompts = getattr(getattr(model, "model", None), "prompts", None) or {}
    if named := sorted(name for name in dataset.read_otherwise if prompts.get(name)):
        raise UnsupportedError(
            f"{model.source.name} has the prompt {named[0]!r}, which mteb and quantdrift use differently on "
            f"{dataset.name}; run it inside mteb: mteb run --model quantdrift:MODEL@SCHEME -t {dataset.name}"
        )


def refuse_kinds(models: Sequence[Any], dataset: RetrievalDataset) -> None:
    """Refuse models that do not take the kind of the queries or the documents."""
    for model in models:
        takes = getattr(model, "takes", {"text"})  # a server takes texts
        for kind, role in zip(dataset.kinds, ("queries", "documents"), strict=True):
            if kind not in takes:
                raise UnsupportedError(
                    f"the {role} of {dataset.name} are {kind}s, and {model.source.name} takes "
                    f"{' and '.join(sorted(takes))}s alone; expected a model that takes both, such as CLIP"
                )


def _classes(
    name: Spec | Versus, dataset: ClassificationDataset, pair: Pair, texts: Sequence[str] | None, *, neighbours: bool
) -> Classes:
    model: Any = pair.encoder
    embeds, head = isinstance(model, EmbeddingModel), None
    if not embeds:
        head = Head(classes=told_apart(model.classes), record={"reading": "logits"})
        if neighbours and isinstance(pair, QuantizedPair):
            pair.encoder, head = before_head(name.model, model, pair)
    role = "document" if embeds else "input"

    def inputs(part: Labelled) -> Inputs:
        lengths = np.array([len(text) for text in part.inputs], dtype=np.int64) if dataset.kind == "text" else None
        digest = {"contents": digest_of(contents_of(part.inputs))}
        return Inputs(role=role, ids=part.ids, items=part.inputs, digest=digest, lengths=lengths)

    train = None if dataset.train is None else inputs(dataset.train)
    calibration = train if texts is None else text_inputs(texts, role=role)
    return Classes(
        inputs=inputs(dataset.test),
        split=dataset.split,
        head=head,
        train=train,
        train_labels=_probe_labels(dataset, name.model) if embeds else (),
        labels=dataset.test.labels,
        what="embeddings" if head is None or head.linear is not None else "logits",
        calibration=() if calibration is None else (calibration,),
        source="the train part",
        dataset=dataset.name,
    )


def _probe_labels(dataset: ClassificationDataset, model: str) -> tuple[str, ...]:
    """Return the train labels, which the probe of an embedding model is fitted to."""
    labels = None if dataset.train is None else dataset.train.labels
    if labels is None or len(set(labels)) < 2:  # noqa: PLR2004 -- nothing to tell apart otherwise
        raise DataError(
            f"{model} is an embedding model: classes are read from its embeddings by a linear probe, which is fitted "
            f"to labelled train inputs of two classes or more, and {dataset.name} has none. Name a folder "
            "with train.jsonl beside test.jsonl, or train.csv beside test.csv, or take a model that was trained to "
            "classify"
        )
    return labels


def described_data(dataset: Dataset | StreamedDataset, **more: object) -> dict[str, Any]:
    """Describe data of any kind for run.json; a warning says where these are only the first inputs."""
    limit = None if isinstance(dataset, StreamedDataset) else dataset.limit
    first = [] if limit is None else [f"a quick try: only the first {limit['n']:,} of {limit['of']:,} inputs"]
    return {
        "name": dataset.name,
        "split": dataset.split,
        "fingerprint": dataset.fingerprint,
        "warnings": [*first, *dataset.warnings],
        "path": None if dataset.path is None else str(dataset.path),
        **({} if limit is None else {"limit": dict(limit)}),
        **({"columns": columns} if (columns := getattr(dataset, "columns", None)) else {}),
        **more,
    }


def describe_data(dataset: Dataset, shortlist: Lists | None = None) -> dict[str, Any]:
    """Describe a dataset for run.json, with the origin of a shortlist."""
    if isinstance(dataset, ClassificationDataset):
        n_train = 0 if dataset.train is None else len(dataset.train.ids)
        counts = {"inputs": f"{dataset.kind}s", "n_inputs": len(dataset.test.ids), "n_train": n_train}
        return described_data(dataset, kind="classification", **counts)
    record = described_data(dataset, n_queries=len(dataset.query_ids), n_documents=len(dataset.document_ids))
    if "image" in dataset.kinds:
        record["modalities"] = " to ".join(dataset.kinds)
    if shortlist is not None:
        record["warnings"] += shortlist.notes
        record["shortlist"] = dict(shortlist.record)
        if dataset.qrels:
            relevant = [
                name in names
                for query, names in shortlist.documents.items()
                for name, grade in dataset.qrels.get(query, {}).items()
                if grade > 0
            ]
            record["shortlist"] |= {"n_relevant": len(relevant), "n_relevant_found": sum(relevant)}
    return record


# --- Two models -----------------------------------------------------------------------------------


def _two_models(
    name: Versus, *, servers: Servers, root: Path | None, models: InMemory, **where: Unpack[Place]
) -> TwoModels:
    """Load both models; servers are asked before anything large is loaded."""
    (local, loaded), device, revision = models, pick_device(where.get("device")), where.get("revision")
    if models == NONE:  # loaded ones may share a name
        _refuse_same(name)
    checkpoint = source = None
    if loaded is None and not is_endpoint(name.candidate):
        checkpoint = find_checkpoint(name.candidate)
        refuse_missing(checkpoint)
        if checkpoint.method == "none":
            _refuse_alone(candidate_source(checkpoint), None)
    if local is None and not is_endpoint(name.reference):
        source = full_precision_source(name.reference)
        _refuse_alone(source, revision)
    elif local is None and revision is not None:
        raise UnsupportedError(f"--revision is of a reference on the hub; {name.reference} is on a server")
    names = [model for model in (name.reference, name.candidate) if is_endpoint(model)] if models == NONE else []
    reached = {model: open_endpoint(read_endpoint(model), servers, root=root) for model in names}
    if source is not None:
        local = load_searching(name.reference, **where)
    assert local is None or isinstance(local, SentenceEncoder)  # others were refused
    candidate: Model | None = reached.get(name.candidate)
    if loaded is not None and local is not None:  # a server is not compared with a model in memory
        candidate = replace(loaded, notes=(*loaded.notes, *differences(local, loaded)))
    elif checkpoint is not None:
        candidate = load_checkpoint(checkpoint, local, device=device)
        if checkpoint.has_modules:  # others take those of the reference
            choose_prompts(candidate, where.get("prompts") or {})
    beside = local or candidate
    if beside is None and where.get("prompts"):
        raise UnsupportedError(
            "--query-prompt and --document-prompt name prompts of a model that is loaded here, and both are servers'; "
            "expected the texts themselves: --query-prefix, --document-prefix"
        )
    prompts = (
        {role: beside.prompt(role) for role in ("query", "document")} if isinstance(beside, SentenceEncoder) else {}
    )
    for server in reached.values():
        server.learn(prompts, servers.prefixes)
    reference: Model | None = reached.get(name.reference, local)
    assert reference is not None  # what is on no server was loaded
    assert candidate is not None
    return TwoModels(reference, candidate, device=device)


def _refuse_alone(source: ModelSource, revision: str | None) -> None:
    """Refuse a kind of model that is compared with its own quantized self alone."""
    if kind_of(source, "search", revision) not in {KINDS["sentence"], KINDS["open-clip"]}:
        raise UnsupportedError(
            f"{source.name} is compared with its own quantized self alone ({source.name}@W4); expected two embedding "
            "models of sentence-transformers"
        )


def _refuse_same(name: Versus) -> None:
    if name.reference == name.candidate:
        raise UnsupportedError(
            f"both are {name.reference}; expected a reference and another model. Its own noise is measured in every "
            "run (noise floor)"
        )


def _two_with_heads(name: Versus, kind: Kind | None, **where: Unpack[Place]) -> TwoModels:
    """Load two classifiers of the same classes in the same order; two cross-encoders without a kind of inputs."""
    _refuse_same(name)
    source, checkpoint = full_precision_source(name.reference), find_checkpoint(name.candidate)
    refuse_missing(checkpoint)
    wanted = "cross-encoder" if kind is None else "classifier"
    check_kind(source, wanted, where.get("revision"))
    if kind is not None or writes_text(candidate_source(checkpoint)) is None:  # else the reference lends what it lacks
        check_kind(candidate_source(checkpoint), wanted)
    reference = load_model(name.reference, kind, reranks=kind is None, **where)
    place = pick_device(where.get("device"))
    if isinstance(reference, CrossEncoderModel):
        return TwoModels(reference, load_checkpoint(checkpoint, reference, device=place), device=place)
    candidate = load_stored_classifier(checkpoint, device=place)
    assert isinstance(reference, Classifier)  # it is of that kind
    if candidate.takes != kind:
        raise UnsupportedError(f"{candidate.source.name} takes {candidate.takes}s, and the data are {kind}s")
    ours, theirs = reference.classes, candidate.classes
    if [label.casefold() for label in ours] != [label.casefold() for label in theirs]:
        raise UnsupportedError(
            f"the classes of {name.candidate} ({some(theirs)}) are not those of {name.reference} ({some(ours)}) in the "
            "same order; expected one id2label in both config.json"
        )
    return TwoModels(reference, candidate, device=place)


# --- A classifier that outputs its head's input ----------------------------------------------------


def before_head(name: str, classifier: Classifier, pair: QuantizedPair) -> tuple[Classifier, Head]:
    """Return the classifier as a model that outputs its head's input, and the head, which stays at full precision."""
    paths = find_head([classifier.module])
    module = classifier.module.get_submodule(paths[0]) if len(paths) == 1 else None
    if not isinstance(module, nn.Linear) or any(module in layer.modules for layer in pair.layers):
        raise UnsupportedError(
            f"neighbours are searched by the head's input; the head of {name} ({', '.join(paths) or 'not found'}) is "
            f"not one linear layer, or {pair.scheme} quantizes it. Expected an embedding model, or a classifier with "
            "such a head (ViT, timm, BERT) and no +head="
        )
    classes = told_apart(classifier.classes)
    bias = np.zeros(module.out_features) if module.bias is None else module.bias.detach().double().cpu().numpy()
    weight = module.weight.detach().double().cpu().numpy()
    linear = LinearProbe(classes=classes, weight=weight, bias=bias)
    head = Head(classes=classes, linear=linear, record={"reading": "logits", "head": paths[0]})
    return replace(classifier, before=(paths[0], module)), head
