"""The commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift import __version__

__all__ = ["app"]

app = typer.Typer(
    name="quantdrift",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it pipes, greps and fits narrow terminals
    context_settings={"help_option_names": ["-h", "--help"]},
    help="See which answers quantization changed, and which can still be trusted.\n\n"
    "Inside mteb:  mteb run --model quantdrift:minilm@W4-rtn -t PythonDocsRetrieval\n\n"
    "By itself:  quantdrift run minilm@W4-rtn --task PythonDocsRetrieval",
)

SPEC_HELP = (
    "What to compare, MODEL@SCHEME: minilm@W4-rtn, BAAI/bge-small-en-v1.5@W3-g64, "
    "./my-model@W4-channel+query"
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quantdrift {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command(no_args_is_help=True)
def run(  # noqa: PLR0917 -- typer makes options of the parameters
    spec: Annotated[str, typer.Argument(help=SPEC_HELP, metavar="SPEC")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder in BEIR layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv.",
            metavar="FOLDER",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="A task that comes along instead: quantdrift list tasks.", metavar="NAME"
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Which qrels/SPLIT.tsv of the folder.", metavar="NAME")
    ] = "test",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder to write; quantdrift-runs/SPEC_on_DATA if not given.",
            metavar="FOLDER",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Ranks kept of either arm.")] = 200,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs per forward pass.")] = 32,
    noise_floor: Annotated[
        bool, typer.Option(help="Run the reference a second time, to know what noise alone flips.")
    ] = True,
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu, cuda, cuda:1 or mps; the best there is if not given.", metavar="NAME"
        ),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Revision of a hub model.", metavar="NAME")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order in which the noise floor is run.")] = 0,
    cache: Annotated[
        bool, typer.Option(help="Keep embeddings, so that the next scheme needs half the work.")
    ] = True,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print run.json instead of a table.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress bars.")] = False,
) -> None:
    """Compare a model with its quantized self on a corpus, and write a run folder.

    The folder holds evidence.parquet (one row per query: both rankings, epsilon, flip) and run.json
    (spec, versions, fingerprints, metrics with intervals). Compute more from it, without the model,
    with: quantdrift metrics RUN
    """
    from quantdrift.cli.run import RunOptions, run_command  # noqa: PLC0415 -- torch

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
        )
    )


@app.command(no_args_is_help=True)
def metrics(
    run: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "-m", "--metric", help="Which, e.g. gold_lost@3; may be repeated.", metavar="NAME"
        ),
    ] = None,
    per_input: Annotated[
        bool, typer.Option(help="One row per input instead of the mean or median.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compute metrics again from a run folder, without the model (and without torch)."""
    from quantdrift.cli.metrics import metrics_command  # noqa: PLC0415 -- scipy

    metrics_command(run, metric or [], per_input=per_input, json_output=json_output)


@app.command("list", no_args_is_help=True)
def list_(
    what: Annotated[
        str, typer.Argument(help="metrics, models, quantizers or tasks.", metavar="WHAT")
    ],
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the metrics, model short names, quantizers or tasks there are."""
    from quantdrift.cli.listing import list_command  # noqa: PLC0415 -- each command loads its own

    list_command(what, json_output=json_output)


@app.command()
def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what is installed, whether the start-up hook is active, and what is missing."""
    from quantdrift.cli.doctor import doctor as report  # noqa: PLC0415 -- each command loads its own

    raise typer.Exit(report(json_output))


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)
def mteb(context: typer.Context) -> None:
    """Run mteb's own command with quantdrift in it; needs no start-up hook.

    quantdrift mteb run --model quantdrift:minilm@W4-rtn -t PythonDocsRetrieval
    """
    from quantdrift.cli.harness import harness_command  # noqa: PLC0415 -- each command loads its own

    harness_command("mteb", context.args)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where mteb puts its results.")] = Path("demo-results"),
    spec: Annotated[str, typer.Option(help=SPEC_HELP, metavar="SPEC")] = "minilm@W4-rtn",
) -> None:
    """Run the stock mteb command on an embedded model and corpus, and explain what it prints."""
    from quantdrift.cli.demo import demo_command  # noqa: PLC0415 -- each command loads its own

    demo_command(spec, out)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete all kept embeddings.")] = False,
) -> None:
    """Show where embeddings are kept and how much room they take."""
    from quantdrift.cli.cache import cache_command  # noqa: PLC0415 -- each command loads its own

    cache_command(clear=clear)
