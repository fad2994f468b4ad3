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
    "Concurrency",
    "Data",
    "Device",
    "DocumentPrefix",
    "NoiseFloor",
    "NoiseSeed",
    "QueryPrefix",
    "Quiet",
    "Ranks",
    "RequestsPerMinute",
    "Revision",
    "ShortlistFrom",
    "ShortlistTop",
    "SpecText",
    "Split",
    "Task",
]

SPEC_HELP = (
    "What to compare, MODEL@SCHEME: minilm@W4-rtn, BAAI/bge-small-en-v1.5@W3-g64, "
    "./my-model@W4-channel+query"
)
PAIR_HELP = (
    f'{SPEC_HELP}; or a model and a checkpoint that is quantized already: "minilm vs ./my-gptq"; '
    'or a model on a server: "minilm vs openai:http://localhost:8000/v1#my-model"'
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
BatchSize = Annotated[
    int, typer.Option(min=1, help="Inputs per forward pass, or per request to a server.")
]
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
ShortlistFrom = Annotated[
    Path | None,
    typer.Option(
        help="SPEC is of a cross-encoder, which reranks what a search of the same data found: the "
        "run folder of the retriever (its full-precision ranking), or a TREC run file.",
        metavar="RUN",
    ),
]
ShortlistTop = Annotated[
    int | None,
    typer.Option(
        min=1, help="Documents per query that are reranked, 100 if not given.", metavar="N"
    ),
]

# For models on servers.
Concurrency = Annotated[
    int | None,
    typer.Option(
        min=1, max=64, help="Servers: requests under way at a time, 4 if not given.", metavar="N"
    ),
]
RequestsPerMinute = Annotated[
    float | None,
    typer.Option(
        min=0.01, help="Servers: requests a minute at most; no limit if not given.", metavar="N"
    ),
]
QueryPrefix = Annotated[
    str | None,
    typer.Option(
        help="Servers: put before every query; what the other model puts there if not given.",
        metavar="TEXT",
    ),
]
DocumentPrefix = Annotated[
    str | None,
    typer.Option(help="Servers: the same for documents.", metavar="TEXT"),
]
