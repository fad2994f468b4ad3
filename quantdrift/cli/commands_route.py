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
            help="What tells that the quantized model is unsure: gap (first minus second score), "
            "msp (maximum softmax probability), entropy, or all. Runs on similarities have the "
            "gap only.",
            metavar="gap|msp|entropy|all",
        ),
    ] = "all",
    percentile: Annotated[
        str | None,
        typer.Option(
            help="Where thresholds are set on the unlabeled part, so about what share is routed; "
            "10,25,50 if not given.",
            metavar="P,P,...",
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(help="Part of the inputs that sets the threshold; the rest measures it."),
    ] = 0.5,
    splits: Annotated[int, typer.Option(help="Random splits into those two parts.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the splits.")] = 0,
    speed_up: Annotated[
        float,
        typer.Option(
            help="How many times faster the quantized model is than full precision, as you know or "
            "have measured it; nothing is timed here. 4.5 is what GPTQ's authors report.",
            metavar="X",
        ),
    ] = 4.5,
    recover: Annotated[
        float | None,
        typer.Option(
            help="Share of the changed answers to give back: the smallest threshold that does is "
            "told; 0.9 if not given. Of a search it counts answers restored by rescoring the first "
            "10, or caught ones where so many cannot be restored.",
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
            help="Draw what is given back against cost: .svg, .png or .pdf (needs "
            "quantdrift[figures]).",
            metavar="FILE",
        ),
    ] = None,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """From finished runs: what is recovered if unsure inputs are answered at full precision?

    The quantized model answers every input; where its own first two scores are close, the original
    is asked too. Relative cost is 1 / speed-up + routed share. Told are the share of the lost
    accuracy that comes back (where labels are there and at least 0.5 points were lost), the share
    of changed answers that come back (no labels needed), and whether to route, to spend more bits
    (quantdrift allocate), or to do nothing.

    Retrieval runs: the first results of unsure queries are rescored instead.

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
