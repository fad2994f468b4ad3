"""A folder of data of either kind, labelled inputs or a search, as a user may name it."""

from __future__ import annotations

from pathlib import Path

from quantdrift.datasets.beir_files import LAYOUT as BEIR_LAYOUT
from quantdrift.datasets.classification import (
    LAYOUT,
    ClassificationDataset,
    is_classification_folder,
    read_classification_folder,
)
from quantdrift.datasets.retrieval import RetrievalDataset, read_beir_folder
from quantdrift.errors import DataError

__all__ = ["Dataset", "read_folder", "read_search_folder"]

Dataset = RetrievalDataset | ClassificationDataset
"""What a pair is measured on."""


def read_folder(folder: Path, split: str = "test") -> Dataset:
    """The data in a folder: labelled inputs, or queries and documents in BEIR layout.

    Args:
        folder: one of either kind, or a .npz file of labelled images.
        split: the part, or the labels, that are evaluated.

    Raises:
        DataError: it is neither, or cannot be read.
    """
    if is_classification_folder(folder):
        return read_classification_folder(folder, split)
    return read_search_folder(folder, split)


def read_search_folder(folder: Path, split: str = "test") -> RetrievalDataset:
    """The queries and documents in a folder; of one without, it is said what else would do.

    Args:
        folder: in BEIR layout.
        split: the labels that are evaluated.

    Raises:
        DataError: it holds something else, or cannot be read.
    """
    if not folder.exists():
        raise DataError(f"{folder} does not exist; expected a folder, or one .npz file of images")
    if folder.is_file() and folder.suffix != ".npz":
        raise DataError(f"{folder} is a file; give its folder, {folder.parent}")
    try:
        return read_beir_folder(folder, split)
    except DataError as error:
        if is_classification_folder(folder):
            raise DataError(
                f"{folder} holds classification data, and this takes queries and documents; "
                "quantdrift run and quantdrift contrast take it. To search, it needs " + BEIR_LAYOUT
            ) from error
        names = (
            {entry.name.removesuffix(".gz") for entry in folder.iterdir()}
            if folder.is_dir()
            else set()
        )
        if names & {"corpus.jsonl", "queries.jsonl", "qrels"}:
            raise
        raise DataError(f"{error}. For classification: {LAYOUT}") from error
