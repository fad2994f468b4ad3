"""Commands on classification data: `contrast`. `run` takes such data too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app
from quantdrift.cli.options import SPEC_HELP, BatchSize, Cache, Device, NoiseFloor, NoiseSeed, Quiet, Ranks, Revision

__all__: list[str] = []


@app.command(no_args_is_help=True, short_help="The same embeddings as classes and as a search.")
def contrast(  # noqa: PLR0917 -- typer makes options of the parameters
    specs: Annotated[list[str], typer.Argument(help=SPEC_HELP, metavar="SPEC")],
    data: Annotated[
        list[Path],
        typer.Option(
            help="Classification data: a folder with test.jsonl and train.jsonl, with images, or a "
            ".npz file; may be given several times.",
            metavar="FOLDER",
        ),
    ],
    split: Annotated[str, typer.Option(help="The part that is evaluated, and searched.", metavar="NAME")] = "test",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the run folders, two of each spec and data: SPEC_on_DATA-probe and "
            "-self; quantdrift-runs if not given.",
            metavar="DIR",
        ),
    ] = None,
    k: Ranks = 200,
    batch_size: BatchSize = 32,
    noise_floor: NoiseFloor = True,
    device: Device = None,
    revision: Revision = None,
    seed: NoiseSeed = 0,
    cache: Cache = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    markdown: Annotated[bool, typer.Option(help="Print a Markdown table.")] = False,
    quiet: Quiet = False,
) -> None:
    """Read the same embeddings both ways: as classes, and as a search among the inputs.

    Classes are read by a linear probe that is fitted on the full-precision embeddings of the train
    part and then frozen; a classifier is read by its own head. The search ranks, for every input of
    the evaluated part, all others by cosine. Model, data and quantization are the same, so what
    differs is the reading alone.

    Give several specs of one model (minilm@W8 minilm@W4 minilm@W3): they share its embeddings.
    """
    from quantdrift.cli.contrast import ContrastOptions, contrast_command  # noqa: PLC0415 -- torch

    contrast_command(
        ContrastOptions(
            specs=specs,
            data=data,
            split=split,
            out=out,
            k=k,
            batch_size=batch_size,
            noise_floor=noise_floor,
            device=device,
            revision=revision,
            seed=seed,
            cache=cache,
            json_output=json_output,
            markdown=markdown,
            quiet=quiet,
        )
    )
