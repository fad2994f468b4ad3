"""The kit's command line: python -m quantdrift_paper."""

from __future__ import annotations

import typer

from quantdrift.cli import ended
from quantdrift_paper import answers_command, capture, contenders, law, tables

app = typer.Typer(
    name="python -m quantdrift_paper",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="The paper's tables, figures and analyses, from finished studies and runs.",
)
app.command("tables", no_args_is_help=True)(tables.command)
app.command("capture", no_args_is_help=True)(capture.command)
app.command("law", no_args_is_help=True)(law.command)
app.command("contenders", no_args_is_help=True)(contenders.command)
app.command("reader", no_args_is_help=True)(answers_command.reader)


def main() -> None:
    """Entry point."""
    ended(app, "python -m quantdrift_paper")


if __name__ == "__main__":
    main()
