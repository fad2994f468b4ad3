"""Commands on finished runs, without a model and without torch: `metrics`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app

__all__: list[str] = []


@app.command(no_args_is_help=True)
def metrics(
    run: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "-m", "--metric", help="Which, e.g. gold_lost@3; may be repeated.", metavar="NAME"
        ),
    ] = None,
    per_input: Annotated[
        bool, typer.Option(help="One row per input instead of the mean or median.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute metrics again from a run folder, without the model (and without torch)."""
    from quantdrift.cli.metrics import metrics_command  # noqa: PLC0415 -- scipy

    metrics_command(run, metric or [], per_input=per_input, json_output=json_output)
