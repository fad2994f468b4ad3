"""The kit's command line: python -m quantdrift_paper."""

from __future__ import annotations

import typer

from quantdrift.cli import ended
from quantdrift_paper import answers_command, capture_command, contenders_command, law_command, tables_command

app = typer.Typer(
    name="python -m quantdrift_paper",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="The paper's tables, figures and analyses, from finished studies and runs.",
)
app.command("tables", no_args_is_help=True)(tables_command.command)
app.command("capture", no_args_is_help=True)(capture_command.command)
app.command("law", no_args_is_help=True)(law_command.command)
app.command("contenders", no_args_is_help=True)(contenders_command.command)
app.command("flashrag", no_args_is_help=True)(answers_command.flashrag)
app.command("reader", no_args_is_help=True)(answers_command.reader)


def main() -> None:
    """Entry point."""
    ended(app, "python -m quantdrift_paper")


if __name__ == "__main__":
    main()
