"""`drift`: one call from two models, or from their outputs, to a finished run.

>>> import numpy as np
>>> from quantdrift import drift
>>> run = drift(np.array([[0.9, 0.8]]), np.array([[0.7, 0.8]]))
>>> run["flip@1"].value
1.0
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quantdrift import __version__
from quantdrift.asking.ask import Ask
from quantdrift.asking.ensure import ensure
from quantdrift.base.errors import DataError, ScoreError, SpecError, UnsupportedError
from quantdrift.base.extras import extras_named
from quantdrift.base.progress import progress_bars
from quantdrift.base.records import bytes_digest, write_text
from quantdrift.base.registry import imported
from quantdrift.candidate.refusals import check_named
from quantdrift.data.labelled import (
    ClassificationDataset,
    Dataset,
    Labelled,
    is_place,
    load_task,
    match_labels,
    of_table,
    read_folder,
    searched,
)
from quantdrift.data.retrieval import RetrievalDataset, counted, excerpt, facts_of, keeping_own_ids, named
from quantdrift.data.tables import Columns, frame_table
from quantdrift.evidence.record import Evidence
from quantdrift.finished.diff import Diff, write_diff
from quantdrift.finished.retrievers import diff_of_searches
from quantdrift.kinds.encoder import KINDS
from quantdrift.metrics import measure
from quantdrift.metrics.forbids import forbidding
from quantdrift.models.inputs import Settings
from quantdrift.models.store import EmbeddingStore, default_store, key_of
from quantdrift.runs import folder
from quantdrift.runs.folder import check_place, write_run
from quantdrift.runs.words import estimates_of
from quantdrift.scheme import Scheme
from quantdrift.show.run import as_text, run_output
from quantdrift.spec.grammar import Spec, Versus, dtype_named, is_like_scheme, parse_pair, parse_scheme

if TYPE_CHECKING:
    from quantdrift.builtin.sentence.work import SentenceEncoder
    from quantdrift.statistics.estimates import Estimate


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run(folder.Run):
    """A finished run; `print(run.summary())` shows it, or the run as the last line of a notebook's cell."""

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The stored metrics by name, with 95 % interval and number of inputs; `run[NAME]` computes others."""
        return estimates_of(self.record)

    def summary(self) -> str:
        """Return the verdict, the worst changes with their texts, and five figures, as `quantdrift run` shows them."""
        return as_text(run_output(self))

    def report(self, path: str | Path, *, data: str | Path | None = None) -> Path:
        """Write the run as one self-contained HTML page, and return its path.

        Args:
            path: the file; an earlier one is replaced.
            data: folder of the run's data, for texts; by default where it was.

        Raises:
            RunError: it cannot be written.
            DataError: `data` holds other data.
            MissingExtraError: the extra that draws charts is not installed: quantdrift[report].
        """
        from quantdrift.report.page import render  # noqa: PLC0415 -- an extra
        from quantdrift.report.run import page_of  # noqa: PLC0415 -- as above

        place = Path(path).expanduser()
        write_text(place, render(page_of(self, data=None if data is None else Path(data))), what="the report")
        return place

    def _repr_html_(self) -> str:
        """The summary, as notebooks show it."""
        return f"<pre>{escape(self.summary())}</pre>"


def read_run(path: str | Path) -> Run:
    """Read the run in a folder.

    Args:
        path: the folder, or the run.json in it.

    Raises:
        RunError: it is not a run folder, or one that this version cannot read.
    """
    run = folder.read_run(path)
    return Run(path=run.path, record=run.record)


Names = Sequence[Any] | NDArray[Any]
Qrels = Mapping[Any, Mapping[Any, int]]


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """One model's embeddings of queries and documents.

    Attributes:
        queries: float [n_queries, dim], an array, memory map or tensor.
        documents: float [n_docs, dim]; give both arms the same object where only queries differ.
    """

    queries: Any
    documents: Any


def drift(
    reference: Any,
    candidate: Any = None,
    data: Dataset | str | Path | Any = None,
    *,
    columns: Columns | None = None,
    qrels: Qrels | None = None,
    classes: Names | None = None,
    labels: Names | None = None,
    input_ids: Names | None = None,
    item_ids: Names | None = None,
    similarity: str | None = None,
    out: str | Path | None = None,
    split: str = "test",
    keep_own_ids: bool = False,
    k: int = 200,
    batch_size: int = 32,
    noise_floor: bool = True,
    tolerance: float = 0.03,
    mean_tolerance: float = 0.03,
    device: str | None = None,
    revision: str | None = None,
    dtype: str = "float32",
    trust_remote_code: bool = False,
    cache: bool = True,
    progress: bool = False,
) -> Run:
    """Measure which answers of a candidate differ from those of its reference, input by input.

    Both may be:

    - names: `drift("minilm", "W4-rtn", data)`, `drift("minilm@W4-rtn", data=data)`,
      `drift("minilm", "./my-gptq", data)`;
    - a SentenceTransformer and a scheme, `drift(model, "W4-rtn", data)`, or two models; a MultiVectorEncoder or a
      SparseEncoder and a scheme;
    - two `Embeddings`, of the same queries and documents;
    - two matrices of scores [n_queries, n_docs], higher is better; with `classes`, logits
      [n_inputs, n_classes];
    - two retrievers, functions from the text of a query to ids, best first, or to pairs of id and score.

    Args:
        reference: the model at full precision, or its outputs. A model is left unchanged.
        candidate: a scheme ("W4-rtn", or a `Scheme`), a model, or its outputs; None where `reference` is a
            pair's name, "MODEL@SCHEME" or "REFERENCE vs CANDIDATE".
        data: a dataset, a folder or table as for `quantdrift run --data`, a data frame (pandas, polars, pyarrow), or
            the name of a task. Optional for arrays, which get its ids, labels and texts, in its order. For retrievers
            also queries alone: texts, or id to text.
        columns: for a table or data frame whose columns have other names than the usual ones:
            {"query": "question", "document": "answer"}.
        qrels: for arrays and retrievers: input id to item id to grade, relevant if above 0.
        classes: for logits: names of the classes, [n_classes].
        labels: for logits: the right class of every input, [n_inputs].
        input_ids: for arrays: names of the rows; by default "0", "1", ...
        item_ids: for arrays: names of the documents, likewise.
        similarity: for `Embeddings`: "cosine" (the default), "dot" or "euclidean". A model has its own.
        out: run folder, where an earlier run is replaced; by default a temporary folder, which is deleted with the run
            (`Run.save` keeps it).
        split: for a folder: the split of labels, or the part.
        keep_own_ids: whether queries that are documents too, with the same id and text, find themselves.
        k: number of ranks that are kept of either arm.
        batch_size: for models: inputs per forward pass.
        noise_floor: for models and retrievers: whether the reference is run a second time.
        tolerance: share of inputs that may get another top-1, and of right first answers that may be lost.
        mean_tolerance: largest acceptable fall of nDCG@10 or accuracy.
        device: for models given by name: device; by default the best available one.
        revision: revision of a reference on the hub.
        dtype: for a model given by name: full precision, "float32", "bfloat16" or "float16".
        trust_remote_code: for models given by name: whether Python code that comes with them may run.
        cache: for models given by name: whether embeddings and quantized layers are kept for the next run.
        progress: for models: whether bars are shown on standard error.

    Returns:
        The run: `run["flip@1"]`, `run.changed()`, `run.to_pandas()`, `run.evidence()`,
        `run.record`.

    Raises:
        SpecError: a spec or scheme does not parse.
        UnknownNameError: there is no such model, folder, task or similarity.
        UnsupportedError: these models cannot be compared.
        DataError: data, ids or labels cannot be used, or do not match the arrays; a retriever fails, or returns
            something else than answers.
        ScoreError: arrays have the wrong shape, or hold something other than finite numbers.
        MissingExtraError: torch, or a package that the models need, is not installed.
        RunError: the folder cannot be written.

    Source: paper, section 3.
    """
    from quantdrift.statistics.standing import Tolerances  # noqa: PLC0415 -- scipy

    allowed = Tolerances(changed=tolerance, mean=mean_tolerance)
    place = None if out is None else Path(out).expanduser().absolute()
    if place is not None:
        check_place(place)  # before anything is computed
    if _is_named(reference) and (candidate is None or isinstance(candidate, Scheme) or _is_named(candidate)):
        check_named(_pair(reference, candidate, device, ExitStack())[0])  # a task may have to be downloaded
    searches = all(callable(arm) and not _is_model(arm) for arm in (reference, candidate))
    dataset = None
    if not (searches and isinstance(data, Mapping | list | tuple)):
        dataset = keeping_own_ids(_dataset(data, split, columns), keep_own_ids and data is not None)
    said = {"qrels": qrels, "classes": classes, "labels": labels}
    said |= {"input_ids": input_ids, "item_ids": item_ids, "similarity": similarity}
    with extras_named(needed_for="quantdrift.drift"), ExitStack() as stack:
        temporary = _Temporary() if place is None else None
        where = temporary.path / "run" if temporary is not None else place
        assert where is not None  # one of the two is there
        if searches:
            _refuse({**said, "qrels": None}, {"qrels"}, "retrievers")
            diff = _of_searches((reference, candidate), dataset, data, qrels, k=k, noise=noise_floor)
            run = folder.judged_with(write_diff(diff, where)[0], allowed)
        elif not _is_model(reference):
            evidence, record = _of_arrays(reference, candidate, dataset, said, k)
            run = write_run(where, evidence=evidence, record={**record, "tolerances": asdict(allowed)})
        else:
            _refuse(said, (), "models")
            if dataset is None:
                raise DataError(
                    "expected data for the models: a RetrievalDataset "
                    "(RetrievalDataset.of(queries, documents)), a folder or the name of a task"
                )
            pair, models = _pair(reference, candidate, device, stack)
            # the code of a model in memory is not known, so nothing of it is kept
            given: Any = {} if models == (None, None) else {"models": models}
            run = ensure(
                Ask(pair=pair, data=facts_of(dataset), dataset=dataset),
                where,
                settings=Settings(
                    k=k,
                    batch_size=batch_size,
                    noise_floor=noise_floor,
                    dtype=dtype_named(dtype),
                    trust_remote_code=trust_remote_code,
                ),
                store=default_store() if cache and not given else EmbeddingStore(None),
                progress=progress_bars(quiet=not progress),
                device=device,
                revision=revision,
                reuse=False,
                record={"tolerances": asdict(allowed)},
                **given,
            )
    return Run(path=run.path, record=run.record, keeper=temporary)


class _Temporary:
    """A folder that is deleted with this object, at the latest when Python ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="quantdrift-"))
        self._end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _dataset(data: Any, split: str, columns: Columns | None) -> Dataset | None:
    if hasattr(data, "__arrow_c_stream__"):
        return of_table(frame_table(data, columns), split)
    if isinstance(data, Path) or (isinstance(data, str) and is_place(data)):
        return read_folder(Path(data).expanduser(), split, columns)
    if columns is not None:
        raise DataError("columns are of a table or data frame; leave them out")
    if data is None or isinstance(data, RetrievalDataset | ClassificationDataset):
        return data
    if not isinstance(data, str | Path):
        raise DataError(
            f"expected a dataset, a folder, a data frame or the name of a task as data; got {type(data).__name__}"
        )
    return load_task(str(data), split)


# --- models -----------------------------------------------------------------------------------


def _is_model(value: Any) -> bool:
    """Whether a value is a name or a model, not a model's outputs."""
    return _is_named(value) or hasattr(value, "encode_query")


def _is_named(value: Any) -> bool:
    return isinstance(value, str | Path | Spec | Versus)


def _pair(
    reference: Any, candidate: Any, device: str | None, stack: ExitStack
) -> tuple[Spec | Versus, tuple[SentenceEncoder | None, SentenceEncoder | None]]:
    """Return the name of the pair, and those of its models that are in memory."""
    if candidate is None and _is_named(reference):
        return parse_pair(str(reference)), (None, None)
    if candidate is reference or not (isinstance(candidate, Scheme) or _is_model(candidate)):
        raise UnsupportedError(
            "expected a scheme or a second model (a name or a SentenceTransformer) beside a model; got "
            + ("the same one" if candidate is reference else type(candidate).__name__)
        )
    scheme = _scheme(candidate)
    from quantdrift.models.files.checkpoint import refuse_quantized  # noqa: PLC0415 -- as below

    first = None if _is_named(reference) else _loaded(reference, device, stack)
    if first is not None:
        refuse_quantized([reference], first.source.name)
    second = None if scheme or _is_named(candidate) else _loaded(candidate, device, stack)
    name = first.source.name if first else str(reference)
    if scheme is not None:
        return Spec(model=name, scheme=scheme), (first, None)
    for model in (first, second):
        if model is not None and not model.one_vector:
            raise UnsupportedError(
                f"{model.source.name} is compared with its own quantized self alone; expected a scheme"
            )
    pair = Versus(reference=name, candidate=second.source.name if second else str(candidate))
    if pair.on_server and (first or second):
        raise UnsupportedError(f'"{pair}": a model on a server is compared with one that is given by its name')
    return pair, (first, second)


def _scheme(candidate: Any) -> Scheme | None:
    """Return the scheme of a candidate; None if it is a model."""
    if isinstance(candidate, Scheme):
        return candidate
    if not isinstance(candidate, str) or Path(candidate).is_dir():
        return None
    try:
        return parse_scheme(candidate)
    except SpecError:
        if is_like_scheme(candidate):
            raise
        return None


def _loaded(model: Any, device: str | None, stack: ExitStack) -> SentenceEncoder:
    """Return the encoder of a model in memory, in evaluation mode until the stack is closed."""
    from quantdrift.models.files.named import ModelSource, name_in_config  # noqa: PLC0415 -- as above
    from quantdrift.models.loading import refuse_unfit_tokenizer  # noqa: PLC0415 -- torch
    from quantdrift.models.weights import restoring  # noqa: PLC0415 -- torch

    if device is not None:
        raise UnsupportedError("device is for models given by name; move the model with model.to()")
    name = " ".join((name_in_config([model]) or type(model).__name__).split())
    name = name.replace(" vs ", "-vs-")
    refuse_unfit_tokenizer(model, name)
    stack.enter_context(restoring(model))
    model.eval()
    kinds = {of: make for kind in KINDS.values() for of, make in kind.in_memory.items()}
    usual = "quantdrift.builtin.sentence.work:encoder_of"
    make = next((kinds[of.__name__] for of in type(model).__mro__ if of.__name__ in kinds), usual)
    encoder: SentenceEncoder = imported(make)(model, ModelSource(name=name, canonical=name, kind="loaded", location=""))
    return encoder


# --- retrievers -------------------------------------------------------------------------------


def _of_searches(arms: Any, dataset: Dataset | None, data: Any, qrels: Qrels | None, **how: Any) -> Diff:
    """Ask two retrievers the queries of data, or queries alone."""
    pairs = [*data.items()] if isinstance(data, Mapping) else [*enumerate(data or ())] if dataset is None else []
    if dataset is not None:
        held = searched(dataset)
        pairs, qrels = [*zip(held.query_ids, held.queries, strict=True)], qrels or held.qrels
    queries = {named(key, "a query's id"): named(text, "a query") for key, text in pairs}
    how |= {"data": "queries" if dataset is None else dataset.name, "qrels": _graded(qrels) or None}
    return diff_of_searches(arms[0], arms[1], queries, **how)


def _graded(qrels: Any) -> dict[str, dict[str, int]]:
    """Labels with ids as texts."""
    try:
        return {str(query): {str(item): n for item, n in grades.items()} for query, grades in (qrels or {}).items()}
    except AttributeError as error:
        raise DataError(
            f"qrels: expected query id to item id to grade, such as {{'q1': {{'d7': 1}}}}; got {excerpt(qrels)}"
        ) from error


# --- arrays -----------------------------------------------------------------------------------


def _refuse(said: Mapping[str, Any], taken: Collection[str], what: str) -> None:
    """Refuse arguments that do not belong to these arrays."""
    if wrong := [name for name, value in said.items() if value is not None and name not in taken]:
        names = ", ".join(sorted(taken)) or "none of these, as data have their labels"
        raise DataError(f"{', '.join(wrong)} given, and {what} take {names}")


def _of_arrays(
    reference: Any, candidate: Any, dataset: Dataset | None, said: Mapping[str, Any], k: int
) -> tuple[Evidence, dict[str, Any]]:
    """Return the evidence of two models' outputs, and the record of the run."""
    embedded = isinstance(reference, Embeddings) and isinstance(candidate, Embeddings)
    if not embedded and any(
        arm is None or isinstance(arm, Embeddings) or _is_model(arm) for arm in (reference, candidate)
    ):
        shown = " and ".join(type(arm).__name__ for arm in (reference, candidate))
        raise UnsupportedError(
            "expected a model's name or a SentenceTransformer and a scheme, two models, two "
            f"Embeddings, or two arrays of scores; got {shown}"
        )
    from quantdrift.asking.opening import describe_data, own_ids_record  # noqa: PLC0415 -- torch
    from quantdrift.measuring.flow import assemble, on_equal  # noqa: PLC0415 -- torch
    from quantdrift.measuring.readings import evidence_of_logits  # noqa: PLC0415 -- torch
    from quantdrift.scoring import streamed  # noqa: PLC0415 -- torch
    from quantdrift.scoring.similarity import Similarity  # noqa: PLC0415 -- torch

    what = "embeddings" if embedded else "scores" if said["classes"] is None else "logits"
    taken = {"classes"} if what == "logits" else {"similarity"} if embedded else set()
    if dataset is None:
        taken |= {"input_ids", *(["labels"] if what == "logits" else ["qrels", "item_ids"])}
    _refuse(said, taken, what if dataset is None else f"{what} beside data")
    full, low = _arrays(reference, "reference"), _arrays(candidate, "candidate")
    if embedded and candidate.documents is reference.documents:
        low[1] = full[1]  # by the same object scoring knows that only queries differ
    shape = (len(full[0]), len(full[-1])) if embedded else full[0].shape
    data = _named(dataset, said, what, *shape)
    settings: dict[str, Any] = {}
    if isinstance(data, ClassificationDataset):
        classes = _names(said["classes"], shape[1], "classes")
        labels, note = (None, None) if data.test.labels is None else match_labels(data.test.labels, classes)
        evidence = evidence_of_logits(full[0], low[0], input_ids=data.test.ids, classes=classes, labels=labels, depth=k)
        described = {**describe_data(data), "n_classes": len(classes)}
        described["warnings"] += [note] if note else []
        settings["reading"] = "logits"
    else:
        if embedded:
            similarity = Similarity.of(said["similarity"] or "cosine")
            settings["similarity"] = str(similarity)
            how: Any = {"similarity": similarity, "k": k, "excluded": data.own_rows}
            state = streamed.score_embeddings(full[0], low[0], full[1], low[1], **how)
        else:
            state = streamed.score_matrix(full[0], low[0], k=k, excluded=data.own_rows)
        settings |= own_ids_record(data)
        evidence = assemble(state, input_ids=data.query_ids, item_ids=data.document_ids, qrels=data.qrels)
        described = describe_data(data)
    if embedded:
        for arm, sides in (("reference", full), ("candidate", low)):
            for role, vectors in zip(("query", "document"), sides, strict=True):
                described["warnings"] += on_equal(arm, f"{role} embeddings", vectors)
    if forbids := forbidding(evidence):
        described["forbids"] = forbids
        described["warnings"] += forbids.values()
    return evidence, {
        "spec": "reference vs candidate",
        "model": {
            "name": "reference",
            "fingerprint": _digest(*full),
            "candidate_name": "candidate",
            "candidate_fingerprint": _digest(*low),
        },
        "bits_per_weight": None,
        "data": described if dataset is not None else {**described, "harness": "arrays"},
        "settings": {"k": evidence.depth, **settings},
        "versions": {"quantdrift": __version__},
        "metrics": {name: estimate.to_json() for name, estimate in measure(evidence).items()},
    }


def _named(dataset: Dataset | None, said: Mapping[str, Any], what: str, n_inputs: int, n_items: int) -> Dataset:
    """Return the dataset of the arrays; without one, ids stand for texts."""
    if dataset is None:
        ids = _names(said["input_ids"], n_inputs, "input_ids")
        if what == "logits":
            labels = None if said["labels"] is None else tuple(map(str, said["labels"]))
            test = Labelled(ids=ids, inputs=ids, labels=labels)
            return ClassificationDataset(name="arrays", kind="text", split="test", test=test)
        items = _names(said["item_ids"], n_items, "item_ids")
        qrels = _graded(said["qrels"])
        queries, documents = (dict(zip(names, names, strict=True)) for names in (ids, items))
        # ids are no texts, and default ids of rows and columns are the same
        both = sorted(queries.keys() & documents.keys()) if said["input_ids"] and said["item_ids"] else ()
        same = counted("inputs have the id of an item (data= with texts would tell whether they find themselves)", both)
        dataset = RetrievalDataset.of(queries, documents, qrels, name="arrays")
        return replace(dataset, own=frozenset(), notes=(same,) if same else ())
    if isinstance(dataset, ClassificationDataset) != (what == "logits"):
        raise DataError(f"expected classification data beside logits (classes=...) alone; got {what} of {dataset.name}")
    held = (
        (dataset.test.ids,) if isinstance(dataset, ClassificationDataset) else (dataset.query_ids, dataset.document_ids)
    )
    expected, sizes = [len(ids) for ids in held], [n_inputs, n_items][: len(held)]
    if expected != sizes:
        raise DataError(f"expected {what} of what {dataset.name} holds, {expected} inputs and documents; got {sizes}")
    return dataset


def _arrays(arm: Any, name: str) -> list[NDArray[Any]]:
    """Return the output of an arm as arrays: embeddings of either side, or scores."""
    if isinstance(arm, Embeddings):
        return [_matrix(getattr(arm, side), f"{name} embeddings of {side}") for side in ("queries", "documents")]
    return [_matrix(arm, f"{name} scores")]


def _names(given: Names | None, n: int, what: str) -> tuple[str, ...]:
    """Return names of rows or columns, by default their numbers."""
    names = tuple(map(str, range(n) if given is None else given))
    if len(names) != n or len(set(names)) != n:
        raise DataError(
            f"expected {what} of {n:,} names, none twice; got {len(names):,}, {len(set(names)):,} of them new"
        )
    return names


def _matrix(values: Any, what: str) -> NDArray[Any]:
    """Return an array of finite numbers with two axes; tensors are moved to the CPU."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ScoreError(f"expected {what} as an array with two axes; {error}") from error
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:  # noqa: PLR2004 -- a matrix
        raise ScoreError(f"expected {what} as numbers [n, m]; got {array.dtype} of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ScoreError(f"expected finite {what}; some are NaN or infinite")
    return array


def _digest(*arrays: NDArray[Any]) -> str:
    """Return the digest of arrays, shapes included, as 40 hex digits."""
    return key_of(
        arrays=[(part.dtype.str, part.shape, bytes_digest(np.ascontiguousarray(part).data)) for part in arrays]
    )
