"""The page docs/reference/commands.md, from the commands themselves: `python tests/docs_commands.py` writes it."""

import re
from typing import Any

import typer
from typer.main import get_command

from quantdrift.cli import app
from support.places import ROOT

PAGE = ROOT / "docs" / "reference" / "commands.md"


def text() -> str:
    """Every command with its help and its options."""
    group: Any = get_command(app)
    parts = ["# Commands", "", "From the commands' own help; `quantdrift COMMAND -h` says the same.", ""]
    forms: dict[str, list[str]] = {form.split()[0]: [] for form in group.forms}
    for form in group.forms:
        forms[form.split()[0]].append(form)
    for title, commands in group.groups.items():
        parts += [f"## {title}", ""]
        for name in (form for each in commands for form in (each, *forms.get(each, ()))):
            command = group.get_command(None, name)
            inside = getattr(command, "commands", {})
            parts += [f"### {name}", ""]
            for called, one in inside.items() if inside else {name: command}.items():
                parts += [f"#### {name} {called}", ""] if inside else []
                parts += [*_said(one), ""]
    return "\n".join(parts).rstrip() + "\n"


def _said(command: Any) -> list[str]:
    about = (command.help or "").split("\f")[0].strip().split("\n\n")
    paragraphs = [each if "\n    " in f"\n{each}" else " ".join(each.split()) for each in about]
    lines = [part for each in paragraphs for part in ("", each)][1:]
    options = [
        f"| `{', '.join(each.opts)}{f' {each.metavar}' if each.metavar else ''}` "
        f"| {f'{each.rich_help_panel}: ' if each.rich_help_panel else ''}{' '.join((each.help or '').split())} |"
        for each in command.params
        if isinstance(each, typer.core.TyperOption) and not each.hidden
    ]
    lines = [re.sub(r"^More: (docs/(.+))$", r"More: [\1](../\2)", line) for line in lines]
    return [*lines, *(["", "| option | |", "|---|---|", *options] if options else [])]


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
