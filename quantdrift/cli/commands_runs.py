"""Commands on finished runs, without a model and without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app

__all__: list[str] = []


Runs = Annotated[
    list[Path],
    typer.Argument(help="Run folders, or folders that hold some at any depth.", metavar="RUN..."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")]


@app.command(no_args_is_help=True)
def metrics(
    runs: Runs,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--metric",
            help="Which, e.g. gold_lost@3, change.ndcg@10, flip@1:separation=0..0.05; may be "
            "repeated. All of them are in: quantdrift list metrics.",
            metavar="NAME",
        ),
    ] = None,
    per_input: Annotated[
        bool, typer.Option(help="One row per input instead of the mean or median.")
    ] = False,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """Compute metrics again from run folders, without the model (and without torch).

    One run: every metric with its interval and meaning. Several: one row per run.
    """
    from quantdrift.cli.metrics import metrics_command  # noqa: PLC0415 -- scipy

    metrics_command(
        runs, metric or [], per_input=per_input, json_output=json_output, markdown=markdown
    )


@app.command(no_args_is_help=True)
def breakdown(  # noqa: PLR0917 -- typer makes options of the parameters
    runs: Runs,
    by: Annotated[
        str,
        typer.Option(help="separation, contenders, or any other metric.", metavar="NAME"),
    ] = "separation",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--metric",
            help="What to compute in each bucket; may be repeated. flip@1, harm and benefit if "
            "not given.",
            metavar="NAME",
        ),
    ] = None,
    edges: Annotated[
        str | None,
        typer.Option(
            help="Where buckets begin, e.g. 0,0.1,1; the last has no upper end. The paper's for "
            "separation and contenders, quartiles for others, if not given.",
            metavar="A,B,...",
        ),
    ] = None,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """Sort inputs into buckets, and compute metrics in each: which inputs change, which are harmed.

    Several runs are pooled: every input of every run counts once.
    """
    from quantdrift.cli.breakdown import breakdown_command  # noqa: PLC0415 -- scipy

    breakdown_command(
        runs,
        by=by,
        names=metric or [],
        edges=edges,
        json_output=json_output,
        markdown=markdown,
    )
