"""Commands that say where to spend bits: `allocate`, `predict`."""

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


@app.command(no_args_is_help=True, short_help="Expect flips at every width, quantizing nothing.")
def predict(  # noqa: PLR0917 -- typer makes options of the parameters
    model: Annotated[
        str,
        typer.Argument(
            help="Model at full precision, without a scheme: minilm, BAAI/bge-small-en-v1.5, "
            "./my-model",
            metavar="MODEL",
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
    widths: Annotated[
        str, typer.Option(help="Bits per weight that a layer may have.", metavar="N,N,...")
    ] = "2,3,4,5,6,7,8",
    group: Annotated[
        str, typer.Option(help="Input weights that share a scale, or channel.", metavar="N")
    ] = "128",
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            help="Run folders, or a folder that holds some: those of this model and data are shown "
            "beside their prediction. Can be repeated.",
            metavar="FOLDER",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Round the model to W4 and W3 after all, over the calibration queries only, and "
            "compare how far the gaps really move.",
        ),
    ] = False,
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    cache: Cache = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Tell which share of first answers each width would change, before quantizing anything.

    One forward and one backward pass over 128 queries (at most a quarter of them) gives the shift
    of every gap by every layer at every width. Shifts add up, so all uniform widths and all
    allocations between them are predicted at once: bits per weight against flips, the best of each
    marked. Labels play no part.

    It is an estimate for rounding to nearest, to first order, which loosens as widths get narrow.
    MiniLM on Python's docstrings: 18 % predicted (25 % with random signs) and 27 % measured at W4;
    52 % (47 %) and 48 % at W3. Then measure what looks good: quantdrift run MODEL@W4 --data FOLDER
    """
    from quantdrift.cli.predict import PredictOptions, predict_command  # noqa: PLC0415 -- torch
    from quantdrift.cli.unlabeled import dataset_for  # noqa: PLC0415 -- as above

    dataset, shown = dataset_for(
        data=data, task=task, split=split, queries=queries, documents=documents
    )
    predict_command(
        PredictOptions(
            model=model,
            dataset=dataset,
            shown_data=shown,
            widths=widths,
            group=group,
            runs=runs or (),
            check=check,
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
            help="gptqmodel, hqq, compressed_tensors, torchao, llama_cpp, autoround or "
            "onnxruntime.",
            metavar="NAME",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="File to write; standard output if not given."),
    ] = None,
) -> None:
    """Write the widths of an allocation as a quantization library or a runtime reads them.

    A format that cannot express the allocation says so, with the layers and what to do, and nothing
    is written. Notes on use and differences go to standard error.
    """
    from quantdrift.cli.export import export_command  # noqa: PLC0415 -- each loads its own

    export_command(file, format_, out)
