"""Commands that run a model: `run`, `corpus-size`, `quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app
from quantdrift.cli.options import (
    PAIR_HELP,
    AnyData,
    AnySplit,
    BatchSize,
    Cache,
    Concurrency,
    Data,
    Device,
    DocumentPrefix,
    NoiseFloor,
    NoiseSeed,
    QueryPrefix,
    Quiet,
    Ranks,
    RequestsPerMinute,
    Revision,
    ShortlistFrom,
    ShortlistTop,
    SpecText,
    Split,
    Task,
)

__all__ = ["BatchSize", "Cache", "Data", "Device", "Quiet", "Revision", "Split", "Task"]


@app.command(no_args_is_help=True, short_help="Measure MODEL@SCHEME on a corpus, or on labelled inputs.")
def run(  # noqa: PLR0917 -- typer makes options of the parameters
    spec: Annotated[str, typer.Argument(help=PAIR_HELP, metavar="SPEC")],
    data: AnyData = None,
    task: Task = None,
    split: AnySplit = "test",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder to write; an earlier run there is replaced. By default quantdrift-runs/SPEC_on_DATA.",
            metavar="FOLDER",
        ),
    ] = None,
    shortlist: ShortlistFrom = None,
    top: ShortlistTop = None,
    k: Ranks = 200,
    batch_size: BatchSize = 32,
    noise_floor: NoiseFloor = True,
    device: Device = None,
    revision: Revision = None,
    seed: NoiseSeed = 0,
    concurrency: Concurrency = None,
    requests_per_minute: RequestsPerMinute = None,
    query_prefix: QueryPrefix = None,
    document_prefix: DocumentPrefix = None,
    cache: Cache = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print run.json instead of a table.")] = False,
    quiet: Quiet = False,
) -> None:
    """Compare a model with its quantized self on a corpus, and write a run folder.

    On classification data, a classifier's own logits are compared. An embedding model gets a linear
    classifier first, fitted on its full-precision embeddings of the training part.

    To compare a model with a checkpoint that is already quantized, write "MODEL vs CHECKPOINT": a
    folder, a hub id or a GGUF file. Either side can be a model on a server with OpenAI's
    embeddings API: openai:URL#MODEL, with the key in QUANTDRIFT_OPENAI_KEY.

    A cross-encoder needs search results to rerank: --shortlist RUN. Both versions of the model
    score the same documents.

    The run folder holds evidence.parquet (one row per query or input: both rankings, and how far
    scores moved) and run.json (spec, versions, metrics with intervals). To see the changed answers:
    quantdrift show RUN. More metrics, without the model: quantdrift metrics RUN
    """
    from quantdrift.cli.run import RunOptions, run_command  # noqa: PLC0415 -- torch
    from quantdrift.cli.servers import ServerOptions  # noqa: PLC0415 -- torch

    run_command(
        RunOptions(
            spec=spec,
            data=data,
            task=task,
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
            quiet=quiet,
            shortlist=shortlist,
            top=top,
            servers=ServerOptions(
                concurrency=concurrency,
                requests_per_minute=requests_per_minute,
                query_prefix=query_prefix,
                document_prefix=document_prefix,
            ),
        )
    )


@app.command(name="corpus-size", no_args_is_help=True, short_help="Do more documents change more answers?")
def corpus_size(  # noqa: PLR0917 -- typer makes options of the parameters
    spec: SpecText,
    data: Data = None,
    task: Task = None,
    split: Split = "test",
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Corpus sizes in rising order, such as 250,1000,all; by default an eighth, a "
            "quarter, a half and all of the corpus.",
            metavar="N,N,...",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the run folders, one per size; by default quantdrift-runs/SPEC_on_DATA_by_corpus_size.",
            metavar="FOLDER",
        ),
    ] = None,
    k: Ranks = 200,
    batch_size: BatchSize = 32,
    noise_floor: Annotated[bool, typer.Option(help="Run the reference a second time at the largest size.")] = False,
    device: Device = None,
    revision: Revision = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed for drawing the parts of the corpus, and for the noise floor.")
    ] = 0,
    cache: Cache = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Compare a model with its quantized self on growing parts of one corpus, same queries.

    Every part contains the smaller ones, and embeddings are computed once. One run folder is
    written per size, and an exact McNemar test compares the smallest with the largest.
    """
    from quantdrift.cli.corpus_size import corpus_size_command  # noqa: PLC0415 -- torch
    from quantdrift.cli.run import RunOptions  # noqa: PLC0415 -- torch

    corpus_size_command(
        RunOptions(
            spec=spec,
            data=data,
            task=task,
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
            quiet=quiet,
        ),
        sizes,
    )


@app.command(no_args_is_help=True, short_help="Write the quantized model to a folder.")
def quantize(  # noqa: PLR0917 -- typer makes options of the parameters
    spec: SpecText,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder to write.", metavar="FOLDER")],
    model_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="safetensors, as sentence-transformers loads it; or onnx, with packed weights that onnxruntime runs.",
            metavar="NAME",
        ),
    ] = "safetensors",
    data: Data = None,
    task: Task = None,
    split: Split = "test",
    batch_size: BatchSize = 32,
    device: Device = None,
    revision: Revision = None,
    cache: Annotated[bool, typer.Option(help="Keep quantized layers on disk and reuse them in later runs.")] = True,
    quiet: Quiet = False,
) -> None:
    """Quantize a model and save the candidate, so that what is deployed is what was measured.

    Methods that calibrate (gptq, awq, adaround) need documents: --data, --task, or a file of texts
    in the scheme (+calib=texts.txt). To measure what was written:
    quantdrift run "minilm vs FOLDER" --data ...
    """
    from quantdrift.cli.quantize import QuantizeOptions, quantize_command  # noqa: PLC0415 -- torch

    quantize_command(
        QuantizeOptions(
            spec=spec,
            out=out,
            model_format=model_format,
            data=data,
            task=task,
            split=split,
            batch_size=batch_size,
            device=device,
            revision=revision,
            cache=cache,
            quiet=quiet,
        )
    )
