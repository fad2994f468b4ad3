"""One side of a search of beir's, as something that can be embedded chunk by chunk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantdrift.engine.calibration.sample import calibration_texts
from quantdrift.engine.encoders.sentence import reading_digest, tokenizer_digest
from quantdrift.engine.inputs import Inputs, Vectors
from quantdrift.engine.layers import modules_of
from quantdrift.engine.store import digest_of
from quantdrift_beir.pairs import QuantizedPair, TwoSides

_SETTINGS = ("default_prompt_name", "max_seq_length", "prompts", "truncate_dim")
"""Attributes of a torch module, beside its weights and structure, that decide its embeddings."""

Document = Mapping[str, Any]


def ids_and_rows(side: Any) -> tuple[list[str], list[Any]]:
    """Ids and contents of one side, which beir keeps as a dict, or as a dataset with ids."""
    if isinstance(side, Mapping):
        return list(side), list(side.values())
    rows = list(side)
    return [str(row["id"]) for row in rows], rows


def query_inputs(pair: QuantizedPair, queries: Mapping[str, str], options: Mapping[str, Any]) -> Inputs:
    """The queries of a search.

    Args:
        pair: the model; it embeds with the arm whose weights are in place.
        queries: id to text.
        options: arguments for the model beside the batch size.
    """
    texts = list(queries.values())

    def encode(rows: NDArray[np.int64], batch_size: int) -> Vectors:
        part = [texts[row] for row in rows.tolist()]
        return as_vectors(pair.base.encode_queries(part, batch_size=batch_size, show_progress_bar=False, **options))

    return Inputs(
        role="query",
        ids=[str(name) for name in queries],
        encode=encode,
        key=_key(pair, texts, options),
        lengths=np.array([len(text) for text in texts], dtype=np.int64),
    )


def document_inputs(
    pair: QuantizedPair,
    ids: Sequence[str],
    documents: Sequence[Document],
    options: Mapping[str, Any],
    *,
    wanted: bool = True,
) -> Inputs:
    """The documents of a search.

    Args:
        pair: the model; it embeds with the arm whose weights are in place.
        ids: of every document.
        documents: each with a text, and perhaps a title.
        options: arguments for the model beside the batch size.
        wanted: whether the embeddings are, which then have to be one vector per document.
    """
    separator = getattr(pair.base, "sep", " ")
    joint = separator if isinstance(separator, str) else " "

    def encode(rows: NDArray[np.int64], batch_size: int) -> Vectors:
        part = [documents[row] for row in rows.tolist()]
        found = pair.base.encode_corpus(part, batch_size=batch_size, show_progress_bar=False, **options)
        return as_vectors(found) if wanted else np.zeros((len(rows), 0), dtype=np.float32)

    return Inputs(
        role="document",
        ids=[str(name) for name in ids],
        encode=encode,
        key=_key(pair, documents, options),
        # of what the model reads, as in quantdrift run: then both share batches and agree exactly
        lengths=np.array([len(_joined(one, joint)) for one in documents], dtype=np.int64),
    )


def calibration_inputs(pair: QuantizedPair, options: Mapping[str, Any], *, wanted: bool = True) -> Inputs | None:
    """The texts of a file that the scheme calibrates on, as documents.

    Args:
        pair: the model.
        options: as for `document_inputs`.
        wanted: likewise.

    Returns:
        None where the scheme names no file: then the corpus itself is drawn from.

    Raises:
        DataError: the file cannot be used.
    """
    texts = calibration_texts(pair.spec.scheme)
    if texts is None:
        return None
    ids = [f"calibration-{number}" for number in range(len(texts))]
    rows = [{"title": "", "text": text} for text in texts]
    return document_inputs(pair, ids, rows, options, wanted=wanted)


def as_vectors(embeddings: Any) -> Vectors:
    """What a model of beir's returned, as float32 [n, dim]."""
    if isinstance(embeddings, list) and embeddings and isinstance(embeddings[0], torch.Tensor):
        embeddings = torch.stack(embeddings)
    if isinstance(embeddings, torch.Tensor):
        embeddings = embeddings.detach().float().cpu().numpy()
    return np.asarray(embeddings, dtype=np.float32)


def digest_of_data(queries: Any, corpus: Any) -> str:
    """A digest of ids and contents of both sides."""
    return digest_of(
        text for side in (queries, corpus) for one in ids_and_rows(side) for text in ("\n", *_written(one))
    )


def description_of(model: Any) -> list[str] | None:
    """What decides a model's embeddings beside its weights.

    Args:
        model: of beir's.

    Returns:
        None if it cannot be told: a class from elsewhere may do anything with its texts.
    """
    kind = type(model)
    if not (kind.__module__.startswith("beir.") or kind is TwoSides):
        return None
    parts = [f"{kind.__module__}.{kind.__qualname__}"]
    for name, value in sorted(vars(model).items()):
        told = _told(value)
        if told is None:
            return None
        parts.append(f"{name}: {told}")
    modules = modules_of(model)
    holders = [model, *vars(model).values()]
    return [*parts, reading_digest(holders, modules)]


def _key(pair: QuantizedPair, contents: Iterable[Any], options: Mapping[str, Any]) -> dict[str, Any] | None:
    described = description_of(pair.base)
    if described is None:
        return None
    return {
        "harness": ["beir", version("beir")],
        "model": described,
        "texts": digest_of(_written(contents)),
        "encode": dict(options),
    }


def _written(contents: Iterable[Any]) -> Iterable[str]:
    return (json.dumps(one, sort_keys=True, default=str) for one in contents)


def _joined(document: Document, separator: str) -> str:
    title, text = document.get("title"), document.get("text")
    return f"{title or ''}{separator}{text or ''}".strip()


def _told(value: Any) -> str | None:
    """A value as a string that is the same in every process; None if it has none."""
    if value is None or isinstance(value, bool | int | float | str | torch.device | torch.dtype):
        return repr(value)
    if isinstance(value, nn.Module):
        settings = [str(getattr(value, name, None)) for name in _SETTINGS]
        return "\n".join([type(value).__qualname__, *settings, repr(value)])
    if isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [(key, _told(part)) for key, part in pairs]
        return None if any(told is None for _, told in parts) else repr(parts)
    if hasattr(value, "get_vocab"):
        return f"{tokenizer_digest(value)} {getattr(value, 'model_max_length', None)}"
    name = getattr(value, "__qualname__", None)
    if callable(value) and name and "<" not in name:  # a function at the top of a module of beir's
        module = str(getattr(value, "__module__", ""))
        return f"{module}.{name}" if module.startswith("beir.") else None
    inner = description_of(value)
    return None if inner is None else "\n".join(inner)
