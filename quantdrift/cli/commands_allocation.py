"""Commands that say where to spend bits: `allocate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app
from quantdrift.cli.commands_models import (
    BatchSize,
    Cache,
    Data,
    Device,
    Quiet,
    Revision,
    Split,
    Task,
)

__all__: list[str] = []


@app.command(no_args_is_help=True, short_help="Choose which layers get more bits.")
def allocate(  # noqa: PLR0917 -- typer makes options of the parameters
    spec: Annotated[
        str,
        typer.Argument(
            help="Model, average bits and criterion: minilm@W3.5+gap, or "
            "minilm@W3-gptq+gap+widths=2,3,4,8",
            metavar="SPEC",
        ),
    ],
    data: Data = None,
    task: Task = None,
    split: Split = "test",
    queries: Annotated[
        Path | None,
        typer.Option(
            help="Unlabeled queries instead: .txt with one a line, or .jsonl with a text.",
            metavar="FILE",
        ),
    ] = None,
    documents: Annotated[
        Path | None,
        typer.Option(help="Documents beside --queries, in the same forms.", metavar="FILE"),
    ] = None,
    out: Annotated[
        Path,
        typer.Option("-o", "--out", help="File to write; an earlier allocation there is replaced."),
    ] = Path("allocation.json"),
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Layers left out, by pattern, and the bits they keep: '*.layer.0.*=8'; not "
            "quantized at all if no bits are given. Can be repeated.",
            metavar="PATTERN[=BITS]",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(help="Compare with other ways to spend the bits, on queries held out."),
    ] = True,
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    cache: Cache = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure how much each layer's rounding moves the answers, and give bits where it matters.

    The criterion gap looks at 128 queries (at most a quarter of them) and the documents that rank
    first for them, in one forward and one backward pass; labels play no part. The widths go to a
    file that a spec can name: quantdrift run minilm@allocation.json --data FOLDER, with any
    quantizer: minilm@allocation.json-gptq. A run leaves out the queries that were measured on.
    """
    from quantdrift.cli.allocate import AllocateOptions, allocate_command  # noqa: PLC0415 -- torch
    from quantdrift.cli.unlabeled import dataset_for  # noqa: PLC0415 -- as above

    dataset, shown = dataset_for(
        data=data, task=task, split=split, queries=queries, documents=documents
    )
    allocate_command(
        AllocateOptions(
            spec=spec,
            dataset=dataset,
            shown_data=shown,
            out=out,
            keep=keep or (),
            check=check,
            batch_size=batch_size,
            device=device,
            revision=revision,
            cache=cache,
            json_output=json_output,
            quiet=quiet,
        )
    )
