"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "PAIR_HELP",
    "SPEC_HELP",
    "AnyData",
    "AnySplit",
    "BatchSize",
    "Cache",
    "Data",
    "Device",
    "NoiseFloor",
    "NoiseSeed",
    "Quiet",
    "Ranks",
    "Revision",
    "SpecText",
    "Split",
    "Task",
]

SPEC_HELP = (
    "What to compare, MODEL@SCHEME: minilm@W4-rtn, BAAI/bge-small-en-v1.5@W3-g64, "
    "./my-model@W4-channel+query"
)
PAIR_HELP = (
    f'{SPEC_HELP}; or a model and a checkpoint that is quantized already: "minilm vs ./my-gptq"'
)


# What every command that measures a corpus takes.
SpecText = Annotated[str, typer.Argument(help=SPEC_HELP, metavar="SPEC")]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder in BEIR layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv.",
        metavar="FOLDER",
    ),
]
AnyData = Annotated[
    Path | None,
    typer.Option(
        help="Folder in BEIR layout, to search: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv. Or "
        "classification data: SPLIT.jsonl and train.jsonl of {text, label}; images in SPLIT/CLASS/ "
        "and train/CLASS/; a .npz file with x_SPLIT, y_SPLIT, x_train, y_train.",
        metavar="FOLDER",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(help="A task that comes along instead: quantdrift list tasks.", metavar="NAME"),
]
Split = Annotated[str, typer.Option(help="Which qrels/SPLIT.tsv of the folder.", metavar="NAME")]
AnySplit = Annotated[
    str,
    typer.Option(
        help="Which qrels/SPLIT.tsv, or which part of classification data.", metavar="NAME"
    ),
]
Ranks = Annotated[int, typer.Option("-k", "--k", min=1, help="Ranks kept of either arm.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Inputs per forward pass.")]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:1 or mps; the best there is if not given.", metavar="NAME"),
]
Revision = Annotated[str | None, typer.Option(help="Revision of a hub model.", metavar="NAME")]
NoiseFloor = Annotated[
    bool, typer.Option(help="Run the reference a second time, to know what noise alone flips.")
]
NoiseSeed = Annotated[int, typer.Option(help="Of the order in which the noise floor is run.")]
Cache = Annotated[
    bool,
    typer.Option(
        help="Keep embeddings and quantized layers, so that the next run needs less work."
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress bars.")]
