"""One side of a search of mteb's, as something that can be embedded chunk by chunk."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from mteb._create_dataloaders import create_dataloader
from mteb.types import PromptType
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from quantdrift.engine.encoders.sentence import reading_digest
from quantdrift.engine.inputs import Inputs
from quantdrift.engine.layers import modules_of
from quantdrift.engine.pair import QuantizedPair

PROBE = 2
"""Inputs that are encoded again with an eye on which layers they reach."""

_SETTINGS = (
    "default_prompt_name",
    "instruction_template",
    "max_length",
    "max_seq_length",
    "model_prompts",
    "prompts",
    "prompts_dict",
    "truncate_dim",
)
"""Attributes of a model, or of what it wraps, that decide its embeddings beside the weights."""


def inputs_of(model: Any, call: Any, role: str, dataset: Any, *, wanted: bool = True) -> Inputs:
    """The queries or the documents of a search.

    Args:
        model: mteb's encoder.
        call: the search, a SearchCall.
        role: "query" or "document".
        dataset: the rows of that side.
        wanted: whether the embeddings are, which then have to be one vector per input.
    """
    prompt_type = PromptType.query if role == "query" else PromptType.document
    others = {
        name: value for name, value in call.encode_kwargs.items() if name not in {"batch_size", "show_progress_bar"}
    }
    # Prepared once: selecting rows of the prepared data costs nothing, preparing each chunk does.
    loader: Any = create_dataloader(
        dataset,
        task_metadata=call.task_metadata,
        prompt_type=prompt_type,
        batch_size=call.batch_size,
        num_proc=call.num_proc,
    )

    def encode(rows: NDArray[np.int64], batch_size: int) -> NDArray[np.float32]:
        chunk: DataLoader[Any] = DataLoader(
            loader.dataset.select(rows.tolist()),
            batch_size=batch_size,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
        )
        vectors: Any = model.encode(
            chunk,
            task_metadata=call.task_metadata,
            hf_split=call.hf_split,
            hf_subset=call.hf_subset,
            prompt_type=prompt_type,
            batch_size=batch_size,
            show_progress_bar=False,
            **others,
        )
        if not wanted:
            return np.zeros((len(rows), 0), dtype=np.float32)
        if isinstance(vectors, torch.Tensor):
            vectors = vectors.detach().float().cpu().numpy()
        return np.asarray(vectors, dtype=np.float32)

    key = lengths = None
    if call.task_metadata.get_modalities(prompt_type) == ["text"]:
        lengths = np.array([len(str(text)) for text in dataset["text"]], dtype=np.int64)
        key = {
            "harness": ["mteb", version("mteb")],
            "model": description_of(model),
            # models choose prompts by these
            "task": [call.task_metadata.name, call.task_metadata.type, call.task_metadata.prompt, call.hf_subset],
            "texts": digest_of_rows(dataset),
            "encode": others,
        }
    return Inputs(role=role, ids=list(dataset["id"]), encode=encode, key=key, lengths=lengths)


def watch_layers(pair: QuantizedPair, model: Any, loader: Any, kwargs: dict[str, Any]) -> None:
    """Encode a few inputs of a call again, to see which layers are reached; once per pair.

    It is for the record only: where it cannot be done, the record says so.

    Args:
        pair: the model's weights, the reference's in place.
        model: mteb's encoder.
        loader: what was encoded.
        kwargs: the other arguments of that call.
    """
    dataset: Any = getattr(loader, "dataset", None)
    if len(pair.never_reached) < len(pair.layers) or not hasattr(dataset, "select"):
        return
    few: DataLoader[Any] = DataLoader(
        dataset.select(range(min(PROBE, len(dataset)))), batch_size=PROBE, collate_fn=loader.collate_fn
    )
    with suppress(Exception), pair.observed():
        model.encode(few, **{**kwargs, "batch_size": PROBE, "show_progress_bar": False})


def description_of(model: Any) -> list[str]:
    """What decides a model's embeddings beside its weights, as far as it can be told."""
    meta = model.mteb_model_meta
    parts = [type(model).__qualname__, str(meta.name), str(meta.revision), repr(meta.loader_kwargs)]
    for holder in (model, getattr(model, "model", None)):
        values = [getattr(holder, name, None) for name in _SETTINGS]
        # a function is told by its name: its repr is another one in every process
        parts += [str(getattr(value, "__qualname__", value)) for value in values]
    # pooling, normalization and the like
    modules = modules_of(model)
    parts += [repr(module) for module in modules]
    return [*parts, reading_digest([model, getattr(model, "model", None)], modules)]


def digest_of_rows(dataset: Any) -> str:
    """A digest of all columns of a dataset of text."""
    digest = blake2b(digest_size=16)
    for batch in dataset.iter(batch_size=1024):
        digest.update(json.dumps(batch, sort_keys=True, default=str).encode())
    return digest.hexdigest()
