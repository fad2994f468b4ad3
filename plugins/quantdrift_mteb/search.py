"""Searches of mteb by both arms of a pair: by streamed embeddings, or by reranking shortlists."""

import copy
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import chain
from typing import Any, Self

import numpy as np
from datasets import Dataset  # type: ignore[import-untyped]  # it ships no types
from mteb._create_dataloaders import create_dataloader
from mteb.models import SearchEncoderWrapper
from mteb.types import PromptType
from numpy.typing import NDArray
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from torch.utils.data import DataLoader

from quantdrift import harness
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import progress_bars
from quantdrift.builtin.cross_encoder.work import activation_of
from quantdrift.builtin.multi_vector.model import token_vectors
from quantdrift.builtin.multi_vector.scoring import MaxSim, Product
from quantdrift.builtin.multi_vector.search import row_search
from quantdrift.builtin.sentence.work import reading_digest
from quantdrift.builtin.sparse.work import sparse_product, term_weights
from quantdrift.candidate.calibration.sample import calibration_texts
from quantdrift.candidate.pair import QuantizedPair
from quantdrift.data.retrieval import on_own_ids, own_documents
from quantdrift.measuring.readings import OPENING, opening_of
from quantdrift.models.inputs import Settings
from quantdrift.models.layers import modules_of
from quantdrift.models.store import digest_of
from quantdrift.scoring.ragged import Ragged
from quantdrift.scoring.similarity import Similarity
from quantdrift_mteb.data import images_of

NAMED = "MODEL@allocation.json"
"""A pair with a stored allocation, as mteb is given it."""

_PROMPTS = ("default_prompt_name", "instruction_template", "model_prompts", "prompts", "prompts_dict")
_SETTINGS = (*_PROMPTS, "max_active_dims", "max_length", "max_seq_length", "truncate_dim")
"""Attributes of a model, or of the model that it wraps, that decide embeddings beside the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCall:
    """A search that mteb asked for.

    Attributes:
        queries: dataset of queries.
        corpus: dataset of documents.
        top_k: documents per query.
        top_ranked: query id to the documents to rerank; None searches all.
        context: mteb's other arguments: task, split, subset, arguments for encoding.
        skip_identical: whether documents of the query's own id do not count.
    """

    queries: Any
    corpus: Any
    top_k: int
    top_ranked: Mapping[str, list[str]] | None
    context: dict[str, Any]
    skip_identical: bool

    @property
    def task(self) -> Any:
        """The task's metadata."""
        return self.context["task_metadata"]

    @property
    def batch_size(self) -> int:
        """Inputs per forward pass."""
        return int(self.context["encode_kwargs"].get("batch_size", 32))

    @property
    def progress(self) -> Any:
        """Progress bars, if mteb shows its own."""
        return progress_bars(quiet=not self.context["encode_kwargs"].get("show_progress_bar", True))

    def run(self, searcher: Any, *, top_k: int | None = None) -> harness.Results:
        """Run a search model of mteb's, by default for as many documents as mteb asked for."""
        searcher.index(self.corpus, **self.context)
        results: harness.Results = searcher.search(
            self.queries, top_k=top_k or self.top_k, top_ranked=self.top_ranked, **self.context
        )
        return results

    def of(self, queries: Any, corpus: Any, top_ranked: Mapping[str, list[str]] | None, batch_size: int) -> Self:
        """Return the call for other queries and documents, without a progress bar."""
        encoding = {**self.context["encode_kwargs"], "batch_size": batch_size, "show_progress_bar": False}
        context = {**self.context, "encode_kwargs": encoding}
        return replace(self, queries=queries, corpus=corpus, top_ranked=top_ranked, context=context)

    def part(self, wanted: Mapping[str, list[str]], batch_size: int) -> Self:
        """Return the call for some queries and documents, each in reverse order."""
        documents = {name for names in wanted.values() for name in names}
        queries, corpus = (
            dataset.select([row for row, name in enumerate(dataset["id"]) if name in names][::-1])
            for dataset, names in ((self.queries, wanted), (self.corpus, documents))
        )
        return self.of(queries, corpus, wanted, batch_size)

    def answered_by(self, earlier: "tuple[SearchCall, harness.Outcome] | None") -> bool:
        """Return whether an earlier call was the same search."""
        if earlier is None:
            return False
        other = earlier[0]
        return len(self.corpus) == len(other.corpus) and list(self.queries["id"]) == list(other.queries["id"])


# --- one search, by both arms ---------------------------------------------------------------------


def search_by_embedding(pair: QuantizedPair, model: Any, call: SearchCall) -> harness.Outcome:
    """Embed with both arms and stream the scores."""
    dimension, product = model.mteb_model_meta.embed_dim, product_of(model)
    similarity: Similarity | None = Similarity.DOT
    if product is None:
        similarity = harness.similarity_of(model.similarity, dimension if isinstance(dimension, int) else None)
    if similarity is None or call.context["encode_kwargs"].get("precision") not in {None, "float32"}:
        raise UnsupportedError(
            f"{pair.name} compares embeddings by a similarity that quantdrift does not compute; expected cosine, dot "
            "product or Euclidean distance of float32. Else run both models, and compare: quantdrift diff A B"
        )
    texts = calibration_texts(pair.scheme)
    kinds = [call.task.get_modalities(kind) for kind in (PromptType.query, PromptType.document)]
    if texts is not None and "image" in (*kinds[0], *kinds[1]):
        raise UnsupportedError(f"{call.task.name} has images: +calib= takes a number there, not a file of texts")
    outcome = harness.search_embedded(
        pair,
        inputs_of(model, call, "query", call.queries),
        inputs_of(model, call, "document", call.corpus),
        similarity=similarity,
        top_k=call.top_k,
        batch_size=call.batch_size,
        progress=call.progress,
        leaves_out="mteb" * call.skip_identical,
        calibration=None if texts is None else inputs_of(model, call, "calibration", _corpus_of(texts)),
        two_towers=kinds[0] != kinds[1],
        dataset=call.task.name,
        read=lambda search: search if product is None else row_search(search, product),
    )
    if not call.skip_identical and kinds == [["text"], ["text"]]:
        sides = ([dataset["id"], dataset["text"]] for dataset in (call.queries, call.corpus))
        outcome.notes += filter(None, [on_own_ids(sorted(own_documents(*chain(*sides))), {}, kept=True)])
    return outcome


def product_of(model: Any) -> Product | None:
    """Return how a model compares outputs of several rows an input; None for one vector an input."""
    inner = getattr(model, "model", None)
    if isinstance(inner, MultiVectorEncoder):
        return MaxSim(mean=inner.similarity_fn_name == "meanmaxsim")
    if not isinstance(inner, SparseEncoder):
        return None
    return sparse_product(inner, str(model.mteb_model_meta.name))


def rerank(arms: harness.Arms, searcher: Any, call: SearchCall) -> harness.Outcome:
    """Rerank a shortlist once per arm, by the searcher that mteb itself would use."""
    pair, name, ids, model = arms.pair, call.task.name, list(call.corpus["id"]), searcher.model
    harness.refuse_without_search(pair, f"{name} is no search over embeddings of this model", named=NAMED)
    asked = set(call.queries["id"])
    ranked = {query: list(names) for query, names in (call.top_ranked or {}).items() if query in asked and len(names)}
    encodes = isinstance(searcher, SearchEncoderWrapper)

    def run() -> harness.Results:
        arms.put_in_place()
        return call.run(searcher, top_k=len(ids))

    def score(wanted: Mapping[str, list[str]], batch_size: int) -> harness.Results:
        part = call.part(wanted, batch_size)
        return part.run(searcher, top_k=len(part.corpus))

    def inputs() -> harness.Side:
        texts = calibration_texts(pair.scheme)
        corpus = call.corpus if texts is None else _corpus_of(texts)
        return inputs_of(model, call, "document", corpus) if encodes else _asked_for(searcher, call, corpus)

    activation, search = activation_of(pair.modules), "the model's own search"
    outcome = harness.search_lists(
        arms,
        run,
        score,
        shortlists=ranked,
        item_ids=ids,
        harness="mteb",
        skip_same_id=call.skip_identical,
        settings=Settings(k=max(harness.DEPTH, call.top_k), batch_size=call.batch_size),
        read_as={"similarity": search if activation is None else f"{search}, before its {activation}"},
        dataset=name,
        calibrate=lambda: harness.calibrate(pair, inputs, batch_size=call.batch_size, progress=call.progress),
    )
    return replace(outcome, results=lambda arm: _cut(outcome.results(arm), call.top_k))


def _cut(results: harness.Results, top_k: int) -> harness.Results:
    return {query: dict(sorted(scores.items(), key=lambda item: -item[1])[:top_k]) for query, scores in results.items()}


# --- inputs ---------------------------------------------------------------------------------------


def inputs_of(model: Any, call: SearchCall, role: str, dataset: Any) -> harness.Side:
    """Return the queries or the documents of a search, embedded chunk by chunk."""
    kind = PromptType.query if role == "query" else PromptType.document
    context, product = dict(call.context), product_of(model)
    n_processes, encoding = context.pop("num_proc", None), context.pop("encode_kwargs")
    others = {name: value for name, value in encoding.items() if name not in {"batch_size", "show_progress_bar"}}
    # prepared once: to select rows of prepared data costs nothing, to prepare each chunk does
    loader: Any = create_dataloader(
        dataset, task_metadata=call.task, prompt_type=kind, batch_size=call.batch_size, num_proc=n_processes
    )

    def encode(rows: NDArray[np.int64], batch_size: int) -> Any:
        chunk: DataLoader[Any] = DataLoader(
            loader.dataset.select(rows.tolist()),
            batch_size=batch_size,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
        )
        how = {**context, **others, "prompt_type": kind, "batch_size": batch_size, "show_progress_bar": False}
        if isinstance(product, MaxSim):
            return Ragged.of(token_vectors(model._encode(chunk, **how)))
        embeddings = model.encode(chunk, **how)
        return harness.as_vectors(embeddings) if product is None else Ragged.of(term_weights(embeddings))

    key = lengths = contents = None
    if call.task.get_modalities(kind) == ["text"]:
        lengths, contents = [len(str(text)) for text in dataset["text"]], _digest_of_rows(dataset)
    elif call.task.get_modalities(kind) == ["image"]:
        contents = digest_of(images_of(dataset).contents)
    if contents is not None:
        # models choose prompts by the task
        task = [call.task.name, call.task.type, call.task.prompt, context["hf_subset"]]
        key = {**_key(model), "task": task, "texts": contents, "encode": others}
    return harness.Side.of(role, list(dataset["id"]), encode, key, lengths)


def _key(model: Any) -> dict[str, Any]:
    """Describe all that decides a model's embeddings beside weights and inputs."""
    meta, modules = model.mteb_model_meta, modules_of(model)
    holders = (model, getattr(model, "model", None))
    parts = [type(model).__qualname__, str(meta.name), str(meta.revision), repr(meta.loader_kwargs)]
    for value in (getattr(holder, name, None) for holder in holders for name in _SETTINGS):
        parts.append(str(getattr(value, "__qualname__", value)))  # a function's repr is another one in every process
    parts += map(repr, modules)  # pooling, normalization and the like
    return {"harness": ["mteb", version("mteb")], "model": [*parts, reading_digest(holders, modules)]}


def _digest_of_rows(dataset: Any) -> str:
    """Return the digest of all columns of a dataset of text."""
    return digest_of(json.dumps(batch, sort_keys=True, default=str) for batch in dataset.iter(batch_size=1024))


# --- calibration ----------------------------------------------------------------------------------


def _asked_for(searcher: Any, call: SearchCall, corpus: Any) -> harness.Side:
    """Return documents, each with its first words as its query: real queries are never used."""

    def run(rows: list[int], batch_size: int) -> None:
        documents = corpus.select(rows)
        columns = {name: [""] * len(documents) for name in call.queries.column_names}
        columns["id"] = list(documents["id"])
        columns["text"] = [opening_of(str(text)) for text in documents["text"]]
        shortlists = {name: [name] for name in documents["id"]}
        part = call.of(Dataset.from_dict(columns), documents, shortlists, batch_size)
        part.run(copy.copy(searcher), top_k=1)  # a searcher keeps the corpus, and batches run side by side

    key = {
        **_key(searcher),
        "task": [call.task.name, call.task.prompt, call.context["hf_subset"]],
        "texts": _digest_of_rows(corpus),
        "opening": [OPENING, call.queries.column_names, False],
        "encode": call.context["encode_kwargs"],
    }
    return harness.runs(run, len(corpus), key=key, lengths=[len(str(text)) for text in corpus["text"]])


def _corpus_of(texts: list[str]) -> Any:
    ids = [f"calibration-{number}" for number in range(len(texts))]
    return Dataset.from_dict({"id": ids, "title": [""] * len(texts), "text": texts})


Call = tuple[Any, Any, dict[str, Any]]
"""Dataset, collate function and other arguments of a call of a model's `encode`."""


class Encoded:
    """The inputs that the reference encoded in a task other than a search."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.arguments: dict[str, Any] = {}

    def note(self, loader: Any, kwargs: dict[str, Any]) -> None:
        """Remember a call that does not encode queries."""
        self.arguments = self.arguments or kwargs
        dataset = getattr(loader, "dataset", None)
        if kwargs.get("prompt_type") != PromptType.query and hasattr(dataset, "select"):
            self.calls.append((dataset, loader.collate_fn, kwargs))

    def calibrate(self, pair: QuantizedPair, model: Any, name: str) -> None:
        """Calibrate the pair on inputs drawn from all calls, or on a file; labels play no part."""
        calls, kwargs = self.calls, self.arguments
        if (texts := calibration_texts(pair.scheme)) is not None:
            calls = [(Dataset.from_dict({"text": texts}), None, kwargs)]
        if not calls:
            raise UnsupportedError(
                f"{pair.scheme} calibrates on what {name} encodes, but it encoded nothing to draw from; give "
                "texts with +calib=FILE, or use rtn or hqq"
            )
        starts = np.cumsum([0, *(len(dataset) for dataset, _, _ in calls)])
        groups = np.repeat(np.arange(len(calls)), np.diff(starts))

        def run(rows: list[int], batch_size: int) -> None:
            number = int(groups[rows[0]])  # a batch is from one call
            encode_some(model, calls[number], [row - int(starts[number]) for row in rows], batch_size)

        harness.calibrate(
            pair,
            lambda: harness.runs(run, len(groups), key=None),  # mteb keeps the result, so a cache has no use
            batch_size=int(kwargs.get("batch_size", 32)),
            progress=progress_bars(quiet=not kwargs.get("show_progress_bar", True)),
            groups=groups,
        )


def encode_some(model: Any, call: Call, rows: Iterable[int], batch_size: int) -> None:
    """Encode some rows of a call again."""
    dataset, collate, kwargs = call
    chunk: DataLoader[Any] = DataLoader(dataset.select(rows), batch_size=batch_size, collate_fn=collate)
    model.encode(chunk, **{**kwargs, "batch_size": batch_size, "show_progress_bar": False})


def watch_layers(pair: QuantizedPair, model: Any, loader: Any, kwargs: dict[str, Any]) -> None:
    """Encode a few inputs of a call again to see which layers are reached; once per pair, for the record."""
    dataset = getattr(loader, "dataset", None)
    if dataset is None or len(pair.never_reached) < len(pair.layers) or not hasattr(dataset, "select"):
        return
    with suppress(Exception), pair.observed():
        encode_some(model, (dataset, loader.collate_fn, kwargs), range(min(harness.PROBE, len(dataset))), harness.PROBE)
