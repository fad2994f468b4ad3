"""Small models and small tasks for the tests of the mteb plugin; nothing is downloaded."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mteb
import torch
from datasets import Dataset, DatasetDict
from mteb._create_dataloaders import _create_dataloader_from_texts
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.mocks import mock_tasks
from mteb.mocks.mock_tasks import clustering
from mteb.models import CrossEncoderWrapper, SentenceTransformerEncoderWrapper
from transformers import BertModel

from support.candidate_samples import bert, encoder, text
from support.threads import one_thread

__all__ = ["one_thread"]  # a fixture

QUIET = {"batch_size": 8, "show_progress_bar": False}


def save_encoder(folder: Path, **options: Any) -> Path:
    """A sentence-transformers model of a few thousand random weights; options are its own."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertModel(bert(**sizes, initializer_range=0.2))
    encoder(folder / "backbone", model, **{"prompts": None, **options}).save_pretrained(str(folder / "encoder"))
    return folder / "encoder"


def stock(folder: Path) -> Any:
    """A model as mteb loads it without quantdrift."""
    kind = CrossEncoderWrapper if folder.name == "reranker" else SentenceTransformerEncoderWrapper
    return kind(str(folder), device="cpu")


SCHEME = "W2-rtn"


@dataclass(frozen=True)
class Model:
    """One model as a pair, and as mteb loads it."""

    pair: Any
    stock: Any

    @classmethod
    def of(cls, folder: Path) -> "Model":
        return cls(pair=mteb.get_model(f"quantdrift:{folder}@{SCHEME}"), stock=stock(folder))


def scores(model: Any, task: Any, **kwargs: Any) -> Mapping[str, list[dict[str, Any]]]:
    """Return the scores of mteb.evaluate on one task, by split; nothing is stored unless a cache is given."""
    options = {"cache": None, "co2_tracker": False, "encode_kwargs": dict(QUIET), **kwargs}
    result = mteb.evaluate(model, task, show_progress_bar=False, **options)
    return result.task_results[0].scores


def embed(model: Any, texts: list[str]) -> Any:
    """Embeddings of texts by a model of mteb's."""
    loader = _create_dataloader_from_texts(texts, batch_size=8)
    asked = {"task_metadata": mock_tasks.MockSTSTask().metadata, "hf_split": "test", "hf_subset": "default"}
    return model.encode(loader, **asked, **QUIET)


def split_data(
    n_queries: int, n_docs: int, *, seed: int = 0, shortlist: int | None = None, **columns: str
) -> dict[str, Any]:
    """Queries, corpus and labels; `title` and `instruction` add a column of that name.

    A query is the beginning of its document, so that a random model finds some of them.
    """
    documents = [text(1000 * seed + number) for number in range(n_docs)]
    queries = [" ".join(documents[number].split()[:6]) for number in range(n_queries)]
    corpus = {"id": [f"d{number}" for number in range(n_docs)], "text": documents}
    asked = {"id": [f"q{number}" for number in range(n_queries)], "text": queries}
    if "title" in columns:
        corpus["title"] = [f"{columns['title']} {text(number, 2)}" for number in range(n_docs)]
    if "instruction" in columns:
        asked["instruction"] = [columns["instruction"]] * n_queries
    rng = random.Random(seed)
    ranked = {
        f"q{number}": [f"d{number}", *rng.sample([d for d in corpus["id"] if d != f"d{number}"], k=shortlist - 1)]
        for number in range(n_queries if shortlist else 0)
    }
    return {
        "corpus": Dataset.from_dict(corpus),
        "queries": Dataset.from_dict(asked),
        "relevant_docs": {f"q{number}": {f"d{number}": 1} for number in range(n_queries)},
        "top_ranked": ranked or None,
    }


def made_task(
    base: Any,
    load: Callable[[], Any],
    *,
    kind: str,
    main_score: str,
    name: str = "",
    languages: Mapping[str, Sequence[str]] | None = None,
    splits: Sequence[str] = ("test",),
    category: str = "t2t",
    **attributes: Any,
) -> Any:
    """A task of a class of mteb's whose data are what `load` gives."""
    about: Any = {"description": "made for a test", "dataset": {"path": "none", "revision": "1"}}
    about |= {"type": kind, "category": category, "modalities": ["text", *(["image"] if category != "t2t" else [])]}
    about |= {"eval_splits": list(splits), "eval_langs": dict(languages) if languages else ["eng-Latn"]}
    metadata = TaskMetadata(name=name or f"Tiny{kind}", main_score=main_score, **about)

    def load_data(self: Any, *_: Any, **__: Any) -> None:
        self.dataset, self.data_loaded = load(), True

    body = {"metadata": metadata, "load_data": load_data, **attributes}
    return type(metadata.name, (base,), body)()


def as_splits(parts: Mapping[str, Mapping[str, list[Any]]]) -> DatasetDict:
    return DatasetDict({name: Dataset.from_dict(dict(part)) for name, part in parts.items()})


def retrieval_task(
    name: str, data: Mapping[str, Mapping[str, Any]], *, kind: str = "Retrieval", **options: Any
) -> AbsTaskRetrieval:
    """A task whose data are those given, subset to split to `split_data`."""

    def load() -> Any:
        return {subset: {split: dict(content) for split, content in splits.items()} for subset, splits in data.items()}

    splits = sorted({split for splits in data.values() for split in splits})
    return made_task(AbsTaskRetrieval, load, kind=kind, name=name, main_score="ndcg_at_10", splits=splits, **options)


def pairs(number: int) -> dict[str, list[str]]:
    """Sentences, and others that share up to eight words with them."""
    firsts = [text(seed) for seed in range(number)]
    others = [" ".join([*first.split()[: n % 8], text(n + 500, 9 - n % 8)]) for n, first in enumerate(firsts)]
    return {"sentence1": firsts, "sentence2": others}


def labelled(number: int, seed: int, n_classes: int = 3) -> dict[str, list[Any]]:
    """Texts that share some words with the others of their class."""
    labels = [row % n_classes for row in range(number)]
    texts = [f"{text(7 + label, 3)} {text(seed + row, 6)}" for row, label in enumerate(labels)]
    return {"text": texts, "label": labels}


MOCKS = {**vars(mock_tasks), **vars(clustering)}
SENTENCES = labelled(60, 300)
MULTILABEL = {
    split: {**content, "label": [[label, 3] for label in content["label"]]}
    for split, content in (("train", labelled(45, 100)), ("test", labelled(30, 200)))
}
OTHERS: dict[str, dict[str, dict[str, list[Any]]]] = {
    "MockSTSTask": {"test": {**pairs(30), "score": [n % 9 for n in range(30)]}},
    "MockPairClassificationTask": {"test": {**pairs(30), "labels": [n % 2 for n in range(30)]}},
    "MockBitextMiningTask": {"test": pairs(30)},
    "MockClassificationTask": {"train": labelled(45, 100), "test": labelled(30, 200)},
    "MockMultilabelClassification": MULTILABEL,
    "MockClusteringTask": {"test": {"sentences": [SENTENCES["text"]], "labels": [SENTENCES["label"]]}},
}


def other_task(name: str) -> Any:
    """A mock task of mteb's with more data than its own."""

    def load_data(self: Any, *_: Any, **__: Any) -> None:
        splits = {split: Dataset.from_dict(content) for split, content in OTHERS[name].items()}
        self.dataset, self.data_loaded = DatasetDict(splits), True

    return type(name, (MOCKS[name],), {"load_data": load_data, "n_experiments": 2})()
