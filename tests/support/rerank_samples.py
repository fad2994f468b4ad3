"""Tiny random cross-encoders, data with judgements, and shortlists for the tests of reranking."""

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder
from transformers import BertForSequenceClassification

from support.candidate_samples import bert, tokenizer


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
