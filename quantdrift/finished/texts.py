"""The texts of a finished run, which holds ids only: from the data that it was made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from quantdrift.datasets.labelled import ClassificationDataset, Dataset, read_folder
from quantdrift.datasets.retrieval import load_task, some, task_names
from quantdrift.errors import DataError, QuantDriftError
from quantdrift.finished.contents import Sampled
from quantdrift.finished.lm_eval import read_lm_eval, sample_files
from quantdrift.finished.lm_eval_evidence import read_document
from quantdrift.runs import Run

_CLASSIFICATION = "classification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What inputs and items say.

    Attributes:
        inputs: input id to its text.
        items: item id to its text; names of classes speak for themselves.
        choices: of questions with choices, input id to the texts of its choices, by number.
        told: where they are from, or how to get them: one sentence, without a full stop.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    items: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    told: str

    def item(self, input_id: str, item: str | None) -> str | None:
        """The text of an answer to an input; None where it is not known."""
        choices = self.choices.get(input_id)
        if choices is not None and item is not None and item.isdecimal():
            return choices[int(item)] if int(item) < len(choices) else None
        return None if item is None else self.items.get(item)


def read_texts(run: Run, *, data: Path | None = None, task: str | None = None) -> Texts:
    """The texts of a run, of the data that are named, or else of where it found them.

    Of data that are not named, only such are taken as have the digest that the run recorded.

    Args:
        run: a finished run.
        data: a folder as `quantdrift run` takes it; of a run of lm-eval its samples.
        task: a built-in task.

    Raises:
        QuantDriftError: data that are named cannot be read, or are others.
    """
    said: Mapping[str, Any] = run.record["data"]
    if data is not None and task is not None:
        raise QuantDriftError("expected either --data FOLDER or --task NAME; got both")
    if data is not None and _has_samples(data):
        return _of_samples(data, str(said.get("name")))
    if data is not None:
        return _checked(run, said, read_folder(data, _split(said)), f"texts are from {data}")
    if task is not None:
        return _checked(run, said, load_task(task), f"texts are of the task {task}")
    return _remembered(run, said)


def _remembered(run: Run, said: Mapping[str, Any]) -> Texts:
    name, path = said.get("name"), said.get("path")
    load: Callable[[], Dataset]
    if path:
        how, place = "--data FOLDER", path
        load = partial(read_folder, Path(path), _split(said))
    elif name in task_names():
        how, place = f"--task {name}", f"the task {name}"
        load = partial(load_task, str(name))
    else:
        return Texts(told=_how_to(run, "--data FOLDER"))
    if not _ours(run, said):  # names alone tell too little to trust them unasked
        return Texts(told=_how_to(run, how))
    try:
        dataset = load()
    except (QuantDriftError, OSError, ValueError) as error:
        return Texts(told=f"{_how_to(run, how)} ({place} cannot be read: {error})")
    if dataset.fingerprint not in _digests(said):
        return Texts(told=f"{_how_to(run, how)} ({place} holds other data than it did)")
    return _texts_of(dataset, said, f"texts are from {place}")


def _checked(run: Run, said: Mapping[str, Any], dataset: Dataset, told: str) -> Texts:
    """The texts of data that the user names."""
    if dataset.fingerprint in _digests(said):
        return _texts_of(dataset, said, told)
    if _ours(run, said):
        known = " or ".join(_digests(said))
        raise DataError(
            f"expected the data that {run.path} was made of, with the digest {known}; "
            f"{dataset.name} has {dataset.fingerprint}, so its texts are others"
        )
    found = _texts_of(dataset, said, f"{told}, matched by their ids")
    wanted = [str(name) for name in run.evidence().input_ids]
    if not found.inputs.keys() & set(wanted):
        raise DataError(
            f"{dataset.name} has none of the inputs of {run.path} ({some(wanted)}); it has {some(found.inputs)}"
        )
    return found


def _texts_of(dataset: Dataset, said: Mapping[str, Any], told: str) -> Texts:
    if isinstance(dataset, ClassificationDataset):
        if dataset.kind != "text":
            return Texts(told="inputs are images, called by their files")
        inputs = dict(zip(dataset.test.ids, dataset.test.inputs, strict=True))
        # classes are called by their names; a search of the inputs among themselves finds inputs
        items = {} if said.get("kind") == _CLASSIFICATION else inputs
        return Texts(inputs=inputs, items=items, told=told)
    return Texts(
        inputs=dict(zip(dataset.query_ids, dataset.queries, strict=True)),
        items=dict(zip(dataset.document_ids, dataset.documents, strict=True)),
        told=told,
    )


def _has_samples(path: Path) -> bool:
    """Whether it is what lm-eval writes, and no data."""
    if path.is_dir():
        return bool(sample_files(path))
    return path.is_file() and ".jsonl" in path.suffixes


def _of_samples(path: Path, name: str) -> Texts:
    """Questions and choices of the samples that lm-eval logged."""
    parts = [part for part in read_lm_eval(path).parts.values() if isinstance(part, Sampled)]
    if len(parts) > 1:
        parts = [part for part in parts if part.task in name.split(", ")]
    if len(parts) != 1:
        raise DataError(f"{path} holds no samples of {name}, or several; give the file of them")
    inputs, choices = {}, {}
    for sample in parts[0].samples:
        document = read_document(sample, parts[0].task)
        number = str(document.doc_id)
        inputs[number] = str(document.requests[0][0])
        if document.kind == "multiple_choice":
            choices[number] = [str(request[1]).strip() for request in document.requests]
    told = f"texts are from {path}, matched by the numbers of the documents"
    return Texts(inputs=inputs, choices=choices, told=told)


def _ours(run: Run, said: Mapping[str, Any]) -> bool:
    """Whether its digest is of texts: other programs, and `quantdrift diff`, take others."""
    return bool(_digests(said)) and not said.get("harness") and "diff" not in run.record


def _digests(said: Mapping[str, Any]) -> list[str]:
    """Of the data, and of all of it where the run saw a part."""
    part = (said.get("corpus_size") or {}).get("corpus_fingerprint")
    return [one for one in (said.get("fingerprint"), part) if one]


def _split(said: Mapping[str, Any]) -> str:
    return str(said.get("split") or "test")


def _how_to(run: Run, option: str) -> str:
    return f"to see texts: quantdrift show {run.path} {option}"
