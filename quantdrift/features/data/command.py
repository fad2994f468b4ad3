"""`quantdrift data`: say what is in a table or folder of queries and documents, and write it as a folder."""

import json
import shlex
from itertools import islice
from pathlib import Path
from typing import Any

from quantdrift.base.display import shown
from quantdrift.base.errors import DataError, RunError
from quantdrift.base.records import whole_folder
from quantdrift.cli.options import COLUMNS, SPLIT, argument, option, prints
from quantdrift.data.labelled import read_folder, searched
from quantdrift.data.retrieval import LAYOUT, RetrievalDataset
from quantdrift.data.tables import leaks_of
from quantdrift.show.output import Output

_WIDTH = 100
"""Most characters of a text that is shown."""


@prints("json")
def command(
    *,
    data: Path = argument("FOLDER|FILE: A table (.csv, .tsv, .jsonl, .parquet, .xlsx), or a folder in BEIR layout."),
    columns: str | None = option(COLUMNS),
    split: str = option(SPLIT, default="test"),
    out: Path | None = option("-o --out FOLDER: Write corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv there."),
) -> Output:
    """Read queries and documents as every command does, and say what was read and what was left out.

    Each row of a table is a query and its document. Equal texts are one, and ids are made of the texts unless there are
    columns for them.

    What makes a search easier than it is, or decides it by chance, is named: queries that stand in the corpus word for
    word, documents that nearly repeat another, labels to documents that are not there.

    For example: quantdrift data faq.csv -o faq

    More: docs/guides/your-data.md
    """
    dataset = searched(read_folder(data, split, columns))
    notes = [*dict.fromkeys([*dataset.warnings, *leaks_of(dataset)])]
    if out is not None:
        _write(dataset, out)
    texts = dict(zip(dataset.document_ids, map(str, dataset.documents), strict=True))
    first = {dataset.query_ids[0]: str(dataset.queries[0])}
    first |= {name: texts[name] for name in dataset.qrels.get(dataset.query_ids[0], {}) if name in texts}
    named = f" --columns {shlex.quote(columns)}" if columns and out is None else ""
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
        next=[
            *([] if out is None else [f"\nwritten: {out}"]),
            f"\nmeasure: quantdrift run minilm@W8 --data {shlex.quote(str(out or data))}{named}",
        ],
    )


def _write(dataset: RetrievalDataset, out: Path) -> None:
    """Write a folder that is read back as the same data; nothing that is there is replaced."""
    if out.exists():
        raise RunError(f"{out} is there already; expected a new folder for {LAYOUT}. Choose another with -o")
    if "image" in dataset.kinds:
        raise DataError("images stay where they are; expected texts to write")
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
