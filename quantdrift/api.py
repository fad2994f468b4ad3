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
from quantdrift.datasets.labelled import ClassificationDataset, Dataset, Labelled, match_labels, read_folder
from quantdrift.datasets.retrieval import RetrievalDataset, load_task, task_names
from quantdrift.engine.inputs import Settings
from quantdrift.engine.refusals import check_pair
from quantdrift.engine.store import EmbeddingStore, default_store
from quantdrift.errors import DataError, ScoreError, SpecError, UnknownNameError, UnsupportedError
from quantdrift.evidence import Evidence
from quantdrift.extras import extras_named
from quantdrift.metrics import measure
from quantdrift.progress import Silent, Terminal
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
        candidate: a scheme ("W4-rtn", or a `Scheme`), a model, or what it puts out; None where `reference` is a
            pair's name, "MODEL@SCHEME" or "REFERENCE vs CANDIDATE".
        data: a dataset, a folder as `quantdrift run --data` takes it, or the name of a task. Of arrays optional: it
            gives them ids, labels and texts, in its order.
        qrels: of arrays: input id to item id to grade, relevant if above 0.
        classes: of logits: names of the classes, [n_classes].
        labels: of logits: the right class of every input, [n_inputs].
        input_ids: of arrays: names of the rows; "0", "1", ... if not given.
        item_ids: of arrays: names of the documents, likewise.
        similarity: of `Embeddings`: "cosine" (the default), "dot" or "euclidean". A model has its own.
        out: run folder to write, an earlier run there is replaced; if not given, a temporary one that goes when the
            run does (`Run.save` keeps it).
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
    dataset = _dataset(data, split)
    said = {
        "qrels": qrels,
        "classes": classes,
        "labels": labels,
        "input_ids": input_ids,
        "item_ids": item_ids,
        "similarity": similarity,
    }
    with ExitStack() as stack:
        stack.enter_context(extras_named(needed_for="quantdrift.drift"))
        folder = _Temporary() if place is None else None
        where = folder.path / "run" if folder is not None else place
        assert where is not None  # one of the two is there
        if not _is_model(reference):
            evidence, record = _of_arrays(reference, candidate, dataset, said, k)
            run = write_run(where, evidence=evidence, record=record)
        else:
            why = "they are of arrays; a model takes labels from data, and has a similarity of its own"
            _refuse(said, *said, why=why)
            if dataset is None:
                raise DataError(
                    "expected data for the models: a RetrievalDataset "
                    "(RetrievalDataset.of(queries, documents)), a folder or the name of a task"
                )
            pair, models = _pair(reference, candidate, device, stack)
            check_pair(pair, dataset, loaded=models != (None, None))
            from quantdrift.engine.run import run as measured  # noqa: PLC0415 -- torch, after all refusals

            run = measured(
                pair,
                dataset,
                out=where,
                settings=Settings(k=k, batch_size=batch_size, noise_floor=noise_floor),
                # what code a model in memory runs is not known, so nothing of it is kept
                store=default_store() if cache and models == (None, None) else EmbeddingStore(None),
                progress=Terminal() if progress else Silent(),
                device=device,
                revision=revision,
                models=models,
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


# --- arrays -----------------------------------------------------------------------------------


def _refuse(said: Mapping[str, Any], *names: str, why: str) -> None:
    """Refuse what does not belong to these arrays."""
    if found := [name for name in names if said.get(name) is not None]:
        raise DataError(f"{', '.join(found)} given: {why}")


def _of_arrays(
    reference: Any, candidate: Any, dataset: Dataset | None, said: Mapping[str, Any], k: int
) -> tuple[Evidence, dict[str, Any]]:
    """Evidence of what two models put out, and the record of its run."""
    kinds = [isinstance(arm, Embeddings) for arm in (reference, candidate)]
    if candidate is None or any(kinds) != all(kinds) or _is_model(candidate):
        shown = " and ".join(type(arm).__name__ for arm in (reference, candidate))
        raise UnsupportedError(
            "expected a model's name or a SentenceTransformer and a scheme, two models, two "
            f"Embeddings, or two arrays of scores; got {shown}"
        )
    from quantdrift.engine.measure import assemble  # noqa: PLC0415 -- torch
    from quantdrift.engine.opening import describe_data, describe_labelled  # noqa: PLC0415 -- torch
    from quantdrift.engine.readings import evidence_of_logits  # noqa: PLC0415 -- torch
    from quantdrift.engine.scoring.streamed import Similarity, score_embeddings, score_matrix  # noqa: PLC0415 -- torch

    if dataset is not None:
        _refuse(said, "qrels", "labels", "input_ids", why="data have their own; expected one of both")
    settings: dict[str, Any] = {}
    if all(kinds):
        _refuse(said, "classes", "labels", why="they are of logits, arrays [n_inputs, n_classes]")
        similarity = Similarity.of(said["similarity"] or "cosine")
        settings["similarity"] = str(similarity)
        arms = [_embeddings(reference, "reference"), _embeddings(candidate, "candidate")]
        if candidate.documents is reference.documents:
            arms[1] = (arms[1][0], arms[0][1])
        shape: tuple[int, ...] = (len(arms[0][0]), len(arms[0][1]))
    else:
        _refuse(said, "similarity", why="arrays of scores have been compared; it is of Embeddings")
        arms = [(_matrix(reference, "reference scores"),), (_matrix(candidate, "candidate scores"),)]
        shape = arms[0][0].shape
        if shape != arms[1][0].shape:
            raise ScoreError(
                f"expected scores of the same inputs and items in both arms; got shapes {shape} and {arms[1][0].shape}"
            )
    if said["classes"] is not None:
        labelled, classes = _labelled(dataset, said, shape[0], shape[1])
        labels, note = labelled.test.labels, None
        if labels is not None:
            labels, note = match_labels(labels, classes)
        first, second = (arm[0].astype(np.float32) for arm in arms)
        evidence = evidence_of_logits(
            first, second, input_ids=labelled.test.ids, classes=classes, labels=labels, depth=k
        )
        data = {**describe_labelled(labelled), "n_classes": len(classes)}
        data["warnings"] += [note] if note else []
        settings["reading"] = "logits"
    else:
        _refuse(said, "labels", why="they are of logits, which have classes=...")
        searched = _searched(dataset, said, shape[0], shape[1])
        if all(kinds):
            state = score_embeddings(arms[0][0], arms[1][0], arms[0][1], arms[1][1], similarity=similarity, k=k)
        else:
            state = score_matrix(arms[0][0], arms[1][0], k=k)
        ids, items = searched.query_ids, searched.document_ids
        evidence = assemble(state, input_ids=ids, item_ids=items, qrels=searched.qrels)
        data = describe_data(searched)
    return evidence, {
        "spec": "reference vs candidate",
        "model": {
            "name": "reference",
            "fingerprint": _digest(*arms[0]),
            "candidate_name": "candidate",
            "candidate_fingerprint": _digest(*arms[1]),
        },
        "bits_per_weight": None,
        "data": data if dataset is not None else {**data, "harness": "arrays"},
        "settings": {"k": evidence.depth, **settings},
        "versions": {"quantdrift": __version__},
        "metrics": {name: found.to_json() for name, found in measure(evidence).items()},
    }


def _labelled(
    dataset: Dataset | None, said: Mapping[str, Any], n_inputs: int, n_classes: int
) -> tuple[ClassificationDataset, tuple[str, ...]]:
    """The dataset that logits are of, and the names of their classes; without one, ids stand for the inputs."""
    _refuse(said, "qrels", "item_ids", why="logits have labels and classes in their place")
    classes = _names(said["classes"], n_classes, "classes")
    if dataset is None:
        ids = _names(said["input_ids"], n_inputs, "input_ids")
        labels = None if said["labels"] is None else tuple(map(str, said["labels"]))
        test = Labelled(ids=ids, inputs=ids, labels=labels)
        return ClassificationDataset(name="arrays", kind="text", split="test", test=test), classes
    if not isinstance(dataset, ClassificationDataset):
        raise DataError(f"expected classification data beside logits; {dataset.name} is for a search")
    if len(dataset.test.ids) != n_inputs:
        raise DataError(
            f"expected one row of logits for each of the {len(dataset.test.ids):,} inputs of "
            f"{dataset.name}; got {n_inputs:,}"
        )
    return dataset, classes


def _searched(dataset: Dataset | None, said: Mapping[str, Any], n_queries: int, n_docs: int) -> RetrievalDataset:
    """The dataset that arrays are of; without one their ids stand for the texts."""
    if isinstance(dataset, ClassificationDataset):
        raise DataError(
            f"{dataset.name} is classification data; expected classes=... and arrays of "
            "logits [n_inputs, n_classes] beside it"
        )
    if dataset is None:
        queries = _names(said["input_ids"], n_queries, "input_ids")
        documents = _names(said["item_ids"], n_docs, "item_ids")
        qrels = {
            str(query): {str(name): grade for name, grade in own.items()}
            for query, own in (said["qrels"] or {}).items()
        }
        return RetrievalDataset(
            name="arrays",
            query_ids=queries,
            queries=queries,
            document_ids=documents,
            documents=documents,
            qrels=qrels,
            split="test",
        )
    _refuse(said, "item_ids", why="data have their own; expected one of both")
    if (len(dataset.query_ids), len(dataset.document_ids)) != (n_queries, n_docs):
        raise DataError(
            f"expected arrays of the {len(dataset.query_ids):,} queries and "
            f"{len(dataset.document_ids):,} documents of {dataset.name}, in their order; got "
            f"{n_queries:,} and {n_docs:,}"
        )
    return dataset


def _embeddings(arm: Embeddings, name: str) -> tuple[NDArray[Any], ...]:
    return tuple(_matrix(getattr(arm, side), f"{name} embeddings of {side}") for side in ("queries", "documents"))


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
