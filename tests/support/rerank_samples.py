"""Tiny random cross-encoders, data with judgements, and shortlists for the tests of reranking."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from transformers import BertForSequenceClassification, Qwen3Config, Qwen3ForCausalLM

from quantdrift.data.retrieval import RetrievalDataset
from support.candidate_samples import bert, tokenizer

PairScores = Callable[[list[tuple[str, str]]], Sequence[float]]


def score_lists(score: PairScores, data: RetrievalDataset, lists: Mapping[str, Sequence[str]]) -> NDArray[Any]:
    """Scores of the documents that are listed for each query [n_queries, n_documents]; NaN of all others."""
    scores = np.full((len(data.queries), len(data.documents)), np.nan)
    for row, (name, query) in enumerate(zip(data.query_ids, data.queries, strict=True)):
        columns = [data.document_ids.index(document) for document in lists[name]]
        scores[row, columns] = score([(query, data.documents[column]) for column in columns])
    return scores


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


def save_generative(folder: Path) -> Path:
    """A decoder with random weights that says by two of its logits, "wing" less "drag", how well a pair fits."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    words = {"vocab_size": len(tokenizer()), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = Qwen3Config(**sizes, **words, head_dim=16, num_hidden_layers=2, initializer_range=0.3)
    backbone = folder.with_name(f"{folder.name}-backbone")
    Qwen3ForCausalLM(config).save_pretrained(backbone)
    tokenizer().save_pretrained(backbone)
    modules: Any = [Transformer(str(backbone), transformer_task="text-generation"), LogitScore(4, 5)]
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder
