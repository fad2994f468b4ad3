"""Commands that measure a grid: `study allocation`, `study show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app
from quantdrift.cli.commands_models import BatchSize, Cache, Device, Quiet, Revision, Split

__all__: list[str] = []

study = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compare methods over a grid of corpora, budgets, quantizers and draws.",
)
app.add_typer(study, name="study", short_help="Compare ways to spend bits, over corpora.")


@study.command(no_args_is_help=True, short_help="Which criterion spends bits best.")
def allocation(  # noqa: PLR0917 -- typer makes options of the parameters
    model: Annotated[
        str,
        typer.Argument(help="Model at full precision, without a scheme: minilm", metavar="MODEL"),
    ],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder in BEIR layout. Can be repeated, as can --task.", metavar="FOLDER"
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="A built-in task: quantdrift list tasks. Can be repeated.", metavar="NAME"
        ),
    ] = None,
    split: Split = "test",
    criteria: Annotated[
        str | None,
        typer.Option(
            help="Criteria, all if not given: gap, gap_exact, reconstruction, sqnr, "
            "activation_error, activation_salience, activation_norm, depth, random. The others "
            "are compared with the first.",
            metavar="NAME,NAME,...",
        ),
    ] = None,
    budgets: Annotated[
        str,
        typer.Option(help="Bits per weight, between the same two widths.", metavar="N,N,..."),
    ] = "3.25,3.5,3.75",
    quantizers: Annotated[
        str,
        typer.Option(
            help="That round to the widths: rtn,gptq,hqq. Those that calibrate do so for every "
            "allocation anew.",
            metavar="NAME,...",
        ),
    ] = "rtn",
    seeds: Annotated[
        str, typer.Option(help="Draws of calibration queries.", metavar="N,N,...")
    ] = "0",
    sizes: Annotated[
        str, typer.Option(help="Calibration queries in a draw.", metavar="N,N,...")
    ] = "128",
    held_out: Annotated[
        int,
        typer.Option(min=1, help="Queries that answers are compared on, at most, of each corpus."),
    ] = 256,
    depth: Annotated[
        int, typer.Option(min=2, help="First documents of every query that are looked at.")
    ] = 20,
    group: Annotated[
        str, typer.Option(help="Input weights that share a scale, or channel.", metavar="N")
    ] = "128",
    solver: Annotated[
        str, typer.Option(help="knapsack, or greedy (the paper's rule).", metavar="NAME")
    ] = "knapsack",
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="File to write; an earlier study there is replaced."),
    ] = Path("allocation-study.json"),
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    cache: Cache = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Which criterion spends bits best? Compares them over corpora, budgets, quantizers and draws.

    Going from 3 to 4 bits repairs some answers. The capture ratio is the share of these that are
    also repaired by the allocation, which spends only part of the extra bit; it is pooled over the
    whole grid, with intervals and the paired difference from the first criterion. Also shown:
    recall@1 and relevant documents kept (with labels), and how far draws and criteria agree.

    Each cell of the grid embeds the held-out queries and the first documents of each. What is
    finished is kept: after Ctrl-C the same command goes on, and a larger grid measures new cells.

    quantdrift study allocation minilm --task PythonDocsRetrieval --data ./scifact
    """
    from quantdrift.cli.study_allocation import StudyOptions, study_command  # noqa: PLC0415 -- torch

    study_command(
        StudyOptions(
            model=model,
            data=data or (),
            tasks=task or (),
            split=split,
            criteria=criteria,
            budgets=budgets,
            quantizers=quantizers,
            seeds=seeds,
            sizes=sizes,
            held_out=held_out,
            depth=depth,
            group=group,
            solver=solver,
            out=out,
            batch_size=batch_size,
            device=device,
            revision=revision,
            cache=cache,
            json_output=json_output,
            quiet=quiet,
        )
    )


@study.command(no_args_is_help=True, short_help="The tables of studies that were written.")
def show(
    files: Annotated[
        list[Path],
        typer.Argument(help="Files of quantdrift study allocation.", metavar="FILE..."),
    ],
    budgets: Annotated[
        str | None,
        typer.Option(
            help="Cells of these budgets only; so studies that have others beside can be pooled.",
            metavar="N,N,...",
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the tables of one study, or of several corpora that were studied one by one, pooled."""
    from quantdrift.cli.study_tables import show_studies  # noqa: PLC0415 -- scipy

    show_studies(files, budgets=budgets, json_output=json_output)
