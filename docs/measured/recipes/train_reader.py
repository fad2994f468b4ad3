"""Trains an extractive reader on some of the questions of a corpus, in minutes on one core, to try `quantdrift rag`.

    python docs/measured/recipes/train_reader.py --data ./xquad --answers xquad.en.json --out ./reader
    python -m quantdrift_paper reader RUN... --reader ./reader --answers xquad.en.json

It starts from all-MiniLM-L6-v2. A reader marks where in a passage the answer stands; it is no generator. What it was
trained on is listed in its folder, and it is not asked that.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from quantdrift.base.errors import DataError
from quantdrift.data.labelled import read_folder, searched
from quantdrift.models.files.named import resolve
from quantdrift.models.loading import loading, quiet_loading
from quantdrift_paper.reader import TRAINED_ON, TrainedOn
from quantdrift_paper.training import descend, script
from quantdrift_rag.questions import read_answers

EPOCHS, BATCH, RATE, SHARE, LENGTH, WINDOW = 4, 16, 2e-4, 0.5, 480, 192
"""Passes, pairs a step, learning rate, share of the passages that are learned from, characters of a passage, tokens."""


@dataclass(frozen=True, slots=True)
class Example:
    """A question with a passage, and where in it the answer stands; (0, 0) where it does not."""

    question: str
    passage: str
    start: int = 0
    end: int = 0


def examples_of(
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
    golds: Mapping[str, Sequence[str]],
    *,
    share: float,
    seed: int,
) -> tuple[list[Example], list[str]]:
    """Make examples of the questions of some passages: each with a piece of its passage, and every second one also
    with another passage, which has no answer.

    Whole passages are taken, so that no question that is asked later has its passage among them.

    Returns:
        The examples, and the ids of their questions.

    Raises:
        DataError: no answer stands in the relevant passage of its question.
    """
    rng = random.Random(seed)
    names = list(documents)
    learned = set(rng.sample(names, round(share * len(names))))
    examples: list[Example] = []
    ids: list[str] = []
    for query, text in queries.items():
        relevant = [name for name, grade in qrels.get(query, {}).items() if grade > 0]
        places = [
            (name, documents.get(name, "").find(gold), gold) for name in relevant for gold in golds.get(query, ())
        ]
        place = next((option for option in places if option[1] >= 0), None)
        if place is None or not learned.issuperset(relevant):
            continue
        passage, at, gold = place
        other = rng.choice([name for name in names if name in learned and name not in relevant] or [passage])
        examples.append(_piece(text, documents[passage], at, at + len(gold), rng))
        if other != passage and len(ids) % 2:
            examples.append(Example(text, documents[other][:LENGTH]))
        ids.append(query)
    if not ids:
        raise DataError("no gold answer stands, letter by letter, in the relevant passage of its question")
    return examples, ids


def _piece(question: str, passage: str, start: int, end: int, rng: random.Random) -> Example:
    """Cut a piece of a passage at random that holds the answer."""
    first = max(0, min(rng.randint(end - LENGTH, start), len(passage) - LENGTH)) if end - start < LENGTH else start
    return Example(question, passage[first : max(end, first + LENGTH)], start - first, end - first)


def started(name: str) -> tuple[Any, Any]:
    """A BERT with a new head that marks answers, and its tokenizer; raises UnsupportedError as `quantdrift run`."""
    quiet_loading()
    logging.getLogger("transformers").setLevel(logging.ERROR)  # a new head is what is wanted
    from transformers import AutoTokenizer, BertForQuestionAnswering  # noqa: PLC0415 -- they warn

    source = resolve(name)
    with loading(source):
        model: Any = BertForQuestionAnswering.from_pretrained(source.location)
        model.bert.embeddings.requires_grad_(False)  # what few questions teach of words would not be words of others
        return model, AutoTokenizer.from_pretrained(source.location)


def trained(model: Any, tokenizer: Any, examples: Sequence[Example], *, epochs: int, seed: int) -> Any:
    """The model fitted to examples, by AdamW with warm-up; pairs of about one length go together."""
    rng = random.Random(seed)

    def batches() -> Iterator[list[Example]]:
        for _ in range(epochs):
            order = sorted(examples, key=lambda example: len(example.passage) + rng.randint(0, 100))
            parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
            rng.shuffle(parts)
            yield from parts

    def loss_of(batch: list[Example]) -> torch.Tensor:
        loss: torch.Tensor = model(**_tokens(tokenizer, batch)).loss
        return loss

    torch.manual_seed(seed)
    steps = epochs * -(-len(examples) // BATCH)
    descend(model.train(), batches(), loss_of, steps=steps, rate=RATE, decay=0.01, clip=1.0)
    return model.eval()


def _tokens(tokenizer: Any, batch: Sequence[Example]) -> dict[str, Any]:
    """Token ids and the first and last token of each answer; the first token of all where there is none."""
    tokens = tokenizer(
        [example.question for example in batch],
        [example.passage for example in batch],
        truncation="only_second",
        max_length=WINDOW,
        padding=True,
        return_tensors="pt",
    )
    places = []
    for row, example in enumerate(batch):
        ends = [tokens.char_to_token(row, at, 1) for at in (example.start, example.end - 1)] if example.end else [None]
        places.append((0, 0) if None in ends else tuple(ends))  # what was cut off is not here
    starts, ends = torch.tensor(places).T
    return {**tokens, "start_positions": starts, "end_positions": ends}


# --- The command ----------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> str:
    """Train, keep the reader, say what it learned from."""
    if not 0 < options.share < 1:
        raise DataError(f"--share: expected more than 0 and less than 1, got {options.share}")
    data = searched(read_folder(options.data, "test"))
    queries = dict(zip(data.query_ids, data.queries, strict=True))
    documents = dict(zip(data.document_ids, data.documents, strict=True))
    golds = read_answers(options.answers, queries)
    examples, ids = examples_of(queries, documents, data.qrels, golds, share=options.share, seed=options.seed)
    model, tokenizer = started(options.model)
    trained(model, tokenizer, examples, epochs=options.epochs, seed=options.seed)
    tokenizer.save_pretrained(options.out)
    model.save_pretrained(options.out)
    TrainedOn(data=data.name, ids=ids).write(options.out / TRAINED_ON)
    return f": an extractive reader, trained on {len(ids):,} of {len(queries):,} questions"


_MORE = (
    ("--answers", None, "gold answers, as of quantdrift rag"),
    ("--model", "minilm", "the BERT to start from, minilm by default"),
    ("--share", SHARE, f"of the passages to learn from, {SHARE} by default"),
)
main = script(work, data="folder in BEIR layout, with labels", epochs=EPOCHS, more=_MORE)

if __name__ == "__main__":
    main()
