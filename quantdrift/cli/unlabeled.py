"""The data that layers are measured on, from the options of a command."""

from __future__ import annotations

import shlex
from pathlib import Path

from quantdrift.datasets.retrieval import RetrievalDataset, load_task, read_beir_folder
from quantdrift.engine.calibration.sample import read_texts
from quantdrift.errors import QuantDriftError


def dataset_for(
    *, data: Path | None, task: str | None, split: str, queries: Path | None, documents: Path | None
) -> tuple[RetrievalDataset, str]:
    """The data that the options name.

    Args:
        data: folder in BEIR layout.
        task: that comes along.
        split: of the folder.
        queries: file of unlabeled queries.
        documents: file of documents beside them.

    Returns:
        The data, and the options of `quantdrift run` that name it.

    Raises:
        QuantDriftError: none, or more than one, is named, or it cannot be read.
    """
    files = queries is not None or documents is not None
    if sum([data is not None, task is not None, files]) != 1:
        raise QuantDriftError(
            "expected one of --data FOLDER (BEIR layout), --task NAME (quantdrift list tasks), or "
            "--queries FILE with --documents FILE"
        )
    if data is not None:
        return read_beir_folder(data, split), f"--data {shlex.quote(str(data))}"
    if task is not None:
        return load_task(task), f"--task {task}"
    if queries is None or documents is None:
        raise QuantDriftError("expected --queries FILE and --documents FILE; got one of them")
    texts = {path: tuple(read_texts(path)) for path in (queries, documents)}
    dataset = RetrievalDataset(
        name=queries.stem,
        query_ids=tuple(f"query-{number}" for number in range(len(texts[queries]))),
        queries=texts[queries],
        document_ids=tuple(f"document-{number}" for number in range(len(texts[documents]))),
        documents=texts[documents],
        qrels={},
        split="unlabeled",
    )
    return dataset, "--data FOLDER"
