"""`quantdrift list`."""

from __future__ import annotations

import json
from typing import Any

from rich.table import Table

from quantdrift.cli.tables import console
from quantdrift.components import AVAILABLE_QUANTIZERS
from quantdrift.errors import UnknownNameError
from quantdrift.metrics import FAMILIES
from quantdrift.models.aliases import ALIASES, EMBEDDED
from quantdrift.spec import QUANTIZERS
from quantdrift.tasks import task_names

__all__ = ["list_command"]


def list_command(what: str, *, json_output: bool) -> None:
    """Print one of the lists.

    Args:
        what: which.
        json_output: as a JSON list of objects.

    Raises:
        UnknownNameError: there is no such list.
    """
    lists = {"metrics": _metrics, "models": _models, "quantizers": _quantizers, "tasks": _tasks}
    if what not in lists:
        raise UnknownNameError("list", what, lists, hint=f"(expected {', '.join(lists)})")
    rows = lists[what]()
    if json_output:
        print(json.dumps(rows, indent=2))
        return
    table = Table()
    for column in rows[0] if rows else ():
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console().print(table)


def _metrics() -> list[dict[str, Any]]:
    return [
        {
            "metric": ", ".join(str(member) for member in family.members()),
            "better": family.direction,
            "unit": family.unit,
            "interval": family.uncertainty,
            "labels": "yes" if family.needs_labels else "no",
            "meaning": family.summary,
        }
        for family in FAMILIES.values()
    ]


def _models() -> list[dict[str, Any]]:
    return [
        {
            "name": alias,
            "model": hub_id,
            "also as a package": EMBEDDED[alias][0].replace("_", "-") if alias in EMBEDDED else "",
        }
        for alias, hub_id in ALIASES.items()
    ]


def _quantizers() -> list[dict[str, Any]]:
    return [
        {"quantizer": name, "available": "yes" if name in AVAILABLE_QUANTIZERS else "not yet"}
        for name in QUANTIZERS
    ]


def _tasks() -> list[dict[str, Any]]:
    return [{"task": name} for name in task_names()]
