"""`route`: what asking full precision about unsure inputs gives back, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app
from quantdrift.cli.commands_runs import AsJson, AsMarkdown, Runs

__all__: list[str] = []


@app.command(no_args_is_help=True, short_help="Send unsure inputs to full precision: does it pay?")
def route(  # noqa: PLR0917 -- typer makes options of the parameters
    runs: Runs,
    score: Annotated[
        str,
        typer.Option(
            help="How to measure that the quantized model is unsure: gap (first minus second "
            "score), "
            "msp (maximum softmax probability), entropy, or all. A search has the gap only.",
            metavar="gap|msp|entropy|all",
        ),
    ] = "all",
    percentile: Annotated[
        str | None,
        typer.Option(
            help="About which percent of the inputs to send to full precision; 10,25,50 by default.", metavar="P,P,..."
        ),
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the inputs that sets the threshold; the rest tests it.")] = 0.5,
    splits: Annotated[int, typer.Option(help="Random splits into those two parts.")] = 20,
    seed: Annotated[int, typer.Option(help="Random seed for the splits.")] = 0,
    speed_up: Annotated[
        float,
        typer.Option(
            help="How many times faster the quantized model is than full precision. Give your own "
            "figure: it is not measured here. 4.5 is what GPTQ's authors report.",
            metavar="X",
        ),
    ] = 4.5,
    recover: Annotated[
        float | None,
        typer.Option(
            help="Find the smallest threshold that corrects this share of the changed answers; 0.9 "
            "by default. For a search: corrected by rescoring the first 10 results, or at least "
            "sent there where so many cannot be corrected.",
            metavar="S",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write a router for serving, set on all inputs of one run: by --recover, or at "
            "the first --percentile if only that is given.",
            metavar="FILE",
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Draw corrected answers against cost: .svg, .png or .pdf (needs quantdrift[figures]).", metavar="FILE"
        ),
    ] = None,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """What would it bring to answer the unsure inputs at full precision, and what would it cost?

    The quantized model answers every input; where its first two scores are close, the original is
    asked too. The cost relative to full precision is 1 / speed-up + routed share. The table shows
    how many changed answers are corrected, how much of the lost accuracy comes back (with labels,
    if at least 0.5 points were lost), and whether it is better to route, to spend more bits
    (quantdrift allocate), or to do nothing.

    For a search, the first results of unsure queries are rescored instead.

    quantdrift route runs/ --score gap --save router.json; then, in a server:
    quantdrift.RoutedModel(quantized, original, quantdrift.GapRouter.load("router.json")).
    """
    from quantdrift.cli.route import RouteOptions, route_command  # noqa: PLC0415 -- scipy

    route_command(
        runs,
        RouteOptions(
            score=score,
            percentile=percentile,
            share=share,
            splits=splits,
            seed=seed,
            speed_up=speed_up,
            recover=recover,
            save=save,
            figure=figure,
            json_output=json_output,
            markdown=markdown,
        ),
    )
