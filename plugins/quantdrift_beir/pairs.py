"""A model of beir's that answers as one of its two arms, and its inputs as quantdrift takes them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift import spec as unchosen
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.encoders.sentence import reading_digest, tokenizer_digest
from quantdrift.engine.layers import modules_of
from quantdrift.engine.pair import QuantizedPair as Weights
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.engine.store import digest_of
from quantdrift.errors import UnsupportedError
from quantdrift.harness import Arms, Side, as_vectors
from quantdrift.models.checkpoint import refuse_quantized
from quantdrift.models.named import name_in_config
from quantdrift.spec import Scheme, Spec, parse_scheme

_ANSWERS = frozenset({"encode", "encode_corpus", "encode_queries", "encode_query", "predict"})
"""Methods of beir's models that go through the weights of the present arm."""

_COPIES = frozenset({"encode_corpus_parallel", "start_multi_process_pool"})
"""Methods that would send the model to other processes."""

_SETTINGS = ("default_prompt_name", "max_seq_length", "prompts", "truncate_dim")
"""Attributes of a torch module, beside its weights and structure, that decide its embeddings."""


class TwoSides:
    """Two models of beir's as one: queries by the first, documents by the second."""

    def __init__(self, queries: Any, documents: Any) -> None:
        self.queries, self.documents = queries, documents
        self.sep = str(getattr(documents, "sep", " "))

    def encode_queries(self, queries: Any, batch_size: int = 16, **kwargs: Any) -> Any:
        """Embed queries."""
        return self.queries.encode_queries(queries, batch_size=batch_size, **kwargs)

    def encode_corpus(self, corpus: Any, batch_size: int = 8, **kwargs: Any) -> Any:
        """Embed documents."""
        return self.documents.encode_corpus(corpus, batch_size=batch_size, **kwargs)


class QuantizedPair:
    """A model of beir's and its quantized candidate, in place of the model.

    beir's searches and its reranking measure both arms of it. Asked directly, it answers as the candidate. Everything
    else about it is the model's own.

    Attributes:
        base: beir's own model object, at full precision between calls.
        pair: its reference and candidate weights.
        arms: which of them answers.
        spec: name of the model, and the scheme.
    """

    is_quantdrift_pair = True

    base: Any
    pair: Weights
    arms: Arms
    spec: Spec

    def __init__(self, model: Any, scheme: str | Scheme, *, name: str | None = None) -> None:
        """Find the model's layers and check that the scheme can be made.

        Args:
            model: a model of beir's (SentenceBERT, HuggingFace, CrossEncoder, ...), or anything with its methods that
                holds torch modules; or two models, (queries, documents).
            scheme: how the candidate is made, e.g. "W4-rtn".
            name: of the model, for messages and records; what its config says if not given.

        Raises:
            QuantDriftError: the scheme cannot be read or made, or the model has nothing to quantize.
        """
        if isinstance(model, QuantizedPair):
            raise UnsupportedError(f"this model is a pair already ({model.spec}); wrap the model itself, once")
        if isinstance(model, tuple):
            model = TwoSides(*model)
        made = scheme if isinstance(scheme, Scheme) else parse_scheme(scheme)
        methods_of(made)
        calibration_texts(made)  # a file that is not there is better known now
        modules = modules_of(model)
        shown = name or name_in_config(modules) or type(model).__name__
        if not modules:
            raise UnsupportedError(
                f"{shown} holds no torch module, so there is nothing to quantize; a pair needs a model that runs here "
                "in torch (not an API or a served model)"
            )
        refuse_quantized(modules, shown)
        weights = Weights(modules, made, name=shown)
        vars(self).update(base=model, pair=weights, arms=Arms(weights), spec=Spec(model=shown, scheme=made))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "base" not in vars(self):  # half made, as copies are
            raise AttributeError(name)
        value = getattr(self.base, name)
        if name in _COPIES:
            return self._refuse_copies
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

    def _refuse_copies(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedError(
            f"this method copies the model to other processes, where only one arm would be; search with {self.spec} in "
            "this process"
        )


def held_pair(holder: object) -> QuantizedPair | None:
    """The pair that an object of beir's keeps in one of its attributes; None if it keeps none."""
    values = getattr(holder, "__dict__", {}).values()
    return next((value for value in values if isinstance(value, QuantizedPair)), None)


def refuse_unchosen(pair: QuantizedPair, why: str) -> None:
    """Refuse a pair whose widths would have to be chosen where, as `why` says, they cannot be."""
    unchosen.refuse_unchosen(pair.pair, why, named='QuantizedPair(model, "allocation.json")')


# --- inputs ---------------------------------------------------------------------------------------


def query_inputs(pair: QuantizedPair, queries: Mapping[str, str], options: Mapping[str, Any]) -> Side:
    """The queries of a search, embedded by the weights that are in place."""
    texts = list(queries.values())

    def encode(rows: NDArray[np.int64], batch_size: int) -> Any:
        part = [texts[row] for row in rows.tolist()]
        return as_vectors(pair.base.encode_queries(part, batch_size=batch_size, show_progress_bar=False, **options))

    key = key_of_texts(pair, texts, encode=dict(options))
    return Side.of("query", [str(name) for name in queries], encode, key, [len(text) for text in texts])


def document_inputs(
    pair: QuantizedPair,
    corpus: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    *,
    wanted: bool = True,
    role: str = "document",
) -> Side:
    """The documents of a search, embedded by the weights that are in place."""
    documents = list(corpus.values())
    separator = getattr(pair.base, "sep", " ")
    joint = separator if isinstance(separator, str) else " "

    def encode(rows: NDArray[np.int64], batch_size: int) -> Any:
        part = [documents[row] for row in rows.tolist()]
        found = pair.base.encode_corpus(part, batch_size=batch_size, show_progress_bar=False, **options)
        return as_vectors(found) if wanted else found

    # of what the model reads, as in quantdrift run: then both share batches and agree exactly
    lengths = [len(f"{one.get('title') or ''}{joint}{one.get('text') or ''}".strip()) for one in documents]
    key = key_of_texts(pair, documents, encode=dict(options))
    return Side.of(role, [str(name) for name in corpus], encode, key, lengths)


def calibration_corpus(scheme: Scheme) -> dict[str, dict[str, str]] | None:
    """The texts of a file that the scheme calibrates on, as documents; None where it names no file."""
    texts = calibration_texts(scheme)
    if texts is None:
        return None
    return {f"calibration-{number}": {"title": "", "text": text} for number, text in enumerate(texts)}


def digest_of_data(queries: Mapping[str, Any], corpus: Mapping[str, Any]) -> str:
    """A digest of ids and contents of both sides."""
    parts = (part for side in (queries, corpus) for part in (list(side), side.values()))
    return digest_of(text for part in parts for text in ("\n", *_written(part)))


def key_of_texts(pair: QuantizedPair, contents: Sequence[Any], **others: Any) -> dict[str, Any] | None:
    """What decides what a pair makes of some contents beside its weights; None if it cannot be told."""
    described = description_of(pair.base)
    if described is None:
        return None
    texts = digest_of(_written(contents))
    return {"harness": ["beir", version("beir")], "model": described, "texts": texts, **others}


def description_of(model: Any) -> str | None:
    """What decides a model's embeddings beside its weights; None if it cannot be told."""
    try:
        return json.dumps(_said(model), default=_said, sort_keys=True)
    except (TypeError, ValueError):  # a class from elsewhere may do anything with its texts
        return None


def _written(contents: Iterable[Any]) -> Iterable[str]:
    return (json.dumps(one, sort_keys=True, default=str) for one in contents)


def _said(value: Any) -> Any:
    """What JSON does not know as something that it does, the same in every process."""
    if isinstance(value, torch.device | torch.dtype):
        return repr(value)
    if isinstance(value, nn.Module):
        return [type(value).__qualname__, *(str(getattr(value, name, None)) for name in _SETTINGS), repr(value)]
    if hasattr(value, "get_vocab"):
        return [tokenizer_digest(value), getattr(value, "model_max_length", None)]
    kind = value if callable(value) and hasattr(value, "__qualname__") else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not (name.startswith("beir.") or kind is TwoSides) or "<" in name:
        raise TypeError(f"{name} is not beir's")
    if kind is value:  # a function at the top of a module
        return name
    reading = reading_digest([value, *vars(value).values()], modules_of(value))
    return {"kind": name, "reading": reading, "attributes": vars(value)}
