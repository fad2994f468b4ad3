"""The texts of a finished run, which holds only ids, from the data that it was made on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.base.errors import DataError, QuantDriftError
from quantdrift.base.progress import Terminal
from quantdrift.base.text import as_typed, some
from quantdrift.data.labelled import ClassificationDataset, load_task, read_folder, takes_columns, task_names
from quantdrift.data.streamed import DataKind, streamed_kind
from quantdrift.finished.formats import Source
from quantdrift.finished.formats.lm_eval import read_lm_eval, sample_files
from quantdrift.finished.lm_eval_evidence import read_document
from quantdrift.runs.folder import Run

_SHOWN = 10
"""Most ranks whose texts are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Texts of inputs and items.

    Attributes:
        inputs: input id to text.
        items: item id to text; empty for classes, whose names are enough.
        choices: for questions with choices, input id to the texts of the choices in order.
        digest: digest of the data.
        told: their source, or how to get them, in one sentence without a full stop.
        command: how to get them, where they are not here.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    items: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    digest: str = ""
    told: str
    command: str = ""

    def item(self, input_id: str, item: str | None) -> str | None:
        """The text of an answer to an input; None if it is not known."""
        choices = self.choices.get(input_id)
        if choices is not None and item is not None and item.isdecimal():
            return choices[int(item)] if int(item) < len(choices) else None
        return None if item is None else self.items.get(item)


def read_texts(run: Run, *, data: Path | None = None, task: str | None = None) -> Texts:
    """Read the texts of a run from the data that are named, or else from the place that the run recorded.

    Data that are not named are used only if they have the digest that the run recorded.
    """
    said: Mapping[str, Any] = run.record["data"]
    recorded = (said.get("fingerprint"), (said.get("corpus_size") or {}).get("corpus_fingerprint"))
    whole = ((said.get(part) or {}).get("fingerprint") for part in ("limit", "drawn"))
    digests = [digest for digest in (*recorded, *whole) if digest]
    # the digests of other programs, and of `quantdrift diff`, are not of the texts
    ours = bool(digests) and not said.get("harness") and "diff" not in run.record
    if data is not None and task is not None:
        raise QuantDriftError("expected either --data FOLDER or --task NAME; got both")
    if data is not None and (kind := streamed_kind(data)) is not None:
        return _streamed(run, data, kind)
    if data is not None and not ours and (sample_files(data) if data.is_dir() else ".jsonl" in data.suffixes):
        return _of_samples(data, str(said["name"]))
    if data is not None or task is not None:
        texts = _texts_of(said, data, task)
        if ours and texts.digest not in digests:
            raise DataError(
                f"expected the data that {run.path} was made on, with the digest {' or '.join(digests)}; "
                f"{data or task} has the digest {texts.digest}"
            )
        if texts.inputs and not texts.inputs.keys() & set(map(str, run.evidence(drawn=True).input_ids)):
            raise DataError(f"{data or task} has none of the inputs of {run.path}; it has {some(texts.inputs)}")
        return texts if ours else replace(texts, told=f"{texts.told}, matched by their ids")
    place, name = said.get("path"), str(said["name"])
    command = f"quantdrift show {as_typed(run.path)} " + (f"--task {name}" if name in task_names() else "--data FOLDER")
    # no other data have the prompts of lm-eval
    which = ", into which lm_eval --log_samples wrote" if said.get("harness") == "lm-eval" else ""
    absent = Texts(command=command, told=f"to see texts: {command}{which}")
    if not ours or not (place or name in task_names()):  # equal names alone do not prove that the data are the same
        return absent
    try:
        texts = _texts_of(said, Path(place) if place else None, name)
    except (QuantDriftError, OSError, ValueError):
        return absent
    changed = f"{absent.told} ({place or name} has changed since the run)"
    return texts if texts.digest in digests else replace(absent, told=changed)


def _texts_of(said: Mapping[str, Any], folder: Path | None, task: str | None) -> Texts:
    split, columns = str(said.get("split") or "test"), said.get("columns")
    columns = columns if folder is not None and takes_columns(folder, split) else None
    dataset = load_task(str(task)) if folder is None else read_folder(folder, split, columns)
    about: dict[str, Any] = {"digest": dataset.fingerprint, "told": f"texts are from {folder or task}"}
    if not isinstance(dataset, ClassificationDataset):
        sides = ((dataset.query_ids, dataset.queries), (dataset.document_ids, dataset.documents))
        inputs, items = (
            dict(zip(ids, texts, strict=True)) if kind == "text" else {}
            for (ids, texts), kind in zip(sides, dataset.kinds, strict=True)
        )
        return Texts(inputs=inputs, items=items, **about)
    # ids of images are their files, and classes have names; in self-retrieval the items are inputs
    inputs = dict(zip(dataset.test.ids, dataset.test.inputs, strict=True)) if dataset.kind == "text" else {}
    return Texts(inputs=inputs, items={} if said.get("kind") == "classification" else inputs, **about)


def _streamed(run: Run, place: Path, kind: DataKind) -> Texts:
    """The texts that a run shows, by going through the corpus; only on request, as it may be large."""
    dataset = kind.dataset(place, str(run.record["data"].get("split") or "test"), progress=Terminal())
    if dataset.fingerprint != run.record["data"].get("fingerprint"):
        raise DataError(f"expected the data that {run.path} was made on; {place} holds other data, or other shards")
    evidence = run.evidence()
    firsts = np.unique([top.items[:, :_SHOWN] for top in (evidence.reference_top, evidence.candidate_top)])
    items = dataset.document_texts({str(evidence.item_ids[item]) for item in firsts[firsts >= 0]})
    inputs = dict(zip(dataset.query_ids, dataset.queries, strict=True))
    return Texts(inputs=inputs, items=items, digest=dataset.fingerprint, told=f"texts are from {dataset.path}")


def _of_samples(path: Path, name: str) -> Texts:
    """The questions and choices in samples that lm-eval logged."""
    parts = read_lm_eval(Source(path)).parts
    wanted = [task for task in parts if len(parts) == 1 or task in name.split(", ")]
    if len(wanted) != 1:
        raise DataError(f"expected samples of one task, {name}, in {path}; give the file with them")
    inputs, choices = {}, {}
    for sample, *_ in parts[wanted[0]].content.values():
        document = read_document(sample, wanted[0])
        inputs[str(document.doc_id)] = str(document.requests[0][0])
        if document.kind == "multiple_choice":
            choices[str(document.doc_id)] = [str(request[1]).strip() for request in document.requests]
    source = f"texts are from {path}, matched by the numbers of the documents"
    return Texts(inputs=inputs, choices=choices, told=source)
