"""Entry points of quantdrift's commands: mteb's command line without a start-up hook, and mteb's data."""

import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from quantdrift._hook import WATCHED
from quantdrift._hook_notify import change
from quantdrift.base.errors import UnknownNameError
from quantdrift.data.labelled import Dataset


def main() -> None:
    """Hook into mteb now, whatever the off switch says, and start its command line."""
    change(WATCHED, "mteb")
    importlib.import_module("mteb.cli").main()


def read_task(name: str, split: str, subset: str | None) -> Dataset:
    """Read a task, see `quantdrift_mteb.data.read_task`; an unknown name is refused before mteb is loaded."""
    if "mteb" not in sys.modules and (texts := _texts()) and f'"{name}"' not in texts:
        names = re.findall(r'\bname="([^"\n]+)"', texts)
        hint = "(there is no folder of that name; quantdrift list tasks shows ours, and mteb has others)"
        raise UnknownNameError("folder or task", name, names, hint=hint)
    content: Dataset = importlib.import_module("quantdrift_mteb.data").read_task(name, split, subset)
    return content


def _texts() -> str:
    """Return the source of mteb's tasks and of ours; empty without mteb."""
    mteb, ours = find_spec("mteb"), find_spec("quantdrift_tasks")
    if mteb is None or ours is None:
        return ""
    folders = (Path(str(mteb.origin)).parent / "tasks", Path(str(ours.origin)).parent)
    return "".join(file.read_text(encoding="utf-8") for folder in folders for file in folder.rglob("*.py"))
