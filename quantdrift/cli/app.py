"""The application: what `quantdrift --help` says before its commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from quantdrift import __version__
from quantdrift.errors import QuantDriftError

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


def refuse_unquoted(arguments: Sequence[str]) -> None:
    """Refuse `run minilm vs ./other`, of which the shell makes three arguments; says how to quote.

    Args:
        arguments: of the command line, the command first.

    Raises:
        QuantDriftError: shows the line with the pair in quotes.
    """
    if arguments[:1] not in (["run"], ["gate"]):
        return
    for at in range(1, len(arguments) - 2):
        before, word, after = arguments[at : at + 3]
        if word == "vs" and not before.startswith("-") and not after.startswith("-"):
            quoted = [*arguments[:at], f"{before} vs {after}", *arguments[at + 3 :]]
            raise QuantDriftError(
                f"a pair of two models is one argument, so it takes quotes: quantdrift {shlex.join(quoted)}"
            )


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quantdrift {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
