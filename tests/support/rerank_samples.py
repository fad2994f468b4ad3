"""Tiny random cross-encoders, data with judgements, and shortlists for the tests of reranking."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from quantdrift.datasets.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.engine.pair import QuantizedPair
from quantdrift.spec import parse_scheme
from support.candidate_samples import WORDS, tokenizer

N_QUERIES, N_DOCS = 12, 30


def save_cross_encoder(folder: Path, *, n_scores: int = 1, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    """A BERT of two layers with random weights and a head; options are the CrossEncoder's."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS) + 4,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=48,
        initializer_range=0.3,
        num_labels=n_scores,
    )
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
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("queries", queries), ("corpus", documents)):
        lines = [json.dumps({"_id": f"{name[0]}{n}", "text": text}) for n, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    judged = [f"q{row}\tc{row}\t1" for row in range(n_queries)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    return read_beir_folder(folder)


def lists(n: int = 8, *, n_queries: int = N_QUERIES, seed: int = 1) -> dict[str, list[str]]:
    """Documents of each query in an order of their own; every third lacks the relevant one."""
    rng = random.Random(seed)
    made = {}
    for query in range(n_queries):
        own = f"c{query}"
        others = rng.sample([f"c{row}" for row in range(N_DOCS) if f"c{row}" != own], k=n)
        made[f"q{query}"] = others if query % 3 == 0 else [own, *others[1:]]
    return made


def write_trec(path: Path, shortlist: Mapping[str, Sequence[str]]) -> Path:
    """A TREC run file, best first."""
    lines = [
        f"{query} Q0 {name} {rank} {100 - rank} bm25"
        for query, names in shortlist.items()
        for rank, name in enumerate(names, start=1)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def predicted(
    folder: Path, dataset: RetrievalDataset, shortlist: Mapping[str, Sequence[str]], scheme: str | None = None
) -> dict[str, dict[str, float]]:
    """What sentence-transformers itself scores, one pair at a time, by a copy that is quantized."""
    model = CrossEncoder(str(folder), device="cpu", activation_fn=nn.Identity())
    queries = dict(zip(dataset.query_ids, dataset.queries, strict=True))
    documents = dict(zip(dataset.document_ids, dataset.documents, strict=True))
    with _quantized(model, scheme):
        return {
            query: {name: float(model.predict([(queries[query], documents[name])])[0]) for name in names}
            for query, names in shortlist.items()
        }


@contextmanager
def _quantized(model: nn.Module, scheme: str | None) -> Iterator[None]:
    if scheme is None:
        yield
        return
    with QuantizedPair([model], parse_scheme(scheme)).candidate():
        yield


def by_hand(
    reference: Mapping[str, float], candidate: Mapping[str, float], dataset: RetrievalDataset
) -> dict[str, Any]:
    """What the evidence of one query must hold, the slow way."""
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
