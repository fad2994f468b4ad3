"""`quantdrift doctor`: whether this environment can do the main job, and what to do if not."""

from __future__ import annotations

import typer

from quantdrift.cli.options import AS_JSON, flag
from quantdrift.cli.output import Grid, Shown, emit, form_of
from quantdrift.doctor import Diagnosis, diagnose

SETTINGS = {"no_args_is_help": False}


def command(*, json_output: bool = flag(AS_JSON)) -> None:
    """Say what is installed, whether the start-up hook is active, and what is missing.

    The exit code is 1 where something for the main job is missing. An inactive hook is no failure:
    `quantdrift mteb run` works without it.
    """
    found = diagnose()
    packages = Grid(
        head=["kind", "package", "version", "what for"],
        rows=[[each.kind, each.name, each.version or "missing", each.note] for each in found.components],
        words={"package", "version", "what for"},
        ruled=True,
    )
    extras = [f"For {each.name}: {each.install}" for each in found.components if each.install and not each.needed]
    lines = [*extras, *(f"Note: {line}" for line in found.advice), *(f"Missing: {line}" for line in found.problems)]
    if not found.problems:
        lines.append("Ready: models can be scored inside mteb.")
    emit(
        Shown(data=found.to_json(), about=_environment(found), grids=[packages], next=lines),
        form_of(json_output=json_output),
    )
    raise typer.Exit(1 if found.problems else 0)


def _environment(found: Diagnosis) -> list[str]:
    hook, cache = found.hook, found.cache
    how = {None: "", "manual": ", started by hand"}.get(hook.started_by, f", started by quantdrift.{hook.started_by}")
    space = "" if cache.free_bytes is None else f", {cache.free_bytes / 1e9:.1f} GB free"
    rows = {
        "quantdrift": f"{found.quantdrift} in {found.location}",
        "Python": f"{found.python} at {found.executable}",
        "Platform": found.platform,
        "Start-up hook": f"active{how}" if hook.active else "not active",
        "Start-up file": hook.startup_file or "none in site-packages",
        "Cache": f"{cache.path or 'no folder'}{space}",
    }
    if found.accelerators is not None:
        rows["Accelerators"] = ", ".join(found.accelerators) or "none: models run on CPU"
    return [f"{name + ':':<15}{value}" for name, value in rows.items()]
