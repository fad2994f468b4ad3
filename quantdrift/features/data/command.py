"""`quantdrift data`: say what is in a table or folder, and write it as a folder."""

import json
import shlex
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import Any

from quantdrift.base.display import shown
from quantdrift.base.errors import DataError, RunError
from quantdrift.base.records import whole_folder
from quantdrift.cli.options import COLUMNS, SPLIT, argument, option, prints
from quantdrift.data.labelled import LAYOUT as PARTS
from quantdrift.data.labelled import TRAIN, ClassificationDataset, read_folder
from quantdrift.data.retrieval import LAYOUT, RetrievalDataset
from quantdrift.data.tables import leaks_of
from quantdrift.show.output import Output

_WIDTH = 100
"""Most characters of a text that is shown."""


@prints("json")
def command(
    *,
    data: Path = argument(
        "FOLDER|FILE: A table (.csv, .tsv, .jsonl, .parquet, .xlsx), or a folder in BEIR layout or of classes."
    ),
    columns: str | None = option(COLUMNS),
    split: str = option(SPLIT, default="test"),
    out: Path | None = option(
        "-o --out FOLDER: Write corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv there; of classes, a file a part."
    ),
) -> Output:
    """Read data as every command does, and say what was read and what was left out.

    Each row of a table is a query and its document, or an input and its class. Equal documents are one, and ids are
    made of the texts unless there are columns for them.

    What makes a search easier than it is, or decides it by chance, is named: queries that stand in the corpus word for
    word, documents that nearly repeat another, labels to documents that are not there.

    For example: quantdrift data faq.csv -o faq

    More: docs/guides/your-data.md
    """
    dataset = read_folder(data, split, columns)
    named = f" --columns {shlex.quote(columns)}" if columns and out is None else ""
    next_ = [
        *([] if out is None else [f"\nwritten: {out}"]),
        f"\nmeasure: quantdrift run minilm@W8 --data {shlex.quote(str(out or data))}{named}",
    ]
    if isinstance(dataset, ClassificationDataset):
        return _of_classes(dataset, data, out, next_)
    notes = [*dict.fromkeys([*dataset.warnings, *leaks_of(dataset)])]
    if out is not None:
        _write(dataset, out)
    texts = dict(zip(dataset.document_ids, map(str, dataset.documents), strict=True))
    first = {dataset.query_ids[0]: str(dataset.queries[0])}
    first |= {name: texts[name] for name in dataset.qrels.get(dataset.query_ids[0], {}) if name in texts}
    facts: dict[str, Any] = {"n_queries": len(dataset.query_ids), "n_documents": len(texts)}
    return Output(
        data={"name": dataset.name, **facts, "digest": dataset.fingerprint, "notes": notes, "first": first},
        title=f"{data}: {len(dataset.query_ids):,} queries, {len(texts):,} documents",
        about=[f"note: {note}" for note in notes],
        lines=[
            "The first query and its documents:",
            *(f"  {shown(name)}: {shown(text, _WIDTH)}" for name, text in islice(first.items(), 4)),
            f"digest of ids, texts and labels: {dataset.fingerprint}",
        ],
        next=next_,
    )


def _of_classes(dataset: ClassificationDataset, data: Path, out: Path | None, next_: list[str]) -> Output:
    """What is said of inputs and their classes."""
    parts = {dataset.split: dataset.test, **({} if dataset.train is None else {TRAIN: dataset.train})}
    if out is not None:
        _refuse(out, PARTS, {dataset.kind})
        with whole_folder(out, what="the data") as folder:
            for name, part in parts.items():
                labels = ({} if part.labels is None else {"label": label} for label in part.labels or part.ids)
                rows = zip(part.ids, part.inputs, labels, strict=True)
                lines = (json.dumps({"_id": each, "text": text, **label}) + "\n" for each, text, label in rows)
                (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")
    told = {name: {"inputs": len(part.ids), "classes": len(set(part.labels or ()))} for name, part in parts.items()}
    shares = [f"{name} {part['inputs']:,} inputs of {part['classes'] or 'no'} classes" for name, part in told.items()]
    first = f"{dataset.test.ids[0]}: {shown(str(dataset.test.inputs[0]), _WIDTH)}" if dataset.kind == "text" else ""
    notes = list(dataset.warnings)
    if TRAIN not in parts:
        notes.append(
            "no train part, which an embedding model learns classes from: name a folder with test.csv and train.csv"
        )
        next_ = next_[:-1]
    return Output(
        data={"name": dataset.name, "parts": told, "digest": dataset.fingerprint, "notes": notes},
        title=f"{data}: {'; '.join(shares)}",
        about=[f"note: {note}" for note in notes],
        lines=[
            *([f"The first input: {first}"] if first else []),
            f"digest of ids, contents and labels: {dataset.fingerprint}",
        ],
        next=next_,
    )


def _refuse(out: Path, layout: str, kinds: Collection[str]) -> None:
    if out.exists():
        raise RunError(f"{out} is there already; expected a new folder for {layout}. Choose another with -o")
    if "image" in kinds:
        raise DataError("images stay where they are; expected texts to write")


def _write(dataset: RetrievalDataset, out: Path) -> None:
    """Write a folder that is read back as the same data; nothing that is there is replaced."""
    _refuse(out, LAYOUT, dataset.kinds)
    sides = {"corpus": (dataset.document_ids, dataset.documents), "queries": (dataset.query_ids, dataset.queries)}
    judged = [f"{q}\t{d}\t{grade}\n" for q, grades in dataset.qrels.items() for d, grade in grades.items()]
    with whole_folder(out, what="the data") as folder:
        for name, side in sides.items():
            lines = (json.dumps({"_id": each, "text": text}) + "\n" for each, text in zip(*side, strict=True))
            (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")
        if judged:
            (folder / "qrels").mkdir()
            table = "".join(["query-id\tcorpus-id\tscore\n", *judged])
            (folder / "qrels" / f"{dataset.split}.tsv").write_text(table, encoding="utf-8", newline="\n")
