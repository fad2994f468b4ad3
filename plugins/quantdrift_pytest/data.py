"""The data that a test names: a folder from the rootdir, or a task."""

from __future__ import annotations

from os import PathLike

import pytest

from quantdrift.datasets.folder import Dataset, read_folder
from quantdrift.datasets.tasks import load_task
from quantdrift_pytest.digests import looks
from quantdrift_pytest.session import Session

__all__ = ["read_data"]


def read_data(
    session: Session, *, data: str | PathLike[str] | None, task: str | None, split: str
) -> Dataset:
    """The data, read once per session as long as the files stay as they are.

    Args:
        session: that asks.
        data: folder, from the rootdir.
        task: name of a task, in place of a folder.
        split: of the folder.

    Raises:
        pytest.UsageError: neither or both are given.
        DataError: the data cannot be read.
        UnknownNameError: there is no such task; carries the nearest names.
    """
    if (data is None) == (task is None):
        got = "neither" if data is None else "both"
        raise pytest.UsageError(
            'expected either data="FOLDER" or task="NAME" (quantdrift list tasks); got ' + got
        )
    if data is None:
        assert task is not None  # one of the two is given
        name: tuple[object, ...] = ("task", task)
        if name not in session.data:
            session.data[name] = load_task(task)
    else:
        folder = session.root / data
        name = ("data", folder, split, *(looks(folder) if folder.exists() else ()))
        if name not in session.data:
            session.data[name] = read_folder(folder, split)
    return session.data[name]
