"""From names and data to a pair that is loaded, and what its outputs are read as."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.registry import imported
from quantdrift.base.text import some
from quantdrift.checkpoints.checkpoint import find_checkpoint, full_precision, refuse_missing, refuse_quantized
from quantdrift.checkpoints.kinds import check_kind, kind_of
from quantdrift.checkpoints.named import ModelSource
from quantdrift.data.images import Kind
from quantdrift.data.labelled import ClassificationDataset, Dataset, Labelled, told_apart
from quantdrift.data.retrieval import RetrievalDataset
from quantdrift.data.streamed import StreamedDataset
from quantdrift.encoders import KINDS
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.encoders.checkpoint import candidate_source, load_checkpoint, load_stored_classifier
from quantdrift.engine.encoders.classifier import Classifier, load_classifier
from quantdrift.engine.encoders.cross_encoder import CrossEncoderModel
from quantdrift.engine.encoders.model import EmbeddingModel
from quantdrift.engine.encoders.sentence import SentenceEncoder, differences, pick_device
from quantdrift.engine.encoders.server import Servers, open_endpoint
from quantdrift.engine.flow import Reading
from quantdrift.engine.heads import find_head
from quantdrift.engine.inputs import Inputs, Model, Rows, inputs_of, text_inputs
from quantdrift.engine.pair import Pair, QuantizedPair, TwoModels
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.engine.readings import Classes, Head, Search, asked_for, calibration_queries, shortlist_of
from quantdrift.engine.scoring.streamed import Similarity
from quantdrift.engine.store import digest_of
from quantdrift.evidence.probe import LinearProbe
from quantdrift.finished.shortlist import Shortlist as Lists
from quantdrift.runs.folder import now
from quantdrift.spec.grammar import Spec, Versus, is_endpoint, read_endpoint

Given = tuple[SentenceEncoder | None, SentenceEncoder | None]
"""Reference and candidate, where they are in memory already."""
NONE: Given = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A pair that is loaded, and the data as it takes them.

    Attributes:
        name: of the pair.
        pair: in the reference arm.
        reading: what its outputs are read as.
        model: what is known of where the models came from, for run.json.
        data: what is known of the data, likewise.
        started: when loading began, ISO 8601.
    """

    name: Spec | Versus
    pair: Pair
    reading: Reading
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    started: str

    @property
    def quantized(self) -> QuantizedPair:
        """The pair of a spec."""
        assert isinstance(self.pair, QuantizedPair)  # whoever asks has opened a spec
        return self.pair

    @property
    def search(self) -> Search:
        """The reading of queries and documents."""
        assert isinstance(self.reading, Search)  # whoever asks has opened such data
        return self.reading


def open_pair(
    name: Spec | Versus,
    dataset: Dataset,
    *,
    device: str | None = None,
    revision: str | None = None,
    dtype: str = "float32",
    shortlist: Lists | None = None,
    servers: Servers | None = None,
    root: Path | None = None,
    models: Given = NONE,
) -> Opened:
    """Load a pair for a dataset; everything that can be refused is refused before."""
    started = now()
    if isinstance(name, Versus):
        reading: Reading
        if isinstance(dataset, ClassificationDataset):
            pair = _two_classifiers(name, dataset.kind, pick_device(device), revision, dtype)
            reading = _classes(name, dataset, pair.encoder, pair, None, neighbours=False)
            data = describe_labelled(dataset)
        else:
            pair = _two_models(
                name, pick_device(device), revision, dtype, servers=servers or Servers(), root=root, models=models
            )
            refuse_kinds([pair.reference, pair.candidate_model], dataset)
            reading, data = search_of(dataset, pair.similarity), describe_data(dataset)
        return Opened(
            name=name,
            pair=pair,
            reading=reading,
            model={"revision": revision, **pair.reference.identify(), "candidate": pair.candidate_model.identify()},
            data=data,
            started=started,
        )
    methods_of(name.scheme)
    texts = calibration_texts(name.scheme)
    kind = dataset.kind if isinstance(dataset, ClassificationDataset) else None
    model = models[0] or load_model(
        name.model, kind, reranks=shortlist is not None, device=device, revision=revision, dtype=dtype
    )
    return open_loaded(name, dataset, model, texts=texts, revision=revision, shortlist=shortlist, started=started)


def open_searching(
    name: Spec | Versus, *, device: str | None = None, revision: str | None = None, dtype: str = "float32"
) -> tuple[Pair, Similarity, dict[str, Any]]:
    """A pair that searches texts, with no data yet; how it compares, and what it is."""
    if isinstance(name, Versus):
        two = _two_models(name, pick_device(device), revision, dtype, servers=Servers(), root=None, models=NONE)
        known = {"revision": revision, **two.reference.identify(), "candidate": two.candidate_model.identify()}
        return two, two.similarity, known
    model = load_searching(name.model, device=device, revision=revision, dtype=dtype)
    pair = QuantizedPair([model.module], name.scheme, name=repr(name.model), encoder=model)
    source = model.source
    return pair, model.similarity, {"canonical": source.canonical, "kind": source.kind, "revision": revision}


LocalModel = EmbeddingModel | Classifier | CrossEncoderModel


def load_model(
    name: str,
    kind: Kind | None,
    *,
    reranks: bool = False,
    device: str | None = None,
    revision: str | None = None,
    dtype: str = "float32",
) -> LocalModel:
    """The model that these data take, at full precision, whatever dtype its files have."""
    source, where = full_precision(name), pick_device(device)
    found = kind_of(source, "classes" if kind is not None else "shortlist" if reranks else "search", revision)
    model: LocalModel = imported(found.load)(source, device=where, revision=revision, dtype=dtype)
    takes = model.takes if isinstance(model, Classifier) else "text"
    if kind not in {None, takes}:
        raise UnsupportedError(f"{name} takes {takes}s, and the data are {kind}s; expected a model that takes {kind}s")
    refuse_quantized([model.module], name)
    return model


def load_searching(
    name: str, *, device: str | None = None, revision: str | None = None, dtype: str = "float32"
) -> EmbeddingModel:
    """The model of a name, which searches."""
    model = load_model(name, None, device=device, revision=revision, dtype=dtype)
    assert isinstance(model, EmbeddingModel)  # no kind of classes was asked for, and no shortlist
    return model


def open_loaded(
    name: Spec,
    dataset: Dataset,
    model: LocalModel,
    *,
    texts: Sequence[str] | None,
    started: str,
    revision: str | None = None,
    shortlist: Lists | None = None,
    neighbours: bool = False,
    held_out: Rows | None = None,
) -> Opened:
    """A model that is loaded as a pair; queries that are `held_out` are not calibrated on."""
    pair = QuantizedPair([model.module], name.scheme, name=repr(name.model), encoder=model)
    reading: Reading
    if isinstance(model, CrossEncoderModel):
        assert isinstance(dataset, RetrievalDataset)  # a shortlist is of one
        assert shortlist is not None  # that is how it was chosen
        reading = shortlist_of(
            shortlist.documents,
            dict(zip(dataset.query_ids, dataset.queries, strict=True)),
            dict(zip(dataset.document_ids, dataset.documents, strict=True)),
            record={
                "reading": "reranking",
                "shortlist": {"top": shortlist.top, "digest": shortlist.digest},
                "max_length": model.max_length,
            },
            calibration=(asked_for(dataset.documents if texts is None else texts),),
            qrels=dataset.qrels or None,
            dataset=dataset.name,
        )
    elif isinstance(dataset, ClassificationDataset):
        reading = _classes(name, dataset, model, pair, texts, neighbours=neighbours)
    else:
        assert isinstance(model, EmbeddingModel)  # classifiers are refused
        refuse_kinds([model], dataset)
        reading = model.reading(search_of(dataset, model.similarity, texts, pair=pair, held_out=held_out))
    source = model.source
    assert source is not None  # it was loaded from there
    return Opened(
        name=name,
        pair=pair,
        reading=reading,
        model={"canonical": source.canonical, "kind": source.kind, "revision": revision},
        data=describe_labelled(dataset)
        if isinstance(dataset, ClassificationDataset)
        else describe_data(dataset, shortlist),
        started=started,
    )


def search_of(
    dataset: RetrievalDataset,
    similarity: Similarity,
    texts: Sequence[str] | None = None,
    *,
    pair: QuantizedPair | None = None,
    held_out: Rows | None = None,
) -> Search:
    """The reading of a search: queries, and documents to calibrate on unless there are texts for that.

    Where queries and documents are of two kinds the model has a tower for each, and both are calibrated. So a quarter
    of the queries is kept for that, and rates are over the others.
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
        calibration=tuple(calibration),
        held_out=held_out,
        qrels=dataset.qrels or None,
        dataset=dataset.name,
    )


def refuse_kinds(models: Sequence[Any], dataset: RetrievalDataset) -> None:
    """Refuse models that do not take what the queries or documents are."""
    for model in models:
        takes = model.takes if isinstance(model, EmbeddingModel) else frozenset({"text"})
        for kind, role in zip(dataset.kinds, ("queries", "documents"), strict=True):
            if kind not in takes:
                raise UnsupportedError(
                    f"the {role} of {dataset.name} are {kind}s, and {model.source.name} takes "
                    f"{' and '.join(sorted(takes))}s alone; expected a model that takes both, such as CLIP"
                )


def _classes(
    name: Spec | Versus,
    dataset: ClassificationDataset,
    model: Any,
    pair: Pair,
    texts: Sequence[str] | None,
    *,
    neighbours: bool,
) -> Classes:
    head = None
    if isinstance(model, Classifier):
        head = Head(classes=told_apart(model.classes), record={"reading": "logits"})
        if neighbours:
            assert isinstance(name, Spec)  # of two models nothing is asked both ways
            assert isinstance(pair, QuantizedPair)
            pair.encoder, head = before_head(name, model, pair)

    def inputs(part: Labelled) -> Inputs:
        return Inputs(
            role="document" if isinstance(model, EmbeddingModel) else "input",
            ids=part.ids,
            items=part.inputs,
            digest={"contents": digest_of(part.contents())},
            lengths=np.array([len(one) for one in part.inputs], dtype=np.int64) if dataset.kind == "text" else None,
        )

    train = None if dataset.train is None else inputs(dataset.train)
    given = train if texts is None else text_inputs(texts, role="document" if head is None else "input")
    return Classes(
        inputs=inputs(dataset.test),
        split=dataset.split,
        head=head,
        train=train,
        train_labels=() if head is not None else _probe_labels(dataset, name.model),
        labels=dataset.test.labels,
        what="embeddings" if head is None or head.reads_vectors else "logits",
        calibration=() if given is None else (given,),
        source="the train part",
        dataset=dataset.name,
    )


def _probe_labels(dataset: ClassificationDataset, model: str) -> tuple[str, ...]:
    """The labels that a probe is fitted to."""
    labels = None if dataset.train is None else dataset.train.labels
    if labels is None or len(set(labels)) < 2:  # noqa: PLR2004 -- nothing to tell apart otherwise
        raise DataError(
            f"{model} is an embedding model: classes are read from its embeddings by a linear probe, which is fitted "
            f"to labelled train inputs of two classes or more, and {dataset.name} has none. Add train.jsonl with "
            "labels, or take a model that was trained to classify"
        )
    return labels


def describe_data(dataset: RetrievalDataset, shortlist: Lists | None = None) -> dict[str, Any]:
    """What run.json says of a dataset, and of where a shortlist came from."""
    said = described_data(dataset, n_queries=len(dataset.query_ids), n_documents=len(dataset.document_ids))
    if "image" in dataset.kinds:
        said["modalities"] = " to ".join(dataset.kinds)
    if shortlist is not None:
        said["warnings"] += shortlist.notes
        said["shortlist"] = dict(shortlist.record)
        if dataset.qrels:
            relevant = [
                name in names
                for query, names in shortlist.documents.items()
                for name, grade in dataset.qrels.get(query, {}).items()
                if grade > 0
            ]
            said["shortlist"] |= {"n_relevant": len(relevant), "n_relevant_found": sum(relevant)}
    return said


def describe_labelled(dataset: ClassificationDataset) -> dict[str, Any]:
    """What run.json says of labelled inputs, but for the number of classes that are told apart."""
    n_train = 0 if dataset.train is None else len(dataset.train.ids)
    inputs, n_inputs = {"text": "texts", "image": "images"}[dataset.kind], len(dataset.test.ids)
    return described_data(dataset, kind="classification", inputs=inputs, n_inputs=n_inputs, n_train=n_train)


def described_data(dataset: Dataset | StreamedDataset, **more: object) -> dict[str, Any]:
    """What run.json says of data of any kind."""
    return {
        "name": dataset.name,
        "split": dataset.split,
        "fingerprint": dataset.fingerprint,
        "warnings": list(dataset.warnings),
        "path": None if dataset.path is None else str(dataset.path),
        **more,
    }


# --- Two models -----------------------------------------------------------------------------------


def _two_models(
    name: Versus,
    device: torch.device,
    revision: str | None,
    dtype: str,
    *,
    servers: Servers,
    root: Path | None,
    models: Given,
) -> TwoModels:
    """Both models; servers are asked before anything large is loaded."""
    if models == NONE:  # loaded ones may share a name
        _refuse_same(name)
    local, loaded = models
    source = checkpoint = None
    if loaded is None and not is_endpoint(name.candidate):
        checkpoint = find_checkpoint(name.candidate)
        refuse_missing(checkpoint)
        if checkpoint.method == "none":
            _refuse_alone(candidate_source(checkpoint), None)
    if local is None and not is_endpoint(name.reference):
        source = full_precision(name.reference)
        _refuse_alone(source, revision)
    elif local is None and revision is not None:
        raise UnsupportedError(f"--revision is of a reference on the hub; {name.reference} is on a server")
    names = [one for one in (name.reference, name.candidate) if is_endpoint(one)] if models == NONE else []
    hosts = sorted({read_endpoint(one).host for one in names})
    reached = {one: open_endpoint(read_endpoint(one), servers, hosts=hosts, root=root) for one in names}
    if source is not None:
        own = load_searching(name.reference, device=str(device), revision=revision, dtype=dtype)
        assert isinstance(own, SentenceEncoder)  # others were refused
        local = own
    candidate: Model | None = reached.get(name.candidate)
    if loaded is not None and local is not None:  # a server is not compared with a model in memory
        candidate = replace(loaded, notes=(*loaded.notes, *differences(local, loaded)))
    elif checkpoint is not None:
        candidate = load_checkpoint(checkpoint, local, device=device)
    beside = local or candidate
    prompts = (
        {role: beside.prompt(role) for role in ("query", "document")} if isinstance(beside, SentenceEncoder) else {}
    )
    for encoder in reached.values():
        encoder.learn(prompts, servers.prefixes)
    reference: Model | None = reached.get(name.reference, local)
    assert reference is not None  # what is on no server was loaded
    assert candidate is not None
    return TwoModels(reference, candidate, device=device)


def _refuse_alone(source: ModelSource, revision: str | None) -> None:
    """Refuse a model that searches, but of which nobody knows how it is compared with another."""
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


def _two_classifiers(name: Versus, kind: Kind, device: torch.device, revision: str | None, dtype: str) -> TwoModels:
    """Both classifiers, whose classes are the same in the same order."""
    _refuse_same(name)
    source, checkpoint = full_precision(name.reference), find_checkpoint(name.candidate)
    refuse_missing(checkpoint)
    for one in (source, candidate_source(checkpoint)):
        check_kind(one, "classifier", revision if one is source else None)
    reference = load_classifier(source, device=device, revision=revision, dtype=dtype)
    refuse_quantized([reference.module], source.name)
    candidate = load_stored_classifier(checkpoint, device=device)
    for model in (reference, candidate):
        if model.takes != kind:
            raise UnsupportedError(f"{model.source.name} takes {model.takes}s, and the data are {kind}s")
    ours, theirs = reference.classes, candidate.classes
    if [one.casefold() for one in ours] != [one.casefold() for one in theirs]:
        raise UnsupportedError(
            f"the classes of {name.candidate} ({some(theirs)}) are not those of {name.reference} ({some(ours)}) in the "
            "same order; expected one id2label in both config.json"
        )
    return TwoModels(reference, candidate, device=device)


# --- A classifier that gives what goes into its head ----------------------------------------------


def before_head(name: Spec, classifier: Classifier, pair: QuantizedPair) -> tuple[Classifier, Head]:
    """What goes into a classifier's head, and the head, which the pair leaves at full precision.

    Of a head of several layers, as RoBERTa's, it is what goes into its first linear one.
    """
    names = find_head([classifier.module])
    module = classifier.module.get_submodule(names[0]) if len(names) == 1 else nn.Identity()
    linears = [(path, part) for path, part in module.named_modules() if isinstance(part, nn.Linear)]
    classes = told_apart(classifier.classes)
    logits = _of_vectors(module, linears[0][1].in_features, len(classes)) if linears else None
    if logits is None or any(part in one.modules for one in pair.layers for _, part in linears):
        raise UnsupportedError(
            f"neighbours are searched by what goes into the head; that of {name.model} "
            f"({', '.join(names) or 'none was found'}) makes no logits of one vector an input, or {pair.scheme} "
            "quantizes it. Expected an embedding model, or a "
            "classifier with such a head (ViT, timm, BERT, RoBERTa) and no +head="
        )
    path, first = linears[0]
    record = {"reading": "logits", "head": names[0]}
    head = Head(classes=classes, module=logits, record=record)
    if isinstance(module, nn.Linear):
        bias = np.zeros(first.out_features) if first.bias is None else first.bias.detach().double().cpu().numpy()
        weight = first.weight.detach().double().cpu().numpy()
        head = Head(classes=classes, linear=LinearProbe(classes=classes, weight=weight, bias=bias), record=record)
    return replace(classifier, before=(".".join(filter(None, (names[0], path))), first)), head


def _of_vectors(module: nn.Module, dim: int, n_classes: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """A head as a function of vectors [n, dim], which it may want as sequences of one token; None if it is none."""
    like = next(module.parameters())

    def logits(vectors: torch.Tensor, *, tokens: bool) -> torch.Tensor:
        given = vectors.to(like)
        found: torch.Tensor = module(given[:, None] if tokens else given)
        return found

    for tokens in (False, True):
        try:
            shape = logits(torch.zeros(2, dim), tokens=tokens).shape
        except (IndexError, RuntimeError, TypeError):  # it takes a sequence, or something else
            continue
        if tuple(shape) == (2, n_classes):
            return partial(logits, tokens=tokens)
    return None
