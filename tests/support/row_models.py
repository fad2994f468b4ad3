"""A tiny late-interaction and a tiny sparse encoder with random weights, and a search for them."""

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import nn
from transformers import BertForMaskedLM

from support.beir_folder import numbered, write_beir_folder
from support.candidate_samples import HIDDEN, WIDTH, bert, save_backbone, text, tokenizer


def multi_vector(folder: Path, *, dim: int = 16) -> MultiVectorEncoder:
    """Token vectors of 16 numbers; the documents' "of" is left out by the mask."""
    save_backbone(folder / "backbone")
    torch.manual_seed(1)
    dense = Dense(
        HIDDEN, dim, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"
    )
    modules: list[Any] = [Transformer(str(folder / "backbone")), dense]
    modules += [MultiVectorMask(skiplist_words=["of"]), Normalize(module_input_name="token_embeddings")]
    model = MultiVectorEncoder(modules=modules, device="cpu").eval()
    model.save_pretrained(str(folder / "model"))
    return model


def sparse(folder: Path) -> SparseEncoder:
    """Weights of fifteen terms, about half of which are zero."""
    sizes = bert(hidden_size=HIDDEN, num_attention_heads=4, intermediate_size=WIDTH, initializer_range=0.1)
    torch.manual_seed(0)
    save_backbone(folder / "backbone", BertForMaskedLM(sizes))
    pooling: Any = SpladePooling("max")
    modules: list[Any] = [Transformer(str(folder / "backbone"), transformer_task="fill-mask"), pooling]
    model = SparseEncoder(modules=modules, device="cpu", similarity_fn_name="dot").eval()
    model.save_pretrained(str(folder / "model"))
    return model


def static_model(folder: Path, *, dim: int = 32) -> SentenceTransformer:
    """The mean of a random vector for each word, without a transformer, saved in `static`."""
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer(), embedding_dim=dim)], device="cpu")
    model.save_pretrained(str(folder / "static"))
    return model


def round_by_hand(model: nn.Module, bits: int, group: int) -> None:
    """Round linear weights to the nearest of a symmetric grid, a scale for a row's group of columns.

    A decoder that shares its weight with the embedding matrix stays as it is.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith("decoder"):
            for part in module.weight.data.split(group, dim=1):
                scale = (part.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)).clamp(min=1e-12)
                part.copy_((part / scale).round() * scale)


def search_data(folder: Path, *, n_docs: int = 60, n_queries: int = 20) -> Path:
    """Texts of the words in BEIR layout, with a document of which the mask leaves no word."""
    documents = numbered("d", [text(number, 3 + number % 9) for number in range(n_docs)]) | {"bare": "of of"}
    queries = numbered("q", [text(1000 + number, 2 + number % 4) for number in range(n_queries)])
    return write_beir_folder(folder, queries, documents, {f"q{number}": [f"d{number}"] for number in range(n_queries)})
