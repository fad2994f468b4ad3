"""`diff` and `show`: what changed in finished runs, without a model and without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app
from quantdrift.cli.commands_runs import AsJson, AsMarkdown
from quantdrift.errors import QuantDriftError

__all__: list[str] = []


@app.command(no_args_is_help=True, short_help="What changed between any two finished runs?")
def diff(  # noqa: PLR0917 -- typer makes options of the parameters
    a: Annotated[
        Path,
        typer.Argument(
            help="The run to compare with, of the reference: a TREC run file; rankings as JSON, "
            "query to document to score, as beir's search returns them; mteb's "
            "TASK_predictions.json, or a folder of them; lm-eval's samples_TASK_DATE.jsonl, or the "
            "folder it writes; a run folder of quantdrift. Files may be gzipped.",
            metavar="A",
        ),
    ],
    b: Annotated[Path, typer.Argument(help="The run asked about, of the candidate; likewise.", metavar="B")],
    qrels: Annotated[
        Path | None,
        typer.Option(
            help="Relevance labels: BEIR's qrels/SPLIT.tsv, TREC's four columns, or JSON, query to "
            "document to grade. Run folders and samples of lm-eval hold their own.",
            metavar="FILE",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--metric",
            help="Which, e.g. flip@1, gold_lost@3, set_kept@5; may be repeated. All of them are "
            "in: quantdrift list metrics.",
            metavar="NAME",
        ),
    ] = None,
    changed: Annotated[
        int, typer.Option(min=0, help="How many of the changed inputs to list, the worst first.", metavar="N")
    ] = 5,
    common: Annotated[
        bool, typer.Option("--common", help="Compare the inputs that both have; leave out others.")
    ] = False,
    complete: Annotated[
        bool,
        typer.Option(
            "--complete",
            help="Say that the lists are not truncated: they hold every item that was scored, as "
            "after reranking a shortlist. Then epsilon is exact.",
        ),
    ] = False,
    ignore_identical_ids: Annotated[
        bool, typer.Option("--ignore-identical-ids", help="Leave out items that have the name of their query.")
    ] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Which task, or SUBSET/SPLIT of mteb's predictions; may be repeated. All that both have if not given.",
            metavar="NAME",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Ranks kept of either list, at most.")] = 200,
    arms: Annotated[
        str,
        typer.Option(
            help="Of run folders of quantdrift: which arm of A, and which of B if it is another, "
            "e.g. reference,candidate.",
            metavar="ARM[,ARM]",
        ),
    ] = "candidate",
    format: Annotated[
        str | None,
        typer.Option(
            help="If the content does not tell: trec, json, mteb, lm-eval or run, of both or, "
            "with a comma, of A and of B.",
            metavar="NAME[,NAME]",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write a run folder, which quantdrift metrics, breakdown and compare read.",
            metavar="FOLDER",
        ),
    ] = None,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """What changed between two finished runs, of whatever wrote them: A is the reference.

    For models that cannot be loaded here: APIs, vLLM, GGUF servers. Run your harness twice and give
    both outputs. Runs on different inputs, items, prompts or settings are refused, with a list of
    the differences. For truncated rankings, values that cannot be computed exactly are left out or
    marked as bounds. The exit code is 0 whatever changed.
    """
    from quantdrift.cli.diff import DiffOptions, diff_command  # noqa: PLC0415 -- numpy, pyarrow

    diff_command(
        a,
        b,
        DiffOptions(
            qrels=qrels,
            metrics=tuple(metric or ()),
            changed=changed,
            common=common,
            complete=complete,
            ignore_identical=ignore_identical_ids,
            parts=tuple(part or ()),
            k=k,
            arms=arms,
            format=format,
            out=out,
        ),
        json_output=json_output,
        markdown=markdown,
    )


@app.command(no_args_is_help=True, short_help="The changed inputs of a run, with their texts.")
def show(  # noqa: PLR0917 -- typer makes options of the parameters
    run: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="The data that the run was made of, for the texts, if they have moved or another "
            "program made the run; for a run of lm-eval, its samples_TASK_DATE.jsonl.",
            metavar="FOLDER",
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="A built-in task, in place of --data.", metavar="NAME")] = None,
    kind: Annotated[
        str, typer.Option(help="harmful (a relevant first answer lost), neutral, beneficial, or all.", metavar="KIND")
    ] = "all",
    n: Annotated[
        int | None,
        typer.Option("-n", min=0, help="How many, the worst first; 10 if not given, in CSV all.", metavar="N"),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    k: Annotated[int, typer.Option("-k", "--k", min=1, help="Look at the first K answers, as a set.")] = 1,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with whole texts, for a spreadsheet.")] = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the CSV to this file.", metavar="FILE")] = None,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """The inputs whose first answer changed, with their texts: harmful changes first.

    Of every input: the reference's first answer and the candidate's, their scores, whether they are
    relevant, and the gap between the reference's first two, alone and in units of 2 epsilon (the
    separation ratio). Among changes of one kind the largest gap is first.

    A run folder holds ids only. Texts are read from where the data were when the run was made, if
    they are still the same.
    """
    from quantdrift.cli.show import ShowOptions, show_command  # noqa: PLC0415 -- numpy, pyarrow

    chosen = {"json": json_output, "markdown": markdown, "csv": as_csv or out is not None}
    formats = [name for name, is_asked in chosen.items() if is_asked]
    if len(formats) > 1:
        raise QuantDriftError(f"expected one format; got {' and '.join(formats)}")
    show_command(
        run,
        ShowOptions(
            data=data,
            task=task,
            kind=kind,
            k=k,
            n=n,
            everything=everything,
            format=formats[0] if formats else "table",
            out=out,
        ),
    )
