"""Two sentence encoders made from scratch in minutes: `python encoders.py FROM TO`, of folders in BEIR's layout.

They are subjects of docs/measured/results.md, and no good retrievers: they have other shapes than MiniLM.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from corpora import rows
from sentence_transformers import SentenceTransformer, models
from tokenizers import BertWordPieceTokenizer
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertModel, BertTokenizerFast

from quantdrift_paper.training import descend

SHAPES = {
    "wide": {"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 1024, "pooling": "mean"},
    "deep": {"hidden_size": 96, "num_hidden_layers": 6, "intermediate_size": 384, "pooling": "cls"},
}
STEPS, BATCH, RATE, TEMPERATURE = 300, 24, 1e-3, 0.05
TRAINED, LENGTH = 32, 128
"""Tokens of a text in training, and in use."""


def pairs_of(folder: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """All texts, and pairs that belong together: labels, titles with their texts, a passage with the rest around it."""
    titled = {row["_id"]: (row.get("title", ""), row["text"]) for row in rows(folder / "corpus.jsonl")}
    corpus = {name: " ".join(both) for name, both in titled.items()}
    queries = {row["_id"]: row["text"] for row in rows(folder / "queries.jsonl")}
    pairs = []
    for split in sorted(folder.glob("qrels/*.tsv")):
        for line in split.read_text(encoding="utf-8").splitlines()[1:]:
            query, document, grade = line.split("\t")
            if int(grade) > 0 and query in queries and document in corpus:
                pairs.append((queries[query], corpus[document]))
    for title, text in titled.values():
        pairs += [(title, text)] if title else []
        words = text.split()
        if len(words) > 40:
            at = random.randrange(len(words) - 15)
            pairs.append((" ".join(words[at : at + 12]), " ".join(words[:at] + words[at + 12 :])))
    return [*corpus.values(), *queries.values()], pairs


def blank(folder: Path, vocabulary: BertWordPieceTokenizer, pooling: str, **shape: int) -> SentenceTransformer:
    """An encoder whose weights are drawn."""
    folder.mkdir(parents=True)
    vocabulary.save_model(str(folder))
    words = str(folder / "vocab.txt")
    tokenizer = BertTokenizerFast(vocab=words, vocab_file=words, model_max_length=LENGTH, do_lower_case=True)
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=LENGTH,
        num_attention_heads=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **shape,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = models.Transformer(str(folder), max_seq_length=TRAINED)
    pooled = models.Pooling(shape["hidden_size"], pooling_mode=pooling)
    return SentenceTransformer(modules=[transformer, pooled, models.Normalize()], device="cpu")


def train(model: SentenceTransformer, pairs: list[tuple[str, str]], name: str) -> None:
    """Train by contrast within the batch, in both directions."""

    def batches() -> Iterator[list[tuple[str, str]]]:
        order: list[int] = []
        for _ in range(STEPS):
            if len(order) < BATCH:
                order = random.sample(range(len(pairs)), len(pairs))
            yield [pairs[number] for number in order[:BATCH]]
            order = order[BATCH:]

    def loss_of(batch: list[tuple[str, str]]) -> torch.Tensor:
        left, right = (model(model.tokenize([pair[side] for pair in batch]))["sentence_embedding"] for side in (0, 1))
        alike, diagonal = left @ right.T / TEMPERATURE, torch.arange(BATCH)
        return (cross_entropy(alike, diagonal) + cross_entropy(alike.T, diagonal)) / 2

    descend(model, batches(), loss_of, steps=STEPS, rate=RATE, decay=0.01, clip=1.0, what=name)


def main(source: Path, target: Path) -> None:
    """Train both and save them."""
    random.seed(0)
    corpora = [pairs_of(folder) for folder in sorted(source.iterdir()) if (folder / "corpus.jsonl").exists()]
    texts = [text for some, _ in corpora for text in some]
    pairs = [pair for _, some in corpora for pair in some]
    vocabulary = BertWordPieceTokenizer(lowercase=True)
    vocabulary.train_from_iterator(texts, vocab_size=8000, min_frequency=2)
    for name, shape in SHAPES.items():
        model = blank(target / "blank" / name, vocabulary, **shape)
        train(model, pairs, name)
        model[0].max_seq_length = LENGTH
        model.save(str(target / name))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
