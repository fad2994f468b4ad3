"""Trains a small cross-encoder from MiniLM, in minutes on two cores: a reranker that was trained end to end.

    python -m quantdrift_paper.train_reranker --out ./python-docs-reranker
    quantdrift study run --suite reranking --offline

It learns from the pairs of PythonDocsRetrieval that PythonDocsSmall leaves out, or from `--data`, a folder in BEIR
layout with qrels/train.tsv. It begins as MiniLM, an embedding model whose body has no head. A query has to find its
relevant documents, each time among wrong ones that MiniLM itself ranks high; where documents have titles, a title has
to find the rest of its document before. The folder is a cross-encoder that sentence-transformers loads, and no product.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from torch.nn.functional import cross_entropy

from quantdrift.asking.opening import open_pair
from quantdrift.base.errors import DataError
from quantdrift.base.progress import Terminal
from quantdrift.data.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.measuring.flow import Flow
from quantdrift.models.files.named import resolve
from quantdrift.models.inputs import Settings
from quantdrift.models.store import default_store
from quantdrift.spec.grammar import parse
from quantdrift_paper.training import descend, script
from quantdrift_tasks.python_docs import load_rest

LENGTH = 128
"""Tokens of a query and a document together."""
LISTED, PER_STEP = 5, 8
"""Documents of a query that are told apart in one step, and queries in a step."""
TITLES = 1200
"""Documents whose titles are asked for."""
TITLE_RANKS, TRAIN_RANKS = 20, 50
"""Wrong documents are drawn from so many first ones."""
RATE = 5e-5
EPOCHS, HELD_OUT = 1, 80
"""Passes over the train queries, and how many of these nothing is learnt from, to see how far it has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A text, what is right for it, and what could be mistaken for it.

    Attributes:
        text: what is asked.
        right: positions of right documents.
        wrong: positions of wrong ones.
    """

    text: str
    right: Sequence[int]
    wrong: NDArray[np.int64]


def trained(
    dataset: RetrievalDataset, titles: Mapping[str, str], *, epochs: int = EPOCHS, seed: int = 0
) -> tuple[CrossEncoder, str]:
    """A cross-encoder fitted to a search, and how good it is on queries that were held out.

    Args:
        dataset: queries with relevant documents.
        titles: of documents that begin with one, by their ids.
        epochs: passes over the queries.
        seed: of the head's weights, the order and the wrong documents.

    Raises:
        DataError: there are too few queries or documents.
    """
    if len(dataset.queries) <= HELD_OUT or len(dataset.documents) <= TRAIN_RANKS:
        raise DataError(
            f"expected more than {HELD_OUT} train queries and {TRAIN_RANKS} documents; {dataset.name} has "
            f"{len(dataset.queries)} and {len(dataset.documents)}"
        )
    rng = np.random.default_rng(seed)
    queries, documents = _embedded(dataset)
    # on a processor the backward pass of torch's fused attention takes longer than all the rest
    eager = {"attn_implementation": "eager"}
    start = resolve("minilm").location
    model = CrossEncoder(start, num_labels=1, max_length=LENGTH, device="cpu", model_kwargs=eager)
    model.eval()  # no dropout, which takes twice the time on a processor and gains nothing here
    bodies = [
        text.removeprefix(titles.get(name, "")).strip()
        for name, text in zip(dataset.document_ids, dataset.documents, strict=True)
    ]
    named = [row for row, name in enumerate(dataset.document_ids) if titles.get(name) and bodies[row]]
    named = [named[place] for place in rng.permutation(len(named))[:TITLES].tolist()]
    near = _ranked(documents[named], documents, TITLE_RANKS + 1)
    titled = [
        Question(text=titles[dataset.document_ids[row]], right=[row], wrong=ranks[ranks != row])
        for row, ranks in zip(named, near, strict=True)
    ]
    if titled:
        _fit(model, titled, bodies, epochs=1, rng=rng, what="titles")
    asked = _asked(dataset, _ranked(queries, documents, TRAIN_RANKS))
    held_out = {*rng.permutation(len(asked))[:HELD_OUT].tolist()}
    learnt = [question for row, question in enumerate(asked) if row not in held_out]
    _fit(model, learnt, dataset.documents, epochs=epochs, rng=rng, what="train queries")
    hits = _first_right(model, [asked[row] for row in sorted(held_out)], dataset)
    by_minilm = np.mean([_first(asked[row], queries[row], documents) for row in sorted(held_out)])
    return model, f"; right document first for {hits:.1%} of {HELD_OUT} held-out queries (MiniLM: {by_minilm:.1%})"


def _titles(data: Path) -> Mapping[str, str]:
    plain = data / "corpus.jsonl"  # a gzipped one is read without titles
    lines = plain.read_text(encoding="utf-8").splitlines() if plain.is_file() else []
    read = [json.loads(line) for line in lines if line.strip()]
    return {str(document["_id"]): str(document.get("title") or "").strip() for document in read}


def _embedded(dataset: RetrievalDataset) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed queries and documents by MiniLM; the embeddings are kept as quantdrift run keeps them."""
    opened = open_pair(parse("minilm@W8-rtn"), dataset)
    flow = Flow(pair=opened.pair, settings=Settings(), store=default_store(), progress=Terminal())
    queries, documents = flow.reference(opened.reading)
    return np.asarray(queries), np.asarray(documents)


def _ranked(queries: NDArray[np.float32], documents: NDArray[np.float32], depth: int) -> list[NDArray[np.int64]]:
    """The first documents of each query by cosine; MiniLM's embeddings have length one."""
    return [np.argsort(-(documents @ query), kind="stable")[:depth] for query in queries]


def _asked(dataset: RetrievalDataset, ranked: Sequence[NDArray[np.int64]]) -> list[Question]:
    position = {name: row for row, name in enumerate(dataset.document_ids)}
    asked = []
    for name, text, ranks in zip(dataset.query_ids, dataset.queries, ranked, strict=True):
        grades = dataset.qrels[name]
        right = [position[doc] for doc, grade in grades.items() if grade > 0 and doc in position]
        asked.append(Question(text=text, right=right, wrong=ranks[~np.isin(ranks, right)]))
    return asked


def _fit(
    model: CrossEncoder, questions: Sequence[Question], documents: Sequence[str], *, rng: Any, epochs: int, what: str
) -> None:
    """Softmax cross-entropy of one right document among wrong ones, by AdamW."""
    rows = [(number, right) for number, question in enumerate(questions) for right in question.right]

    def loss_of(batch: list[tuple[int, int]]) -> torch.Tensor:
        pairs = []
        for number, right in batch:
            question = questions[number]
            wrong = rng.choice(question.wrong, size=LISTED - 1, replace=False)
            pairs += [(question.text, documents[row]) for row in (right, *wrong.tolist())]
        logits = _logits(model, pairs).view(len(batch), LISTED)
        return cross_entropy(logits, torch.zeros(len(batch), dtype=torch.int64))

    steps = epochs * -(-len(rows) // PER_STEP)
    batches = (batch for _ in range(epochs) for batch in _batches(rows, rng))
    descend(model, batches, loss_of, steps=steps, rate=RATE, decay=0.01, clip=1.0, anneal="linear", what=what)


def _batches(rows: Sequence[tuple[int, int]], rng: Any) -> Iterator[list[tuple[int, int]]]:
    order = rng.permutation(len(rows)).tolist()
    for at in range(0, len(order), PER_STEP):
        yield [rows[place] for place in order[at : at + PER_STEP]]


def _logits(model: CrossEncoder, pairs: Sequence[tuple[str, str]]) -> torch.Tensor:
    """float32 [n]; bfloat16 inside, which recent processors multiply several times faster."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores: torch.Tensor = model(model.preprocess(list(pairs)))["scores"]
    return scores.float().flatten()


def _first_right(model: CrossEncoder, questions: Sequence[Question], dataset: RetrievalDataset) -> float:
    """Share of questions whose first document is right, of the right ones and the wrong ones."""
    hits = 0
    for question in questions:
        rows = [*question.right, *question.wrong.tolist()]
        pairs = [(question.text, dataset.documents[row]) for row in rows]
        with torch.inference_mode():
            hits += int(_logits(model, pairs).argmax()) < len(question.right)
    return hits / len(questions)


def _first(question: Question, query: NDArray[np.float32], documents: NDArray[np.float32]) -> bool:
    """Return whether MiniLM has a right document before all of the wrong ones."""
    scores = documents @ query
    return bool(scores[question.right].max() > scores[question.wrong].max())


# --- The command ----------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> str:
    """Train, keep the model, say how good it is."""
    dataset = load_rest() if options.data is None else read_beir_folder(options.data, "train")
    titles = {} if options.data is None else _titles(options.data)
    model, message = trained(dataset, titles, epochs=options.epochs, seed=options.seed)
    model.save_pretrained(str(options.out))
    return message


_DATA = "folder in BEIR layout with qrels/train.tsv; by default three quarters of PythonDocsRetrieval"
main = script(work, data=_DATA, epochs=EPOCHS)

if __name__ == "__main__":
    main()
