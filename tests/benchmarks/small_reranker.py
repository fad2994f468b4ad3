"""Trains a small cross-encoder on the train judgements of a corpus, and keeps it.

    python tests/benchmarks/small_reranker.py scifact reranker

The first folder is in BEIR layout with qrels/train.tsv; the second then is a cross-encoder that
sentence-transformers loads. It begins as MiniLM, an embedding model whose body has no head, and is
trained in two steps: first the title of a document has to find its abstract, then a train query its
relevant documents, each time among wrong ones that MiniLM itself ranks high. It is trained again
only if it is not there. What matters here is a reranker that was trained end to end and that puts
relevant documents at least as high as MiniLM does; it is no product.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from torch.nn.functional import cross_entropy

from quantdrift.datasets.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.engine.inputs import Settings
from quantdrift.engine.measure import Flow
from quantdrift.engine.opening import open_pair
from quantdrift.engine.store import default_store
from quantdrift.models.named import resolve
from quantdrift.paths import cache_dir
from quantdrift.progress import Terminal
from quantdrift.spec import parse

LENGTH = 128
"""Tokens of a query and a document together."""
LISTED, PER_STEP = 5, 8
"""Documents of a query that are told apart in one step, and queries in a step."""
TITLES = 1200
"""Documents whose titles are asked for."""
TITLE_RANKS, TRAIN_RANKS = 20, 50
"""Wrong documents are drawn from so many first ones."""
RATE, WARM_UP = 5e-5, 0.1
HELD_OUT = 80
"""Train queries that nothing is learnt from, to see how far it has come."""


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


def kept_at(data: Path) -> Path:
    """Where the model of a folder is kept unless told otherwise: in the cache."""
    return cache_dir() / "benchmarks" / f"{data.resolve().name}-reranker"


def trained(data: Path, folder: Path, *, epochs: int = 3, seed: int = 0) -> Path:
    """The folder of the model, trained now if it is not there.

    Args:
        data: folder in BEIR layout with train judgements.
        folder: where it is kept; written when training is complete.
        epochs: passes over the train queries.
        seed: of the head's weights, the order and the wrong documents.
    """
    if (folder / "config.json").is_file():
        return folder
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    dataset = read_beir_folder(data, "train")
    titles = _titles(data)
    queries, documents = _embedded(dataset)
    model = CrossEncoder(
        resolve("minilm").location,
        num_labels=1,
        max_length=LENGTH,
        device="cpu",
        # on a processor the backward pass of torch's fused attention takes longer than all the rest
        model_kwargs={"attn_implementation": "eager"},
    )
    bodies = [
        text.removeprefix(titles.get(name, "")).strip()
        for name, text in zip(dataset.document_ids, dataset.documents, strict=True)
    ]
    ranked = _ranked(documents, documents, TITLE_RANKS + 1)
    titled = [
        Question(text=titles[name], right=[row], wrong=ranked[row][ranked[row] != row])
        for row, name in enumerate(dataset.document_ids)
        if titles.get(name) and bodies[row]
    ]
    titled = [titled[row] for row in rng.permutation(len(titled))[:TITLES].tolist()]
    _fit(model, titled, bodies, epochs=1, rng=rng, what="titles")
    asked = _asked(dataset, _ranked(queries, documents, TRAIN_RANKS))
    held_out, learnt = asked[:HELD_OUT], asked[HELD_OUT:]
    _tell(f"held out, before the train queries: {_first_right(model, held_out, dataset):.3f}")
    _fit(model, learnt, dataset.documents, epochs=epochs, rng=rng, what="train queries")
    _tell(f"held out, after: {_first_right(model, held_out, dataset):.3f}")
    partial = folder.with_name(f".{folder.name}")  # so that what is interrupted never looks whole
    partial.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(str(partial))
    return partial.rename(folder)


def _titles(data: Path) -> Mapping[str, str]:
    lines = (data / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    read = [json.loads(line) for line in lines if line.strip()]
    return {str(one["_id"]): str(one.get("title") or "").strip() for one in read}


def _embedded(dataset: RetrievalDataset) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """By MiniLM at full precision; kept where quantdrift run keeps them, under the same key."""
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
    model: CrossEncoder,
    questions: Sequence[Question],
    documents: Sequence[str],
    *,
    epochs: int,
    rng: np.random.Generator,
    what: str,
) -> None:
    """Softmax cross-entropy of one right document among wrong ones, by AdamW."""
    rows = [(number, right) for number, one in enumerate(questions) for right in one.right]
    steps = epochs * -(-len(rows) // PER_STEP)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=RATE, total_steps=steps, pct_start=WARM_UP, anneal_strategy="linear"
    )
    model.eval()  # no dropout, which takes twice the time on a processor and gains nothing here
    for epoch in range(epochs):
        start, losses, hits = time.perf_counter(), [], 0
        for batch in _batches(rows, rng):
            pairs = []
            for number, right in batch:
                one = questions[number]
                wrong = rng.choice(one.wrong, size=LISTED - 1, replace=False)
                pairs += [(one.text, documents[row]) for row in (right, *wrong.tolist())]
            logits = _logits(model, pairs).view(len(batch), LISTED)
            loss = cross_entropy(logits, torch.zeros(len(batch), dtype=torch.int64))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            hits += int((logits.argmax(1) == 0).sum())
            if len(losses) % 10 == 0:
                _tell(f"{what}: {len(losses)} of {steps // epochs} steps, {losses[-1]:.3f}")
        seconds = time.perf_counter() - start
        _tell(
            f"{what}, epoch {epoch + 1}/{epochs}: loss {np.mean(losses):.3f}, right one first in "
            f"{hits / len(rows):.1%}, {seconds:.0f} s"
        )


def _batches(rows: Sequence[tuple[int, int]], rng: np.random.Generator) -> Iterator[list[tuple[int, int]]]:
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
    for one in questions:
        rows = [*one.right, *one.wrong.tolist()]
        pairs = [(one.text, dataset.documents[row]) for row in rows]
        with torch.inference_mode():
            hits += int(_logits(model, pairs).argmax()) < len(one.right)
    return hits / len(questions)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder in BEIR layout with qrels/train.tsv")
    parser.add_argument("folder", type=Path, nargs="?", help="where the model is kept")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    place = options.folder or kept_at(options.data)
    print(trained(options.data, place, epochs=options.epochs))
