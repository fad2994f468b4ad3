"""One call from two models, or from what two models put out, to a finished run.

>>> import numpy as np
>>> from quantdrift import drift
>>> run = drift(np.array([[0.9, 0.8]]), np.array([[0.7, 0.8]]))
>>> run["flip@1"].value
1.0
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import __version__
from quantdrift.datasets.labelled import ClassificationDataset, Dataset, Labelled, read_folder
from quantdrift.datasets.retrieval import RetrievalDataset, load_task, task_names
from quantdrift.errors import DataError, ScoreError, SpecError, UnknownNameError, UnsupportedError
from quantdrift.evidence import Evidence
from quantdrift.extras import extras_named
from quantdrift.metrics import measure
from quantdrift.runs import Run, check_place, write_run
from quantdrift.spec import Scheme, Spec, Versus, parse_pair, parse_scheme

if TYPE_CHECKING:
    from quantdrift.engine.encoders.sentence import SentenceEncoder

Names = Sequence[Any] | NDArray[Any]
Qrels = Mapping[Any, Mapping[Any, int]]

_ROWS = 65_536
"""Rows of an array that are looked at together."""
_LIKE_A_SCHEME = re.compile(r"\s*[Ww]\d")
_STORED = ".json"
_OF_ARRAYS = ("qrels", "classes", "labels", "input_ids", "item_ids", "similarity")


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """What one model makes of queries and documents.

    Attributes:
        queries: float [n_queries, dim], an array, memory map or tensor.
        documents: float [n_docs, dim]; give both arms the same object where only queries differ.
    """

    queries: Any
    documents: Any


def drift(
    reference: Any,
    candidate: Any = None,
    data: Dataset | str | Path | None = None,
    *,
    qrels: Qrels | None = None,
    classes: Names | None = None,
    labels: Names | None = None,
    input_ids: Names | None = None,
    item_ids: Names | None = None,
    similarity: str | None = None,
    out: str | Path | None = None,
    split: str = "test",
    k: int = 200,
    batch_size: int = 32,
    noise_floor: bool = True,
    device: str | None = None,
    revision: str | None = None,
    cache: bool = True,
    progress: bool = False,
) -> Run:
    """Measure what a candidate answers otherwise than its reference, input by input.

    What the two may be:

    - names: `drift("minilm", "W4-rtn", data)`, `drift("minilm@W4-rtn", data=data)`,
      `drift("minilm", "./my-gptq", data)`;
    - a SentenceTransformer and a scheme, `drift(model, "W4-rtn", data)`, or two models;
    - two `Embeddings`, of the same queries and documents;
    - two matrices of scores [n_queries, n_docs], higher is better; with `classes`, logits
      [n_inputs, n_classes].

    Args:
        reference: the model at full precision, or what it puts out. A model is left as it was.
        candidate: a scheme ("W4-rtn", or a `Scheme`), a model, or what it puts out; None where
            `reference` is a pair's name, "MODEL@SCHEME" or "REFERENCE vs CANDIDATE".
        data: a dataset, a folder as `quantdrift run --data` takes it, or the name of a task. Of
            arrays optional: it gives them ids, labels and texts, in its order.
        qrels: of arrays: input id to item id to grade, relevant if above 0.
        classes: of logits: names of the classes, [n_classes].
        labels: of logits: the right class of every input, [n_inputs].
        input_ids: of arrays: names of the rows; "0", "1", ... if not given.
        item_ids: of arrays: names of the documents, likewise.
        similarity: of `Embeddings`: "cosine" (the default), "dot" or "euclidean". A model has its
            own.
        out: run folder to write, an earlier run there is replaced; if not given, a temporary one
            that goes when the run does (`Run.save` keeps it).
        split: of a folder: which labels or part.
        k: ranks kept of either arm.
        batch_size: of models: inputs per forward pass.
        noise_floor: of models: whether the reference is run a second time.
        device: of models given by name; the best there is if not given.
        revision: of a reference on the hub.
        cache: of models given by name: keep embeddings and quantized layers for the next run.
        progress: of models: show bars on standard error.

    Returns:
        The run: `run["flip@1"]`, `run.changed()`, `run.to_pandas()`, `run.evidence()`,
        `run.record`.

    Raises:
        SpecError: a spec or scheme does not parse.
        UnknownNameError: there is no such model, folder, task or similarity.
        UnsupportedError: this model cannot be paired, or not like this.
        DataError: data, ids or labels cannot be used, or do not fit the arrays.
        ScoreError: arrays are not of numbers, of shapes that do not fit, or hold NaN or infinity.
        MissingExtraError: torch, or what the models need, is not installed.
        RunError: the folder cannot be written.

    Source: paper, section 3.
    """
    place = None if out is None else Path(out).expanduser().absolute()
    if place is not None:
        check_place(place)  # before anything is computed
    given = _Given(
        dataset=_dataset(data, split),
        qrels=qrels,
        classes=classes,
        labels=labels,
        input_ids=input_ids,
        item_ids=item_ids,
        similarity=similarity,
        k=k,
    )
    with ExitStack() as stack:
        stack.enter_context(extras_named(needed_for="quantdrift.drift"))
        folder = _Temporary() if place is None else None
        where = folder.path / "run" if folder is not None else place
        assert where is not None  # one of the two is there
        if not _is_model(reference):
            evidence, record = _of_arrays(reference, candidate, given)
            run = write_run(where, evidence=evidence, record=record)
        else:
            given.refuse(
                *_OF_ARRAYS, why="they are of arrays; a model takes labels from data, and has a similarity of its own"
            )
            if given.dataset is None:
                raise DataError(
                    "expected data for the models: a RetrievalDataset "
                    "(RetrievalDataset.of(queries, documents)), a folder or the name of a task"
                )
            pair, models = _pair(reference, candidate, device, stack)
            run = _measured(
                pair,
                given.dataset,
                where,
                models,
                k=k,
                batch_size=batch_size,
                noise_floor=noise_floor,
                device=device,
                revision=revision,
                cache=cache,
                progress=progress,
            )
    return run if folder is None else replace(run, keeper=folder)


class _Temporary:
    """A folder that goes when this does, at the latest when Python ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="quantdrift-"))
        self._end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _dataset(data: Any, split: str) -> Dataset | None:
    if data is None or isinstance(data, RetrievalDataset | ClassificationDataset):
        return data
    if isinstance(data, str | Path):
        place = Path(data).expanduser()
        if place.exists() or isinstance(data, Path):
            return read_folder(place, split)
        if data in task_names():
            return load_task(data)
        raise UnknownNameError("folder or task", data, task_names())
    raise DataError(
        "expected a RetrievalDataset, a ClassificationDataset, a folder or the name of a task as "
        f"data; got {type(data).__name__}"
    )


# --- models -----------------------------------------------------------------------------------


def _is_model(value: Any) -> bool:
    """Whether it is a name or a model, and not what a model puts out."""
    return isinstance(value, str | Spec | Versus | Path) or hasattr(value, "encode_query")


def _pair(
    reference: Any, candidate: Any, device: str | None, stack: ExitStack
) -> tuple[Spec | Versus, tuple[SentenceEncoder | None, SentenceEncoder | None]]:
    """The pair by its name, and those of its models that are loaded."""
    if isinstance(candidate, Embeddings) or not (
        candidate is None or isinstance(candidate, Scheme) or _is_model(candidate)
    ):
        raise UnsupportedError(
            f"expected a scheme, a name or a SentenceTransformer beside a model; got {type(candidate).__name__}"
        )
    named = isinstance(reference, str | Path | Spec | Versus)
    if candidate is None:
        if not named:
            raise UnsupportedError("expected a scheme or a second model beside a model; got none")
        pair = reference if isinstance(reference, Spec | Versus) else parse_pair(str(reference))
        return pair, (None, None)
    if candidate is reference:
        raise UnsupportedError("reference and candidate are one model; expected two, or a model and a scheme")
    models = (
        None if named else _loaded(reference, device, stack),
        None if isinstance(candidate, str | Path | Scheme) else _loaded(candidate, device, stack),
    )
    name = str(reference) if models[0] is None else models[0].source.name
    scheme = _scheme(candidate)
    if scheme is not None:
        return Spec(model=name, scheme=scheme), models
    other = str(candidate) if models[1] is None else models[1].source.name
    pair = Versus(reference=name, candidate=other)
    if pair.on_server and models != (None, None):
        raise UnsupportedError(f'"{pair}": a model on a server is compared with one that is given by its name')
    return pair, models


def _scheme(candidate: Any) -> Scheme | None:
    """The scheme that a candidate is; None if it is a model."""
    if isinstance(candidate, Scheme):
        return candidate
    if not isinstance(candidate, str) or Path(candidate).is_dir():
        return None
    try:
        return parse_scheme(candidate)
    except SpecError:
        # what begins as a scheme does, or names an allocation, is meant as one
        if _LIKE_A_SCHEME.match(candidate) or _STORED in candidate:
            raise
        return None


def _loaded(model: Any, device: str | None, stack: ExitStack) -> SentenceEncoder:
    """A model in memory, in evaluation mode until the stack is left."""
    from quantdrift.engine.encoders.sentence import encoder_of  # noqa: PLC0415 -- as above
    from quantdrift.engine.weights import left_as_it_was  # noqa: PLC0415 -- torch
    from quantdrift.models.named import ModelSource, name_in_config  # noqa: PLC0415 -- as above

    if device is not None:
        raise UnsupportedError("device is for models given by name; move the model with model.to()")
    name = " ".join((name_in_config([model]) or type(model).__name__).split())
    name = name.replace(" vs ", "-vs-")
    stack.enter_context(left_as_it_was(model))
    model.eval()
    return encoder_of(model, ModelSource(name=name, canonical=name, kind="loaded", location=""))


def _measured(
    pair: Spec | Versus,
    dataset: Dataset,
    out: Path,
    models: tuple[SentenceEncoder | None, SentenceEncoder | None],
    *,
    k: int,
    batch_size: int,
    noise_floor: bool,
    device: str | None,
    revision: str | None,
    cache: bool,
    progress: bool,
) -> Run:
    from quantdrift.engine.refusals import check_pair  # noqa: PLC0415 -- as below

    loaded = models != (None, None)
    check_pair(pair, dataset, loaded=loaded)
    from quantdrift.engine import run as engine  # noqa: PLC0415 -- torch, after all refusals
    from quantdrift.engine.inputs import Settings  # noqa: PLC0415
    from quantdrift.engine.store import EmbeddingStore, default_store  # noqa: PLC0415
    from quantdrift.progress import Silent, Terminal  # noqa: PLC0415

    return engine.run(
        pair,
        dataset,
        out=out,
        settings=Settings(k=k, batch_size=batch_size, noise_floor=noise_floor),
        # what code a model in memory runs is not known, so nothing of it is kept
        store=default_store() if cache and not loaded else EmbeddingStore(None),
        progress=Terminal() if progress else Silent(),
        device=device,
        revision=revision,
        models=models,
    )


# --- arrays -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Given:
    """What is said of arrays beside the arrays."""

    dataset: Dataset | None
    qrels: Qrels | None
    classes: Names | None
    labels: Names | None
    input_ids: Names | None
    item_ids: Names | None
    similarity: str | None
    k: int

    def refuse(self, *names: str, why: str) -> None:
        """Refuse what does not belong to these arrays."""
        if found := [name for name in names if getattr(self, name) is not None]:
            raise DataError(f"{', '.join(found)} given: {why}")


def _of_arrays(reference: Any, candidate: Any, given: _Given) -> tuple[Evidence, dict[str, Any]]:
    """Evidence of what two models put out, and the record of its run."""
    kinds = [isinstance(arm, Embeddings) for arm in (reference, candidate)]
    if candidate is None or any(kinds) != all(kinds) or _is_model(candidate):
        shown = " and ".join(type(arm).__name__ for arm in (reference, candidate))
        raise UnsupportedError(
            "expected a model's name or a SentenceTransformer and a scheme, two models, two "
            f"Embeddings, or two arrays of scores; got {shown}"
        )
    if given.dataset is not None:
        given.refuse("qrels", "labels", "input_ids", why="data have their own; expected one of both")
    if all(kinds):
        given.refuse("classes", "labels", why="they are of logits, arrays [n_inputs, n_classes]")
        found = _of_embeddings(reference, candidate, given)
    else:
        given.refuse("similarity", why="arrays of scores have been compared; it is of Embeddings")
        arms = _matrix(reference, "reference scores"), _matrix(candidate, "candidate scores")
        if arms[0].shape != arms[1].shape:
            raise ScoreError(
                "expected scores of the same inputs and items in both arms; got shapes "
                f"{arms[0].shape} and {arms[1].shape}"
            )
        found = (_of_scores if given.classes is None else _of_logits)(*arms, given)
    evidence, data, settings, digests = found
    return evidence, {
        "spec": "reference vs candidate",
        "model": {
            "name": "reference",
            "fingerprint": digests[0],
            "candidate_name": "candidate",
            "candidate_fingerprint": digests[1],
        },
        "bits_per_weight": None,
        "data": data if given.dataset is not None else {**data, "harness": "arrays"},
        "settings": {"k": evidence.depth, **settings},
        "versions": {"quantdrift": __version__},
        "metrics": {name: found.to_json() for name, found in measure(evidence).items()},
    }


_Found = tuple[Evidence, Mapping[str, Any], Mapping[str, Any], tuple[str, str]]
"""Evidence, what is said of data and settings, and digests of both arms."""


def _of_embeddings(reference: Embeddings, candidate: Embeddings, given: _Given) -> _Found:
    from quantdrift.engine.measure import assemble  # noqa: PLC0415 -- torch
    from quantdrift.engine.opening import describe_data  # noqa: PLC0415 -- as above
    from quantdrift.engine.scoring.streamed import Similarity, score_embeddings  # noqa: PLC0415 -- as above

    similarity = Similarity.of(given.similarity or "cosine")
    queries, low_queries = (
        _matrix(arm.queries, f"{name} embeddings of queries")
        for name, arm in (("reference", reference), ("candidate", candidate))
    )
    documents = _matrix(reference.documents, "reference embeddings of documents")
    low_documents = documents
    if candidate.documents is not reference.documents:
        low_documents = _matrix(candidate.documents, "candidate embeddings of documents")
    dataset = _searched(given, len(queries), len(documents))
    state = score_embeddings(queries, low_queries, documents, low_documents, similarity=similarity, k=given.k)
    evidence = assemble(state, input_ids=dataset.query_ids, item_ids=dataset.document_ids, qrels=dataset.qrels)
    digests = _digest(queries, documents), _digest(low_queries, low_documents)
    return evidence, describe_data(dataset), {"similarity": str(similarity)}, digests


def _of_scores(reference: NDArray[Any], candidate: NDArray[Any], given: _Given) -> _Found:
    from quantdrift.engine.measure import assemble  # noqa: PLC0415 -- torch
    from quantdrift.engine.opening import describe_data  # noqa: PLC0415 -- as above
    from quantdrift.engine.scoring.streamed import score_matrix  # noqa: PLC0415 -- as above

    given.refuse("labels", why="they are of logits, which have classes=...")
    dataset = _searched(given, *reference.shape)
    evidence = assemble(
        score_matrix(reference, candidate, k=given.k),
        input_ids=dataset.query_ids,
        item_ids=dataset.document_ids,
        qrels=dataset.qrels,
    )
    return evidence, describe_data(dataset), {}, (_digest(reference), _digest(candidate))


def _of_logits(reference: NDArray[Any], candidate: NDArray[Any], given: _Given) -> _Found:
    from quantdrift.datasets.labelled import match_labels  # noqa: PLC0415 -- torch
    from quantdrift.engine.opening import describe_labelled  # noqa: PLC0415
    from quantdrift.engine.readings import evidence_of_logits  # noqa: PLC0415

    given.refuse("qrels", "item_ids", why="logits have labels and classes in their place")
    n_inputs, n_classes = reference.shape
    classes = _names(given.classes, n_classes, "classes")
    dataset = given.dataset
    if dataset is None:
        ids = _names(given.input_ids, n_inputs, "input_ids")
        labels = None if given.labels is None else tuple(str(label) for label in given.labels)
        test = Labelled(ids=ids, inputs=ids, labels=labels)
        dataset = ClassificationDataset(name="arrays", kind="text", split="test", test=test)
    if not isinstance(dataset, ClassificationDataset):
        raise DataError(f"expected classification data beside logits; {dataset.name} is for a search")
    if len(dataset.test.ids) != n_inputs:
        raise DataError(
            f"expected one row of logits for each of the {len(dataset.test.ids):,} inputs of "
            f"{dataset.name}; got {n_inputs:,}"
        )
    labels, note = dataset.test.labels, None
    if labels is not None:
        labels, note = match_labels(labels, classes)
    evidence = evidence_of_logits(
        reference.astype(np.float32),
        candidate.astype(np.float32),
        input_ids=dataset.test.ids,
        classes=classes,
        labels=labels,
        depth=given.k,
    )
    data = describe_labelled(dataset)
    data |= {"n_classes": n_classes, "warnings": [*data["warnings"], *([note] if note else [])]}
    return evidence, data, {"reading": "logits"}, (_digest(reference), _digest(candidate))


def _searched(given: _Given, n_queries: int, n_docs: int) -> RetrievalDataset:
    """The dataset that arrays are of; without one their ids stand for the texts."""
    if isinstance(given.dataset, ClassificationDataset):
        raise DataError(
            f"{given.dataset.name} is classification data; expected classes=... and arrays of "
            "logits [n_inputs, n_classes] beside it"
        )
    if given.dataset is None:
        input_ids = _names(given.input_ids, n_queries, "input_ids")
        item_ids = _names(given.item_ids, n_docs, "item_ids")
        return RetrievalDataset(
            name="arrays",
            query_ids=input_ids,
            queries=input_ids,
            document_ids=item_ids,
            documents=item_ids,
            qrels={
                str(query): {str(document): grade for document, grade in own.items()}
                for query, own in (given.qrels or {}).items()
            },
            split="test",
        )
    given.refuse("item_ids", why="data have their own; expected one of both")
    dataset = given.dataset
    if (len(dataset.query_ids), len(dataset.document_ids)) != (n_queries, n_docs):
        raise DataError(
            f"expected arrays of the {len(dataset.query_ids):,} queries and "
            f"{len(dataset.document_ids):,} documents of {dataset.name}, in their order; got "
            f"{n_queries:,} and {n_docs:,}"
        )
    return dataset


def _names(given: Names | None, n: int, what: str) -> tuple[str, ...]:
    if given is None:
        return tuple(str(number) for number in range(n))
    names = tuple(str(name) for name in given)
    if len(names) != n:
        raise DataError(f"expected one of {what} for each of {n:,}; got {len(names):,}")
    return names


def _matrix(values: Any, what: str) -> NDArray[Any]:
    """An array of finite numbers with two axes; tensors come to the CPU."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ScoreError(f"expected {what} as an array with two axes; {error}") from error
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:  # noqa: PLR2004 -- a matrix
        raise ScoreError(f"expected {what} as numbers [n, m]; got {array.dtype} of shape {array.shape}")
    for at in range(0, len(array), _ROWS):
        bad = ~np.isfinite(array[at : at + _ROWS]).all(axis=1)
        if bad.any():
            raise ScoreError(f"expected finite {what}; row {at + int(bad.argmax())} holds NaN or infinity")
    return array


def _digest(*arrays: NDArray[Any]) -> str:
    """Of the numbers, in their shapes, 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype.str}:{array.shape};".encode())
        for at in range(0, len(array), _ROWS):
            digest.update(np.ascontiguousarray(array[at : at + _ROWS]).data)
    return digest.hexdigest()
