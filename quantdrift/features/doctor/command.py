"""`quantdrift doctor`: whether this environment can do the main job, and what to do if not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quantdrift.cli.options import prints
from quantdrift.features.doctor.checks import NEEDED, diagnose
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid

SETTINGS = {"no_args_is_help": False}


@prints("json")
def command() -> Output:
    """Say what is installed, whether the start-up hook is active, and what is missing.

    The exit code is 1 where something for the main job is missing. An inactive hook is no failure: `quantdrift mteb
    run` works without it.
    """
    found = diagnose()
    parts, problems = found["components"], found["problems"]
    rows = [[each["kind"], each["name"], each["version"] or "missing", each["note"]] for each in parts]
    packages = Grid(
        head=["kind", "package", "version", "what for"], rows=rows, words=["package", "what for"], ruled=True
    )
    lines = [
        f"For {each['name']}: {each['install']}" for each in parts if each["install"] and each["name"] not in NEEDED
    ]
    lines += [f"Note: {line}" for line in found["advice"]]
    lines += [f"Missing: {line}" for line in problems] or ["Ready: models can be scored inside mteb."]
    code = 1 if problems else 0
    return Output(data=found, about=list(_environment(found)), grids=[packages], next=lines, code=code)


def _environment(found: dict[str, Any]) -> Iterator[str]:
    hook, cache = found["hook"], found["cache"]
    how = f"active, started by {hook['started_by']}" if hook["started_by"] else "active"
    yield f"quantdrift {found['quantdrift']} in {found['location']}"
    yield f"Python {found['python']} at {found['executable']} on {found['platform']}"
    yield f"start-up hook: {how if hook['active'] else 'not active'}; {hook['startup_file'] or 'no file of it'}"
    yield f"cache: {cache['path']}, {cache['free_bytes'] / 1e9:.1f} GB free"
