"""Trains a small late-interaction or sparse encoder from MiniLM, in minutes on two cores: real figures for these kinds.

    python docs/measured/recipes/train_rows.py --kind multi --data ./scifact --out ./small-colbert
    python docs/measured/recipes/train_rows.py --kind sparse --data ./scifact --out ./small-splade
    quantdrift run ./small-colbert@W4-gptq --data ./cranfield

It learns from the documents alone: a sentence has to find the document that it is from among those of a batch (softmax
of scores). The late-interaction model begins with an orthogonal projection of MiniLM's token states, the sparse one
with a head that compares them with the embedding matrix; the FLOPS regularizer of SPLADE keeps it sparse. No query or
label is looked at. The folder is a model that sentence-transformers loads, and no product.
"""

from __future__ import annotations

import argparse
import re
import string
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Normalize
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, BertForMaskedLM

from quantdrift.base.errors import DataError
from quantdrift.data.retrieval import read_beir_folder
from quantdrift.models.files.named import resolve
from quantdrift_paper.training import descend, script

DIM, LENGTH = 64, 128
"""Numbers of a token vector, and tokens of a text while it learns."""
BATCH, RATE = 16, 2e-5
"""Documents that a sentence is told apart from in a step, and the largest rate."""
TEMPERATURE = {"multi": 0.5, "sparse": 5.0}
"""What scores are divided by: a MaxSim is a sum over tens of tokens."""
FLOPS, BIAS = 3e-3, -6.0
"""Weight of the regularizer, and what a term's logit begins at beside its product: most terms get no weight."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def model_of(kind: str, folder: Any) -> Any:
    """An untrained model around MiniLM; a sparse one needs a place for the parts that it is put together from."""
    source = resolve("minilm").location
    if kind == "multi":
        dense = Dense(
            384, DIM, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"
        )
        torch.nn.init.orthogonal_(dense.linear.weight)
        parts: list[Any] = [Transformer(source), dense, MultiVectorMask(skiplist_words=list(string.punctuation))]
        return MultiVectorEncoder(modules=[*parts, Normalize(module_input_name="token_embeddings")], device="cpu")
    whole: Any = BertForMaskedLM.from_pretrained(source)
    with torch.no_grad():
        head = whole.cls.predictions
        head.transform.dense.weight.copy_(torch.eye(384))
        head.transform.dense.bias.zero_()
        head.bias.fill_(BIAS)
        head.decoder.bias = head.bias
    whole.save_pretrained(folder / "backbone")
    AutoTokenizer.from_pretrained(source).save_pretrained(folder / "backbone")
    pooling: Any = SpladePooling("max")
    modules = [Transformer(str(folder / "backbone"), transformer_task="fill-mask"), pooling]
    return SparseEncoder(modules=modules, device="cpu", similarity_fn_name="dot")


def outputs_of(model: Any, texts: Sequence[str], task: str) -> dict[str, Tensor]:
    """What the model makes of texts, with a graph."""
    features: dict[str, Tensor] = model(model.preprocess(list(texts), task=task), task=task)
    return features


def scores_of(model: Any, queries: Sequence[str], documents: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Scores [n_queries, n_docs] with a graph, and what a regularizer adds to the loss."""
    left, right = outputs_of(model, queries, "query"), outputs_of(model, documents, "document")
    if isinstance(model, SparseEncoder):
        one, other = left["sentence_embedding"], right["sentence_embedding"]
        flops = sum(side.abs().mean(0).square().sum() for side in (one, other))
        return one @ other.T, FLOPS * torch.as_tensor(flops)
    products = torch.einsum("ash,bth->abst", left["token_embeddings"], right["token_embeddings"])
    products = products.masked_fill(~right["attention_mask"].bool()[None, :, None, :], -1e4)
    best = products.amax(-1) * left["attention_mask"][:, None, :]
    return best.sum(-1), torch.zeros(())


def pairs_of(documents: Sequence[str], rng: np.random.Generator) -> Iterator[list[tuple[str, str]]]:
    """Batches of a sentence and the document that it is from, without that sentence where there are others."""
    order = rng.permutation(len(documents)).tolist()
    for at in range(0, len(order) - BATCH + 1, BATCH):
        batch = []
        for row in order[at : at + BATCH]:
            sentences = [part for part in _SENTENCE.split(documents[row]) if part.strip()] or ["."]
            chosen = sentences.pop(int(rng.integers(len(sentences))))
            batch.append((chosen, " ".join(sentences) or chosen))
        yield batch


def train(options: argparse.Namespace) -> str:
    """Train a model and write it; say how."""
    documents = [text for text in read_beir_folder(options.data).documents if isinstance(text, str)]
    if options.kind not in TEMPERATURE:
        raise DataError(f"--kind: expected {' or '.join(TEMPERATURE)}, got {options.kind}")
    if len(documents) < BATCH:
        raise DataError(f"{options.data} has {len(documents)} documents; expected {BATCH} or more")
    rng = np.random.default_rng(options.seed)
    model = model_of(options.kind, options.out)
    model.max_seq_length = LENGTH

    def loss_of(batch: list[tuple[str, str]]) -> Tensor:
        scores, more = scores_of(model, *zip(*batch, strict=True))
        return cross_entropy(scores / TEMPERATURE[options.kind], torch.arange(len(batch))) + more

    steps = options.epochs * (len(documents) // BATCH)
    batches = (batch for _ in range(options.epochs) for batch in pairs_of(documents, rng))
    model.train()
    descend(model, batches, loss_of, steps=steps, rate=RATE, decay=0.01, clip=1.0, what=f"training {options.kind}")
    model.eval().save_pretrained(str(options.out))
    return f": {steps} steps of {BATCH} of {len(documents):,} documents"


KIND = ("--kind", "multi", "multi or sparse")
main = script(train, data="folder in BEIR layout, whose documents it learns from", epochs=1, more=[KIND])

if __name__ == "__main__":
    main()
