"""`quantdrift doctor`: whether this environment can do the main job, and what to do if not."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from quantdrift.console import Console, console
from quantdrift.display import one_line, print_json
from quantdrift.doctor import Component, Diagnosis, diagnose

_KINDS = {"harness": "Harnesses", "library": "Libraries", "model": "Embedded model", "quantizer": "Quantizers"}


def doctor(json_output: bool, *, deep: bool = False) -> int:
    """Print what is installed, what is missing and whether the start-up hook is active.

    Args:
        json_output: print one JSON object instead of the table.
        deep: also import torch, to name the accelerators it sees.

    Returns:
        The exit code: 0 when models can be scored inside mteb, 1 when something for that is
        missing. An inactive hook is not a failure: `quantdrift mteb run` works without it.
    """
    diagnosis = diagnose(deep=deep)
    if json_output:
        print_json(diagnosis.to_json())
    else:
        _show(diagnosis, console())
    return 1 if diagnosis.problems else 0


def _show(diagnosis: Diagnosis, out: Console) -> None:
    out.print(_environment(diagnosis))
    out.print(_packages(diagnosis.components))
    for component in diagnosis.components:
        if component.install and not component.needed:
            line = Text.assemble((f"For {component.name}: ", "bold"), component.install)
            out.print(line, soft_wrap=True)
    for sentence in diagnosis.advice:
        out.print(Text.assemble(("Note: ", "bold yellow"), sentence), soft_wrap=True)
    for sentence in diagnosis.problems:
        out.print(Text.assemble(("Missing: ", "bold red"), sentence), soft_wrap=True)
    if not diagnosis.problems:
        out.print(Text("Ready: models can be scored inside mteb.", "bold green"))


def _environment(diagnosis: Diagnosis) -> Table:
    hook, cache = diagnosis.hook, diagnosis.cache
    started_by = {None: "", "manual": ", started by hand"}.get(
        hook.started_by, f", started by quantdrift.{hook.started_by}"
    )
    space = "" if cache.free_bytes is None else f", {cache.free_bytes / 1e9:.1f} GB free"
    rows = [
        ("quantdrift", f"{diagnosis.quantdrift} in {diagnosis.location}"),
        ("Python", f"{diagnosis.python} at {diagnosis.executable}"),
        ("Platform", diagnosis.platform),
        ("Start-up hook", f"active{started_by}" if hook.active else "not active"),
        ("Start-up file", hook.startup_file or "none in site-packages"),
        ("Cache", f"{cache.path or 'no folder'}{space}"),
    ]
    if diagnosis.accelerators is not None:
        rows.append(("Accelerators", ", ".join(diagnosis.accelerators) or "none: models run on CPU"))
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, "bold"), Text(one_line(value), overflow="fold"))
    return table


def _packages(components: tuple[Component, ...]) -> Table:
    table = Table()
    table.add_column("Package", no_wrap=True)
    table.add_column("Version", no_wrap=True)
    table.add_column("What for")
    last = ""
    for component in components:
        if component.kind != last:
            table.add_section()
            table.add_row(Text(_KINDS[component.kind], "bold"))
            last = component.kind
        table.add_row(component.name, _version(component), component.note)
    return table


def _version(component: Component) -> Text:
    if component.usable:
        return Text(component.version or "")
    return Text(component.version or "missing", "bold red" if component.needed else "dim")
