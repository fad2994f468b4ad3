"""Commands that say where to spend bits: `allocate`, `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app
from quantdrift.cli.commands_models import BatchSize, Cache, Data, Device, Quiet, Revision, Split, Task

__all__: list[str] = []


@app.command(no_args_is_help=True, short_help="Choose which layers get more bits.")
def allocate(  # noqa: PLR0917 -- typer makes options of the parameters
    spec: Annotated[
        str,
        typer.Argument(
            help="Model, average bits and criterion: minilm@W3.5+gap, or minilm@W3-gptq+gap+widths=2,3,4,8",
            metavar="SPEC",
        ),
    ],
    data: Data = None,
    task: Task = None,
    split: Split = "test",
    queries: Annotated[
        Path | None,
        typer.Option(
            help="Queries without labels, in place of --data: .txt with one a line, or .jsonl with a text.",
            metavar="FILE",
        ),
    ] = None,
    documents: Annotated[
        Path | None, typer.Option(help="Documents to go with --queries, in the same formats.", metavar="FILE")
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="File to write; an earlier allocation there is replaced.")
    ] = Path("allocation.json"),
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Fix the bits of layers whose name matches: '*.layer.0.*=8'; without =BITS "
            "they are "
            "not quantized at all. Can be repeated.",
            metavar="PATTERN[=BITS]",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Compare with other ways to spend the same bits, on other queries.")
    ] = True,
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    cache: Cache = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure how much rounding each layer moves the answers, and give more bits where it matters.

    The criterion gap takes 128 queries (at most a quarter of them) and the documents that rank
    first for them, and needs one forward and one backward pass; labels are not used. The chosen
    bits per layer are written to a file, which a spec can name, with any quantizer:

    quantdrift run minilm@allocation.json --data FOLDER

    quantdrift run minilm@allocation.json-gptq --data FOLDER

    Such a run does not count the queries that were used to choose.
    """
    from quantdrift.cli.allocate import AllocateOptions, allocate_command  # noqa: PLC0415 -- torch
    from quantdrift.cli.unlabeled import dataset_for  # noqa: PLC0415 -- as above

    dataset, shown = dataset_for(data=data, task=task, split=split, queries=queries, documents=documents)
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


@app.command(no_args_is_help=True, short_help="Estimate flips at every width, quantizing nothing.")
def predict(  # noqa: PLR0917 -- typer makes options of the parameters
    model: Annotated[
        str,
        typer.Argument(
            help="Model at full precision, without a scheme: minilm, BAAI/bge-small-en-v1.5, ./my-model",
            metavar="MODEL",
        ),
    ],
    data: Data = None,
    task: Task = None,
    split: Split = "test",
    queries: Annotated[
        Path | None,
        typer.Option(help="Unlabeled queries instead: .txt with one a line, or .jsonl with a text.", metavar="FILE"),
    ] = None,
    documents: Annotated[
        Path | None, typer.Option(help="Documents beside --queries, in the same forms.", metavar="FILE")
    ] = None,
    widths: Annotated[
        str, typer.Option(help="Which numbers of bits per weight a layer may get.", metavar="N,N,...")
    ] = "2,3,4,5,6,7,8",
    group: Annotated[str, typer.Option(help="How many input weights share a scale, or channel.", metavar="N")] = "128",
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    cache: Cache = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Estimate which share of first answers each width would change, before quantizing anything.

    One forward and one backward pass over 128 queries (at most a quarter of them) estimates how far
    each layer at each width would move the gap between the first two answers. From that follow the
    flip rates of all uniform widths and of all allocations between them. Labels are not used.

    It is a first-order estimate for rounding to nearest, and gets worse at few bits. MiniLM on
    Python's docstrings: 18 % predicted (25 % with random signs) and 27 % measured at W4;
    52 % (47 %) and 48 % at W3. So measure what looks good: quantdrift run MODEL@W4 --data FOLDER
    """
    from quantdrift.cli.predict import PredictOptions, predict_command  # noqa: PLC0415 -- torch
    from quantdrift.cli.unlabeled import dataset_for  # noqa: PLC0415 -- as above

    dataset, shown = dataset_for(data=data, task=task, split=split, queries=queries, documents=documents)
    predict_command(
        PredictOptions(
            model=model,
            dataset=dataset,
            shown_data=shown,
            widths=widths,
            group=group,
            batch_size=batch_size,
            device=device,
            revision=revision,
            cache=cache,
            json_output=json_output,
            quiet=quiet,
        )
    )


@app.command(no_args_is_help=True, short_help="Write an allocation as runtimes read it.")
def export(
    file: Annotated[Path, typer.Argument(help="An allocation.json.", metavar="ALLOCATION")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="gptqmodel, hqq, compressed_tensors, torchao, llama_cpp, autoround or onnxruntime.",
            metavar="NAME",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File to write; standard output if not given.")
    ] = None,
) -> None:
    """Write the widths of an allocation as a quantization library or a runtime reads them.

    Where a format cannot express the allocation, nothing is written, and the layers and what to do
    are told. How to use the file is printed on standard error.
    """
    from quantdrift.cli.export import export_command  # noqa: PLC0415 -- each loads its own

    export_command(file, format_, out)
