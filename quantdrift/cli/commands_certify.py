"""`certify`: which quantized answers can be trusted, and how many that are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app
from quantdrift.cli.commands_runs import AsJson, AsMarkdown, Runs

__all__: list[str] = []


@app.command(no_args_is_help=True, short_help="Which answers can be trusted, without labels?")
def certify(  # noqa: PLR0917 -- typer makes options of the parameters
    runs: Runs,
    alpha: Annotated[
        list[float] | None,
        typer.Option(
            help="Level: at most this share of all answers is accepted although it changed; may be "
            "repeated. By default 0.10, 0.05 and 0.01, which need at least 9, 19 and 99 "
            "calibration inputs.",
            metavar="A",
        ),
    ] = None,
    statistic: Annotated[
        list[str] | None,
        typer.Option(
            help="What is calibrated: S (the paper's) or 2epsilon, against the gap; or the "
            "confidences gap, msp, entropy alone. May be repeated; all that the run allows if not "
            "given.",
            metavar="S|2epsilon|gap|msp|entropy",
        ),
    ] = None,
    splits: Annotated[int, typer.Option(help="Random splits into calibration and tested inputs.")] = 20,
    share: Annotated[float, typer.Option(help="Share of the inputs that sets the threshold.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Random seed for the splits.")] = 0,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Calibrate on all inputs of one run at one --alpha, by S unless --statistic says "
            "otherwise, and write the check into this file, for a server.",
            metavar="FILE",
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Instead of splits: apply a check that --save wrote to these runs of the same "
            "pair, e.g. on newer data. Says too whether their inputs look like those it was "
            "calibrated on.",
            metavar="FILE",
        ),
    ] = None,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """Which quantized answers are the same as at full precision? Checks them without labels.

    Part of the inputs sets a threshold for the quantized model's gap (first minus second score); an
    answer is accepted if its gap reaches it. For inputs like these, the chance that an answer is
    accepted although full precision would give another one is at most the level. The other inputs
    test this, over random splits:

    accepted: the share of answers that can be used without asking full precision.

    accepted and changed: a share of all answers; the level is guaranteed for this.

    changed, of those accepted: a share of the accepted answers; no guarantee.

        quantdrift certify RUN --alpha 0.1 --alpha 0.01

        quantdrift certify RUN --alpha 0.1 --save check.json

        quantdrift certify NEWER_RUN --check check.json
    """
    from quantdrift.cli.certify import certify_command  # noqa: PLC0415 -- scipy

    certify_command(
        runs,
        alphas=alpha or [],
        statistics=statistic or [],
        splits=splits,
        share=share,
        seed=seed,
        save=save,
        check=check,
        json_output=json_output,
        markdown=markdown,
    )
