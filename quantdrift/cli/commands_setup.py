"""Commands about this installation: `list`, `doctor`, `cache`."""

from __future__ import annotations

from typing import Annotated

import typer

from quantdrift.cli.app import app

__all__: list[str] = []


@app.command("list", no_args_is_help=True, short_help="Metrics, models, quantizers or tasks there are.")
def list_(
    what: Annotated[str, typer.Argument(help="metrics, models, quantizers or tasks.", metavar="WHAT")],
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the metrics, model short names, quantizers or tasks there are."""
    from quantdrift.cli.listing import list_command  # noqa: PLC0415 -- each command loads its own

    list_command(what, json_output=json_output)


@app.command(short_help="What is installed, and what is missing?")
def doctor(json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say what is installed, whether the start-up hook is active, and what is missing."""
    from quantdrift.cli.doctor import doctor as report  # noqa: PLC0415 -- each command loads its own

    raise typer.Exit(report(json_output))


@app.command(short_help="What is kept from run to run: where, how much; --clear.")
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete it all; it is made again when needed.")] = False,
) -> None:
    """Show where embeddings, quantized layers and sensitivities are kept, and how much they take.

    Later runs reuse them, and an interrupted run goes on from them.
    """
    from quantdrift.cli.cache import cache_command  # noqa: PLC0415 -- each command loads its own

    cache_command(clear=clear)
