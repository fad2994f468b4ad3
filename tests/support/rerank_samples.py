"""Tiny random cross-encoders, data with judgements, and shortlists for the tests of reranking."""

import random
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from torch import nn
from transformers import BertForSequenceClassification

from quantdrift.data.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.engine.pair import QuantizedPair
from quantdrift.spec.grammar import parse_scheme
from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import WORDS, bert, tokenizer

N_QUERIES, N_DOCS = 12, 30


def save_cross_encoder(folder: Path, *, n_scores: int = 1, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    """A BERT of two layers with random weights and a head; options are the CrossEncoder's."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = bert(**sizes, initializer_range=0.3, num_labels=n_scores)
    backbone = folder.with_name(f"{folder.name}-backbone")
    BertForSequenceClassification(config).to(dtype).save_pretrained(backbone)
    tokenizer().save_pretrained(backbone)
    CrossEncoder(str(backbone), device="cpu", **options).save_pretrained(str(folder))
    return folder


def write_data(folder: Path, *, n_queries: int = N_QUERIES, seed: int = 0) -> RetrievalDataset:
    """A folder in BEIR layout; a query is the beginning of its relevant document."""
    rng = random.Random(seed)
    documents = [" ".join(rng.choices(WORDS, k=rng.randint(6, 12))) for _ in range(N_DOCS)]
    queries = [" ".join(documents[row].split()[:4]) for row in range(n_queries)]
    judged = {f"q{row}": [f"c{row}"] for row in range(n_queries)}
    return read_beir_folder(write_beir_folder(folder, numbered("q", queries), numbered("c", documents), judged))


def lists(n: int = 8, *, n_queries: int = N_QUERIES, seed: int = 1) -> dict[str, dict[str, float]]:
    """Documents of each query with scores that put them in an order; every third lacks the relevant one."""
    rng = random.Random(seed)
    shortlists = {}
    for query in range(n_queries):
        relevant = f"c{query}"
        others = rng.sample([f"c{row}" for row in range(N_DOCS) if f"c{row}" != relevant], k=n)
        names = others if query % 3 == 0 else [relevant, *others[1:]]
        shortlists[f"q{query}"] = {name: 99.0 - rank for rank, name in enumerate(names)}
    return shortlists


def predicted(
    folder: Path, dataset: RetrievalDataset, shortlist: Mapping[str, Iterable[str]], scheme: str | None = None
) -> dict[str, dict[str, float]]:
    """Return the scores of sentence-transformers itself, by a copy that is quantized."""
    model = CrossEncoder(str(folder), device="cpu", activation_fn=nn.Identity())
    queries = dict(zip(dataset.query_ids, dataset.queries, strict=True))
    documents = dict(zip(dataset.document_ids, dataset.documents, strict=True))
    with nullcontext() if scheme is None else QuantizedPair([model], parse_scheme(scheme)).candidate():
        return {
            query: dict(
                zip(names, map(float, model.predict([(queries[query], documents[n]) for n in names])), strict=True)
            )
            for query, names in shortlist.items()
        }


def by_hand(
    reference: Mapping[str, float], candidate: Mapping[str, float], dataset: RetrievalDataset
) -> dict[str, Any]:
    """Return what the evidence of a query must hold, the slow way."""
    position = {name: row for row, name in enumerate(dataset.document_ids)}
    names = sorted(reference, key=position.__getitem__)
    delta = {name: np.float32(candidate[name]) - np.float32(reference[name]) for name in names}
    order = [sorted(names, key=lambda n: (-arm[n], position[n])) for arm in (reference, candidate)]
    return {
        "reference": order[0],
        "candidate": order[1],
        "epsilon": max(abs(value) for value in delta.values()),
        "s": max(delta[order[1][0]] - value for value in delta.values()),
        "gap": reference[order[0][0]] - reference[order[0][1]],
    }


def top_names(item_ids: NDArray[Any], items: NDArray[np.int64]) -> list[list[str]]:
    """Names of the items of a ranking, best first."""
    return [[str(item_ids[item]) for item in row if item >= 0] for row in items.tolist()]
