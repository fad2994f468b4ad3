"""The entry points for quantdrift's commands: mteb's command line where there is no start-up hook, and its data."""

import importlib

from quantdrift._hook_notify import change
from quantdrift.data.labelled import Dataset


def main() -> None:
    """Change mteb here and now, whatever the hook's off switch says, and hand over to it."""
    change("mteb")
    importlib.import_module("mteb.cli").main()


def read_task(name: str, split: str, subset: str | None) -> Dataset:
    """The data of a task; see `quantdrift_mteb.data.read_task`."""
    content: Dataset = importlib.import_module("quantdrift_mteb.data").read_task(name, split, subset)
    return content
