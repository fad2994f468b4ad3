"""One search of mteb's, measured for both arms by embedding and streaming."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from mteb._create_dataloaders import create_dataloader
from mteb.types import PromptType
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from quantdrift.embeddings import default_store
from quantdrift.pair import Arm, QuantizedPair
from quantdrift.progress import Progress, Silent, Terminal
from quantdrift.retrieval import Inputs, Measured, Settings, measure_retrieval
from quantdrift.scoring import Similarity

__all__ = ["DEPTH", "Found", "Results", "SearchCall", "search_by_embedding"]

DEPTH = 200
"""Ranks kept in the evidence; mteb itself asks for more."""

Results = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCall:
    """What mteb asked for."""

    queries: Any
    corpus: Any
    task_metadata: Any
    hf_split: str
    hf_subset: str
    top_k: int
    encode_kwargs: dict[str, Any]
    top_ranked: Mapping[str, list[str]] | None
    num_proc: int | None
    skip_identical: bool

    @property
    def progress(self) -> Progress:
        """As loud as mteb was told to be."""
        return Terminal() if self.encode_kwargs.get("show_progress_bar", True) else Silent()

    @property
    def batch_size(self) -> int:
        """Inputs per forward pass."""
        return int(self.encode_kwargs.get("batch_size", 32))

    def streamed_similarity(self, model: Any) -> Similarity | None:
        """The similarity, if this search is one that both arms can be streamed through."""
        if self.top_ranked is not None:
            return None
        meta_name = model.mteb_model_meta.similarity_fn_name
        name = getattr(meta_name, "value", meta_name)
        if name is None:
            name = getattr(getattr(model, "model", None), "similarity_fn_name", None) or "cosine"
        return Similarity(str(name)) if str(name) in set(Similarity) else None

    def excluded(self) -> NDArray[np.int64] | None:
        """Per query the position of the document of the same id, where that does not count."""
        if not self.skip_identical:
            return None
        position = {name: number for number, name in enumerate(self.corpus["id"])}
        found = [position.get(name, -1) for name in self.queries["id"]]
        return np.array(found, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Both arms of one search.

    Attributes:
        measured: evidence and what else the run record needs.
        results: per arm, query id to document id to score, as deep as mteb asked.
        settings: how it was measured.
        similarity: how scores were made.
        n_documents: size of the corpus.
    """

    measured: Measured
    results: dict[Arm, Results]
    settings: Settings
    similarity: str
    n_documents: int


def search_by_embedding(
    pair: QuantizedPair, model: Any, call: SearchCall, similarity: Similarity
) -> Found:
    """Embed with both arms and stream the scores.

    Args:
        pair: the model's weights.
        model: mteb's encoder.
        call: what mteb asked for.
        similarity: how embeddings are compared.
    """
    settings = Settings(k=max(DEPTH, call.top_k), batch_size=call.batch_size)
    queries = _inputs(model, call, "query", call.queries)
    documents = _inputs(model, call, "document", call.corpus)
    measured = measure_retrieval(
        pair,
        queries,
        documents,
        similarity=similarity,
        settings=settings,
        store=default_store(),
        progress=call.progress,
        excluded=call.excluded(),
        depth=DEPTH,
    )
    state = measured.state
    return Found(
        measured=measured,
        results={
            "reference": _results(state.reference_top()[:2], queries.ids, documents.ids, call),
            "candidate": _results(state.candidate_top()[::2], queries.ids, documents.ids, call),
        },
        settings=settings,
        similarity=str(similarity),
        n_documents=len(documents.ids),
    )


def _results(
    top: tuple[NDArray[Any], ...], query_ids: Any, document_ids: Any, call: SearchCall
) -> Results:
    positions, scores = top
    results: Results = {}
    for row, query_id in enumerate(query_ids):
        ranked = zip(
            positions[row, : call.top_k].tolist(), scores[row, : call.top_k].tolist(), strict=True
        )
        results[query_id] = {
            document_ids[position]: score for position, score in ranked if position >= 0
        }
    return results


def _inputs(model: Any, call: SearchCall, role: str, dataset: Any) -> Inputs:
    prompt_type = PromptType.query if role == "query" else PromptType.document
    others = {
        name: value
        for name, value in call.encode_kwargs.items()
        if name not in {"batch_size", "show_progress_bar"}
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
        vectors = model.encode(
            chunk,
            task_metadata=call.task_metadata,
            hf_split=call.hf_split,
            hf_subset=call.hf_subset,
            prompt_type=prompt_type,
            batch_size=batch_size,
            show_progress_bar=False,
            **others,
        )
        if isinstance(vectors, torch.Tensor):
            vectors = vectors.detach().float().cpu().numpy()
        return np.asarray(vectors, dtype=np.float32)

    texts = _text_digest(dataset)
    key = None
    if texts is not None:
        key = {
            "harness": "mteb",
            "model": model.mteb_model_meta.name,
            "loader": repr(model.mteb_model_meta.loader_kwargs),
            "task": call.task_metadata.name,
            "subset": call.hf_subset,
            "texts": texts,
            "encode": others,
        }
    lengths = None
    if "text" in dataset.column_names and texts is not None:
        lengths = np.array([len(str(text)) for text in dataset["text"]], dtype=np.int64)
    return Inputs(role=role, ids=list(dataset["id"]), encode=encode, key=key, lengths=lengths)


def _text_digest(dataset: Any) -> str | None:
    """A digest of a dataset of text; None if it holds images, audio or video."""
    if any(
        type(feature).__name__ in {"Image", "Audio", "Video"}
        for feature in dataset.features.values()
    ):
        return None
    digest = blake2b(digest_size=16)
    for batch in dataset.iter(batch_size=1024):
        digest.update(json.dumps(batch, sort_keys=True, default=str).encode())
    return digest.hexdigest()
