"""Arguments and options that several commands take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

SPEC_HELP = "What to compare, MODEL@SCHEME: minilm@W4-rtn, BAAI/bge-small-en-v1.5@W3-g64, ./my-model@W4-channel+query"
PAIR_HELP = (
    f'{SPEC_HELP}; or a model and a checkpoint that is quantized already: "minilm vs ./my-gptq"; '
    'or a model on a server: "minilm vs openai:http://localhost:8000/v1#my-model"'
)


# What every command that measures a corpus takes.
SpecText = Annotated[str, typer.Argument(help=SPEC_HELP, metavar="SPEC")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder in BEIR layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv.", metavar="FOLDER"),
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
    str | None, typer.Option(help="A built-in task, in place of --data: quantdrift list tasks.", metavar="NAME")
]
Split = Annotated[str, typer.Option(help="Which split of the labels: qrels/SPLIT.tsv in the folder.", metavar="NAME")]
AnySplit = Annotated[
    str, typer.Option(help="Which split of the data: the labels in qrels/SPLIT.tsv, or SPLIT.jsonl.", metavar="NAME")
]
Ranks = Annotated[
    int, typer.Option("-k", "--k", min=1, help="How many top-ranked documents to keep per query and model.")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Inputs per forward pass, or per request to a server.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 or mps; by default the fastest one found.", metavar="NAME")
]
Revision = Annotated[str | None, typer.Option(help="Revision of a model on the Hugging Face hub.", metavar="NAME")]
NoiseFloor = Annotated[
    bool,
    typer.Option(
        help="Also run the full-precision model a second time, in batches of another size, to "
        "see how "
        "many answers change without any quantization."
    ),
]
NoiseSeed = Annotated[int, typer.Option(help="Random seed for the order of that second run.")]
Cache = Annotated[bool, typer.Option(help="Keep embeddings and quantized layers on disk and reuse them in later runs.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress bars.")]
ShortlistFrom = Annotated[
    Path | None,
    typer.Option(
        help="For a cross-encoder: the search results to rerank, as the run folder of a retriever "
        "on the same data (its full-precision ranking is used) or a TREC run file.",
        metavar="RUN",
    ),
]
ShortlistTop = Annotated[
    int | None, typer.Option(min=1, help="How many documents per query to rerank; 100 by default.", metavar="N")
]

# For models on servers.
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, max=64, help="Servers: how many requests to send at the same time; 4 by default.", metavar="N"),
]
RequestsPerMinute = Annotated[
    float | None,
    typer.Option(min=0.01, help="Servers: at most so many requests a minute; no limit by default.", metavar="N"),
]
QueryPrefix = Annotated[
    str | None,
    typer.Option(help="Servers: text to put before every query; by default that of the other model.", metavar="TEXT"),
]
DocumentPrefix = Annotated[str | None, typer.Option(help="Servers: text to put before every document.", metavar="TEXT")]


def takes(options: type[Any]) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Give a command the fields of a dataclass as its options; it is called with one such object.

    Args:
        options: a dataclass; what typer has to know of a field stands in its annotation.
    """

    def decorate(command: Callable[[Any], None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            command(options(**given))

        hints = get_type_hints(options, include_extras=True)
        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
            for field in fields(options)
        ]
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        called.__annotations__ = hints
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called

    return decorate
