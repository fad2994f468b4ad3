"""Tasks that come along, found through the entry points of installed packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from quantdrift.datasets.retrieval import RetrievalDataset
from quantdrift.errors import UnknownNameError

__all__ = ["load_task", "task_names"]

GROUP = "quantdrift.tasks"


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def task_names() -> list[str]:
    """Names of the tasks that `load_task` takes."""
    return sorted(_entries())


def load_task(name: str) -> RetrievalDataset:
    """The data of a task.

    Args:
        name: as `quantdrift list tasks` shows it.

    Raises:
        UnknownNameError: there is no such task; carries the nearest names.
        DataError: its data cannot be made here.
    """
    entries = _entries()
    if name not in entries:
        raise UnknownNameError("task", name, entries, hint="(quantdrift list tasks shows all)")
    dataset: RetrievalDataset = entries[name].load()()
    return dataset
