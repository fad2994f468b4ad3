"""A model of beir's that answers as one of its arms, and beir's exact search and reranking by both."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift import harness
from quantdrift.base.errors import UnsupportedError
from quantdrift.base.progress import progress_bars
from quantdrift.builtin.cross_encoder.work import activation_of
from quantdrift.builtin.sentence.work import reading_digest, tokenizer_digest
from quantdrift.candidate.calibration.sample import calibration_texts
from quantdrift.candidate.pair import QuantizedPair as Weights
from quantdrift.candidate.pair import methods_of
from quantdrift.measuring.readings import OPENING, opening_of
from quantdrift.models.files.named import name_in_config
from quantdrift.models.inputs import Settings
from quantdrift.models.layers import modules_of
from quantdrift.models.store import digest_of
from quantdrift.runs.folder import now
from quantdrift.scheme import Scheme
from quantdrift.spec.grammar import Spec, parse_scheme
from quantdrift_beir.results import PairedResults, paired_results

Original = Callable[..., Any]

_ANSWERS = frozenset({"encode", "encode_corpus", "encode_queries", "predict"})
"""Methods of beir's models that use the weights of the present arm."""

_COPIES = frozenset({"encode_corpus_parallel", "start_multi_process_pool"})
"""Methods that would copy the model to other processes."""

_SETTINGS = ("default_prompt_name", "max_seq_length", "prompts", "truncate_dim")
"""Attributes of a torch module that decide embeddings beside weights and structure."""
_KNOWN = {"quantdrift", "sentence_transformers", "torch", "transformers"}
"""Packages whose modules are determined by their structure."""


class QuantizedPair:
    """A model of beir's and its quantized candidate, used in place of the model.

    beir's exact search and its reranking measure both arms. Called directly, it answers as the candidate. All other
    attributes are those of the model.

    Attributes:
        base: beir's own model object, at full precision between calls.
        pair: its reference and candidate weights.
        arms: chooses the arm that answers.
        spec: the model's name and the scheme.
    """

    is_quantdrift_pair = True

    base: Any
    pair: Weights
    arms: harness.Arms
    spec: Spec

    def __init__(self, model: Any, scheme: str | Scheme, *, name: str | None = None) -> None:
        """Find the model's layers and check the scheme.

        Args:
            model: a model of beir's (SentenceBERT, HuggingFace, CrossEncoder, ...), or anything with its methods that
                holds torch modules.
            scheme: how the candidate is made, e.g. "W4-rtn".
            name: name of the model in messages and records; by default that in its config.

        Raises:
            QuantDriftError: the scheme cannot be read or made, or the model has nothing to quantize.
        """
        if isinstance(model, QuantizedPair):
            raise UnsupportedError(f"this model is a pair already ({model.spec}); wrap the model itself, once")
        made = scheme if isinstance(scheme, Scheme) else parse_scheme(scheme)
        methods_of(made)
        calibration_texts(made)  # a missing file is refused now
        shown = name or name_in_config(modules_of(model)) or type(model).__name__
        weights = harness.weights_of(model, made, shown)
        vars(self).update(base=model, pair=weights, arms=harness.Arms(weights), spec=Spec(model=shown, scheme=made))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "base" not in vars(self):  # not initialized yet, as in copies
            raise AttributeError(name)
        if name in _COPIES:
            raise UnsupportedError(
                f"{name} copies the model to other processes, where only one arm would be; search with {self.spec} in "
                "this process"
            )
        value = getattr(self.base, name)
        return self._answering(name, value) if name in _ANSWERS else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            vars(self)[name] = value
        else:
            setattr(self.base, name, value)

    def __repr__(self) -> str:
        return f"QuantizedPair({type(self.base).__name__}, {str(self.spec)!r})"

    def _answering(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def answer(*args: Any, **kwargs: Any) -> Any:
            self.arms.put_in_place(indexed=name == "encode_corpus")
            try:
                return method(*args, **kwargs)
            finally:
                if not self.arms.session:
                    self.arms.restore()

        return answer


def held_pair(holder: object) -> QuantizedPair | None:
    """Return the pair in one of an object's attributes, if any."""
    values = getattr(holder, "__dict__", {}).values()
    return next((value for value in values if isinstance(value, QuantizedPair)), None)


# --- beir's exact search ------------------------------------------------------------------------


def search_both(original: Original, searcher: Any, pair: QuantizedPair, given: Mapping[str, Any]) -> Any:
    """Do DenseRetrievalExactSearch.search with both arms, by streamed embeddings."""
    name = given["score_function"]
    score = searcher.score_functions.get(name)
    if score is None:  # beir raises its own error
        return original(searcher, **given)
    similarity = harness.similarity_of(score)
    if similarity is None:
        raise UnsupportedError(
            f"{name!r} is no score function that quantdrift computes; expected a cosine, a dot product or a Euclidean "
            "distance. Else search with each model, save both results as JSON, and compare them: quantdrift diff A B"
        )
    started = now()
    corpus, queries = given["corpus"], given["queries"]
    options = {"convert_to_tensor": searcher.convert_to_tensor}
    shown = getattr(searcher, "show_progress_bar", True)
    calibration = None
    if (texts := calibration_texts(pair.spec.scheme)) is not None:
        documents = {f"calibration-{number}": {"title": "", "text": text} for number, text in enumerate(texts)}
        calibration = inputs_of(pair, "calibration", documents, options)
    outcome = harness.search_embedded(
        pair.pair,
        inputs_of(pair, "query", queries, options),
        inputs_of(pair, "document", corpus, options),
        similarity=similarity,
        top_k=int(given["top_k"]),
        batch_size=int(searcher.batch_size),
        progress=progress_bars(quiet=not shown),
        leaves_out="beir",
        calibration=calibration,
    )
    searcher.results = paired_results(
        pair.spec, pair.pair, outcome, digest_of_data(queries, corpus), started=started, shown=shown
    )
    return searcher.results


# --- a cross-encoder: both arms score the same shortlists -----------------------------------------


def rerank_both(original: Original, reranker: Any, pair: QuantizedPair, given: Mapping[str, Any]) -> PairedResults:
    """Do Rerank.rerank with both arms on the same pairs of query and document."""
    why = "a cross-encoder reads query and document together"
    harness.refuse_without_search(pair.pair, why, named='QuantizedPair(model, "allocation.json")')
    corpus, queries, shortlists = given["corpus"], given["queries"], given["results"]
    started, size = now(), int(reranker.batch_size)

    def score(wanted: Mapping[str, list[str]], batch_size: int) -> harness.Results:
        pairs = [(query, name) for query, names in wanted.items() for name in names]
        texts = [[queries[query], _text(corpus[name])] for query, name in pairs]
        scores: harness.Results = {query: {} for query in wanted}
        predicted = pair.base.predict(texts, batch_size=batch_size, show_progress_bar=False)
        for (query, name), value in zip(pairs, predicted, strict=True):
            scores[query][name] = float(value)
        return scores

    activation = activation_of(pair.pair.modules)
    read_as = {
        "search": "reranking",
        "scores": "as the model gives them" if activation is None else f"raw, before the {activation}",
        "top_k": int(given["top_k"]),
    }
    outcome = harness.search_lists(
        pair.arms,
        lambda: {query: dict(scores) for query, scores in original(reranker, **given).items()},
        score,
        shortlists=shortlists,
        item_ids=list(corpus),
        harness="beir",
        skip_same_id=True,
        settings=Settings(k=harness.DEPTH, batch_size=size),
        read_as=read_as,
        what="reranking",
        calibrate=lambda: harness.calibrate(
            pair.pair, lambda: _asked_for(pair, corpus), batch_size=size, progress=progress_bars(quiet=False)
        ),
    )
    lists = {query: sorted(scores.keys() - {query}) for query, scores in outcome.results("reference").items()}
    lists = {query: names for query, names in lists.items() if names}
    shortlist = digest_of(text for query in sorted(lists) for text in (query, *lists[query], ""))
    data = digest_of_data(
        {query: queries[query] for query in lists}, {name: corpus[name] for names in lists.values() for name in names}
    )
    outcome = replace(outcome, read_as={**read_as, "shortlist": {"digest": shortlist}})
    reranker.rerank_results = results = paired_results(pair.spec, pair.pair, outcome, data, started=started)
    return results


def _asked_for(pair: QuantizedPair, corpus: Mapping[str, Any]) -> harness.Side:
    """Return documents, each with its first words as its query: real queries are never used."""
    texts = calibration_texts(pair.spec.scheme) or [_text(document) for document in corpus.values()]

    def run(rows: list[int], batch_size: int) -> None:
        asked = [[opening_of(texts[row]), texts[row]] for row in rows]
        pair.base.predict(asked, batch_size=batch_size, show_progress_bar=False)

    key = key_of_texts(pair, texts, opening=OPENING)
    return harness.runs(run, len(texts), key=key, lengths=[len(text) for text in texts])


def _text(document: Mapping[str, str]) -> str:
    """Join title and text as beir does for a cross-encoder."""
    return (document.get("title", "") + " " + document.get("text", "")).strip()


# --- inputs ---------------------------------------------------------------------------------------


def inputs_of(pair: QuantizedPair, role: str, contents: Mapping[str, Any], options: Mapping[str, Any]) -> harness.Side:
    """Return the queries or the documents of a search, embedded by the weights in place."""
    items, base = list(contents.values()), pair.base
    embed = base.encode_queries if role == "query" else base.encode_corpus

    def encode(rows: NDArray[Any], batch_size: int) -> Any:
        part = [items[row] for row in rows.tolist()]
        return harness.as_vectors(embed(part, batch_size=batch_size, show_progress_bar=False, **options))

    texts = items
    if role != "query":  # the texts as quantdrift run joins them: the same batches, so the same figures exactly
        sep = getattr(base, "sep", " ")
        texts = [f"{item.get('title') or ''}{sep}{item.get('text') or ''}".strip() for item in items]
    key = key_of_texts(pair, items, encode=dict(options))
    return harness.Side.of(role, [str(name) for name in contents], encode, key, [len(text) for text in texts])


def digest_of_data(queries: Mapping[str, Any], corpus: Mapping[str, Any]) -> str:
    """Return the digest of ids and contents of both sides."""
    parts = (part for side in (queries, corpus) for part in (list(side), side.values()))
    return digest_of(text for part in parts for text in ("\n", *_written(part)))


def key_of_texts(pair: QuantizedPair, contents: Sequence[Any], **others: Any) -> dict[str, Any] | None:
    """Describe all that decides a pair's outputs for contents beside its weights; None if unknown."""
    described = description_of(pair.base)
    if described is None:
        return None
    texts = digest_of(_written(contents))
    return {"harness": ["beir", version("beir")], "model": described, "texts": texts, **others}


def description_of(model: Any) -> str | None:
    """Describe all that decides a model's embeddings beside its weights; None if unknown."""
    try:
        return json.dumps(_said(model), default=_said, sort_keys=True)
    except (TypeError, ValueError):  # a class of another package may do anything with texts
        return None


def _written(contents: Iterable[Any]) -> Iterable[str]:
    return (json.dumps(content, sort_keys=True, default=str) for content in contents)


def _said(value: Any) -> Any:
    """Turn a value that JSON cannot write into one that is the same in every process."""
    if isinstance(value, torch.device | torch.dtype):
        return repr(value)
    if isinstance(value, nn.Module):
        if {type(part).__module__.partition(".")[0] for part in value.modules()} - _KNOWN:
            raise TypeError("modules of an unknown package")
        return [type(value).__qualname__, *(str(getattr(value, name, None)) for name in _SETTINGS), repr(value)]
    if hasattr(value, "get_vocab"):
        return [tokenizer_digest(value), getattr(value, "model_max_length", None)]
    kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not name.startswith("beir.") or "<" in name:
        raise TypeError(f"{name} is not beir's")
    if kind is value:  # a function at the top of a module
        return name
    reading = reading_digest([value, *vars(value).values()], modules_of(value))
    return {"kind": name, "reading": reading, "attributes": vars(value)}
