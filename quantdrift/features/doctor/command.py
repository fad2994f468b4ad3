"""`quantdrift doctor`: check whether this environment can do the main job."""

from collections.abc import Iterator
from typing import Any

from quantdrift.base.display import size_words
from quantdrift.cli.options import prints
from quantdrift.features.doctor.checks import NEEDED, diagnose
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, table

_PARTS = (
    Column("kind", "kind"),
    Column("package", "name", kind="words"),
    Column("version", "version", lambda version: version or "missing"),
    Column("what for", "note", kind="words"),
)


@prints("json")
def command() -> Output:
    """Show what is installed, whether the start-up hook is active, and what is missing.

    The exit code is 1 if something for the main job, scoring models inside mteb, is missing. An inactive hook is no
    failure: `quantdrift mteb run` works without it.

    For example: quantdrift doctor

    More: docs/reference/harnesses.md
    """
    report = diagnose()
    parts, problems = report["components"], report["problems"]
    missing = [part for part in parts if part["install"] and part["name"] not in NEEDED]
    lines = [
        f"For {', '.join(part['name'] for part in missing if part['install'] == install)}: {install}"
        for install in dict.fromkeys(part["install"] for part in missing)
    ]
    lines += [f"Note: {line}" for line in report["advice"]]
    lines += [f"Missing: {line}" for line in problems] or ["Ready: models can be scored inside mteb."]
    grids = [table(_PARTS, parts, ruled=True)]
    return Output(data=report, about=list(_environment(report)), grids=grids, next=lines, code=int(bool(problems)))


def _environment(report: dict[str, Any]) -> Iterator[str]:
    hook, cache = report["hook"], report["cache"]
    how = f"active, started by {hook['started_by']}" if hook["started_by"] else "active"
    yield f"quantdrift {report['quantdrift']} in {report['location']}"
    yield f"Python {report['python']} at {report['executable']} on {report['platform']}"
    yield f"start-up hook: {how if hook['active'] else 'not active'}; {hook['startup_file'] or 'no file of it'}"
    yield f"cache: {cache['path']}, {size_words(cache['free_bytes'])} free"
