"""Reads the data of mteb's tasks for quantdrift's own commands."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import mteb
import numpy as np
from datasets import Image  # type: ignore[import-untyped]  # it ships no types
from mteb._create_dataloaders import create_dataloader
from mteb.abstasks import AbsTaskClassification, AbsTaskMultilabelClassification, AbsTaskRegression
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval import _filter_queries_without_positives as with_positives
from mteb.types import PromptType

from quantdrift.base.display import in_one_line
from quantdrift.base.errors import DataError, UnsupportedError
from quantdrift.base.records import bytes_digest
from quantdrift.data.images import Images
from quantdrift.data.labelled import ClassificationDataset, Dataset, Labelled
from quantdrift.data.retrieval import RetrievalDataset, own_documents

OTHERWISE = "Run it inside mteb: mteb run --model quantdrift:MODEL@SCHEME -t TASK (docs/reference/harnesses.md)"


def read_task(name: str, split: str, subset: str | None) -> Dataset:
    """Return the texts and labels of a task.

    mteb itself joins titles and texts, queries and instructions, leaves out queries without a relevant document, and
    draws the training inputs of its experiments, which the probe is fitted to.

    Args:
        name: name of the task.
        split: split of its data, such as "test".
        subset: subset of its data, such as a language; None for the only one.

    Raises:
        DataError: there is no such task, split or subset, or its data cannot be loaded.
        UnsupportedError: the task is no plain search or classification of texts or images.
    """
    try:
        task: Any = mteb.get_task(name)
    except Exception as error:  # its class differs between versions of mteb
        raise DataError(f"mteb has no task {name!r}: {error.args[0] if error.args else error}") from error
    _refuse_kind(task)
    content = _content(task, split, subset)
    dataset = _search(task, content, split) if isinstance(task, AbsTaskRetrieval) else _classes(task, content, split)
    return replace(dataset, read_otherwise=_other_prompts(task))


def _refuse_kind(task: Any) -> None:
    name, kind = task.metadata.name, task.metadata.type
    special = isinstance(task, AbsTaskMultilabelClassification | AbsTaskRegression)
    if special or not isinstance(task, AbsTaskRetrieval | AbsTaskClassification):
        raise UnsupportedError(
            f"{name} ({kind}) is neither a search nor a classification into single classes. {OTHERWISE}"
        )
    roles = (None,) if isinstance(task, AbsTaskClassification) else (PromptType.query, PromptType.document)
    for role in roles:
        held = list(task.metadata.modalities if role is None else task.metadata.get_modalities(role))
        if held not in (["text"], ["image"]):
            raise UnsupportedError(f"an input of {name} is not a text or an image ({', '.join(held)}). {OTHERWISE}")
    if getattr(task, "is_cross_validation", False):
        raise UnsupportedError(f"{name} has no test part: mteb cross-validates it. {OTHERWISE}")


def _content(task: Any, split: str, subset: str | None) -> Any:
    """Return the data of a subset, of a search only those of the split."""
    name, subsets = task.metadata.name, list(task.hf_subsets)
    if subset is None and len(subsets) > 1:
        raise DataError(f"{name} has {len(subsets)} subsets; expected one of them (subset: ...): {', '.join(subsets)}")
    chosen = subset or subsets[0]
    if chosen not in subsets:
        raise DataError(f"{name} has no subset {chosen!r}; it has {', '.join(subsets)}")
    if split not in task.metadata.eval_splits:
        raise DataError(f"{name} has no split {split!r} (split: ...); it has {', '.join(task.metadata.eval_splits)}")
    with in_one_line(f"the data of {name} cannot be loaded", kind=DataError):
        task.load_data()
        if isinstance(task, AbsTaskRetrieval):
            task.convert_v1_dataset_format_to_v2(1)
    content = task.dataset if chosen not in task.dataset and chosen == "default" else task.dataset[chosen]
    return content[split] if isinstance(task, AbsTaskRetrieval) else content


def _search(task: Any, content: Any, split: str) -> RetrievalDataset:
    name = task.metadata.name
    if content.get("top_ranked"):
        raise UnsupportedError(f"{name} reranks shortlists of its own. {OTHERWISE}")
    qrels, queries = with_positives(content["relevant_docs"], content["queries"])
    corpus = content["corpus"]
    query_texts, texts = (
        images_of(part) if list(task.metadata.get_modalities(kind)) == ["image"] else _texts(task, part, kind)
        for part, kind in ((queries, PromptType.query), (corpus, PromptType.document))
    )
    bare = corpus["text"] if "text" in corpus.column_names else ()
    return RetrievalDataset(
        name=name,
        query_ids=tuple(queries["id"]),
        queries=query_texts,
        document_ids=tuple(corpus["id"]),
        documents=texts,
        qrels=qrels,
        split=split,
        own=frozenset(queries["id"]).intersection(corpus["id"])
        if getattr(task, "ignore_identical_ids", False)  # whatever their texts
        else own_documents(queries["id"], query_texts, corpus["id"], texts, bare),
    )


def _texts(task: Any, part: Any, kind: PromptType) -> tuple[str, ...]:
    """Return the texts that mteb gives to a model."""
    loader: Any = create_dataloader(part, task_metadata=task.metadata, prompt_type=kind, batch_size=32)
    return tuple(map(str, loader.dataset["text"]))


def images_of(part: Any, column: str = "image") -> Images:
    """Return the images of a column, decoded on access, with digests of the stored files."""
    stored = part.cast_column(column, Image(decode=False))
    contents = (
        image["bytes"] if image["bytes"] is not None else Path(image["path"]).read_bytes() for image in stored[column]
    )
    digests = [bytes_digest(content, size=16) for content in contents]
    return Images(lambda row: np.asarray(part[row][column].convert("RGB"), dtype=np.uint8), digests)


def _classes(task: Any, content: Any, split: str) -> ClassificationDataset:
    """Return test and train part; the train part has each input that mteb's experiments draw, in their order."""
    train, test = content[task.train_split], content[split]
    drawn, order = [], None
    for number in range(task.n_experiments):
        _, order, chosen = task._undersample_data(train, number, order)
        drawn.append(list(chosen))
    learnt, kind = train.select(list(dict.fromkeys(chain(*drawn)))), task.metadata.modalities[0]
    return ClassificationDataset(
        name=task.metadata.name,
        kind=kind,
        split=split,
        test=_labelled(task, test, split, kind),
        train=_labelled(task, learnt, "train", kind, once=True),
    )


def _labelled(task: Any, part: Any, name: str, kind: str, *, once: bool = False) -> Labelled:
    """Return inputs and labels of a part, with row numbers as ids; `once` drops texts that occur twice."""
    labels = tuple(map(str, part[task.label_column_name]))
    inputs: Sequence[Any]
    if kind == "image":
        inputs = images_of(part, task.input_column_name)
    else:
        rows = list(zip(map(str, part[task.input_column_name]), labels, strict=True))
        inputs, labels = zip(*(dict.fromkeys(rows) if once else rows), strict=True) if rows else ((), ())
    return Labelled(ids=tuple(f"{name}-{row}" for row in range(len(labels))), inputs=inputs, labels=labels)


def _other_prompts(task: Any) -> frozenset[str]:
    """Return the names of prompts that mteb and quantdrift use differently on this task.

    quantdrift uses those named query and document. mteb first looks for one of the task or its kind, and in
    classification for no other.
    """
    heads = (task.metadata.name, task.metadata.type)
    roles = [kind.value for kind in PromptType]
    prompts = {*heads, *(f"{head}-{role}" for head in heads for role in roles)}
    if isinstance(task, AbsTaskClassification):
        prompts = {*heads, *roles, "passage", "corpus"} - {"query"}
    return frozenset(prompts)
