"""The application: what `quantdrift --help` says before its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from quantdrift import __version__

__all__ = ["app"]

app = typer.Typer(
    name="quantdrift",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it pipes, greps and fits narrow terminals
    context_settings={"help_option_names": ["-h", "--help"]},
    help="See which answers quantization changed, and which can still be trusted.\n\n"
    "Inside mteb:  mteb run --model quantdrift:minilm@W4-rtn -t PythonDocsRetrieval\n\n"
    "By itself:  quantdrift run minilm@W4-rtn --task PythonDocsRetrieval",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quantdrift {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass
