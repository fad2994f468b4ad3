"""A model of beir's that answers as one of its two arms, and its inputs as quantdrift takes them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.base.errors import UnsupportedError
from quantdrift.checkpoints.named import name_in_config
from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.encoders.sentence import reading_digest, tokenizer_digest
from quantdrift.engine.layers import modules_of
from quantdrift.engine.pair import QuantizedPair as Weights
from quantdrift.engine.quantizers.registry import methods_of
from quantdrift.engine.store import digest_of
from quantdrift.harness import Arms, Side, as_vectors, weights_of
from quantdrift.spec.grammar import Scheme, Spec, parse_scheme

_ANSWERS = frozenset({"encode", "encode_corpus", "encode_queries", "predict"})
"""Methods of beir's models that go through the weights of the present arm."""

_COPIES = frozenset({"encode_corpus_parallel", "start_multi_process_pool"})
"""Methods that would send the model to other processes."""

_SETTINGS = ("default_prompt_name", "max_seq_length", "prompts", "truncate_dim")
"""Attributes of a torch module, beside its weights and structure, that decide its embeddings."""


class QuantizedPair:
    """A model of beir's and its quantized candidate, in place of the model.

    beir's exact search and its reranking measure both arms of it. Asked directly, it answers as the candidate.
    Everything else about it is the model's own.

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
                holds torch modules.
            scheme: how the candidate is made, e.g. "W4-rtn".
            name: of the model, for messages and records; what its config says if not given.

        Raises:
            QuantDriftError: the scheme cannot be read or made, or the model has nothing to quantize.
        """
        if isinstance(model, QuantizedPair):
            raise UnsupportedError(f"this model is a pair already ({model.spec}); wrap the model itself, once")
        made = scheme if isinstance(scheme, Scheme) else parse_scheme(scheme)
        methods_of(made)
        calibration_texts(made)  # a file that is not there is better known now
        shown = name or name_in_config(modules_of(model)) or type(model).__name__
        weights = weights_of(model, made, shown)
        vars(self).update(base=model, pair=weights, arms=Arms(weights), spec=Spec(model=shown, scheme=made))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "base" not in vars(self):  # half made, as copies are
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
    """The pair that an object of beir's keeps in one of its attributes; None if it keeps none."""
    values = getattr(holder, "__dict__", {}).values()
    return next((value for value in values if isinstance(value, QuantizedPair)), None)


# --- inputs ---------------------------------------------------------------------------------------


def inputs_of(pair: QuantizedPair, role: str, contents: Mapping[str, Any], options: Mapping[str, Any]) -> Side:
    """The queries or the documents of a search, embedded by the weights that are in place."""
    items, base = list(contents.values()), pair.base
    embed = base.encode_queries if role == "query" else base.encode_corpus

    def encode(rows: NDArray[Any], batch_size: int) -> Any:
        part = [items[row] for row in rows.tolist()]
        return as_vectors(embed(part, batch_size=batch_size, show_progress_bar=False, **options))

    texts = items
    if role != "query":  # what the model reads, as in quantdrift run: then both share batches and agree exactly
        texts = [f"{one.get('title') or ''}{getattr(base, 'sep', ' ')}{one.get('text') or ''}".strip() for one in items]
    key = key_of_texts(pair, items, encode=dict(options))
    return Side.of(role, [str(name) for name in contents], encode, key, [len(text) for text in texts])


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
    if not name.startswith("beir.") or "<" in name:
        raise TypeError(f"{name} is not beir's")
    if kind is value:  # a function at the top of a module
        return name
    reading = reading_digest([value, *vars(value).values()], modules_of(value))
    return {"kind": name, "reading": reading, "attributes": vars(value)}
