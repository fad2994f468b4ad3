"""The data of a study, read once, and the fingerprints of its cells."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantdrift.asking.ask import Ask, stamp_of
from quantdrift.base.errors import QuantDriftError, UnsupportedError
from quantdrift.base.progress import Progress, Silent
from quantdrift.data.labelled import Dataset, limited, load_task, read_folder, task_of
from quantdrift.data.retrieval import facts_of, keeping_own_ids
from quantdrift.data.streamed import StreamedDataset, streamed_kind
from quantdrift.models.inputs import Settings
from quantdrift.study.plan import Cell, DataEntry


@dataclass(slots=True)
class Data:
    """The data of a study, each read once, on first use."""

    progress: Progress = field(default_factory=Silent)
    _read: dict[DataEntry, Dataset | StreamedDataset | QuantDriftError] = field(default_factory=dict)

    def of(self, entry: DataEntry) -> Dataset:
        """Return the data of an entry in memory; an error in them is raised each time."""
        dataset = self.known(entry)
        if isinstance(dataset, StreamedDataset):
            raise UnsupportedError(
                f"{entry.called} is a corpus in shards, which is searched as a whole; leave retriever, neighbours, "
                "sizes and held_out out"
            )
        return dataset

    def known(self, entry: DataEntry) -> Dataset | StreamedDataset:
        """Return the data of an entry, even if they do not fit into memory."""
        key = entry.whole
        if key not in self._read:
            try:
                read = keeping_own_ids(self._loaded(entry), entry.keep_own_ids)
                self._read[key] = read if entry.limit is None else _first(read, entry)
            except QuantDriftError as error:
                self._read[key] = error
        dataset = self._read[key]
        if isinstance(dataset, QuantDriftError):
            raise dataset
        return dataset

    def _loaded(self, entry: DataEntry) -> Dataset | StreamedDataset:
        if entry.mteb is not None:
            return task_of("mteb", entry.mteb, entry.split, entry.subset)
        if entry.folder is None:
            return load_task(str(entry.task))
        if (kind := streamed_kind(entry.folder)) is not None:
            return kind.dataset(entry.folder, entry.split, progress=self.progress)
        return read_folder(Path(entry.folder), entry.split, entry.columns)


def _first(dataset: Dataset | StreamedDataset, entry: DataEntry) -> Dataset:
    if isinstance(dataset, StreamedDataset):
        raise UnsupportedError(f"{entry.called} is a corpus in shards, which is searched as a whole; leave limit out")
    return limited(dataset, entry.limit or 1)


def settings_of(cell: Cell) -> Settings:
    """The settings of a cell, with what `quantdrift run` does where nothing is said."""
    said = cell.settings.model_dump(exclude={"device", "held_out"}, exclude_none=True)
    return Settings(**{"k": 200, "noise_floor": not cell.data.sizes, **said})


def fingerprint_of(cell: Cell, data: Data) -> str:
    """Return the fingerprint that the cell's run must have.

    Raises:
        QuantDriftError: the model or the data cannot be found.
        OSError: a file that the spec names cannot be read.
    """
    entry = cell.data
    part: list[Any] = []
    digest, *own_ids = facts_of(data.known(entry))[2:]
    if entry.retriever is not None:
        part += ["retriever", entry.retriever, stamp_of(entry.retriever), entry.top]
    part += ["neighbours"] if entry.neighbours else []
    part += ["sizes", *entry.sizes] if entry.sizes else []
    facts = [digest, entry.split, *own_ids]
    return Ask(pair=cell.spec, data=facts, settings=cell.settings.said(), part=part).fingerprint
