"""Commands on finished runs, without a model and without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app

__all__: list[str] = []


Runs = Annotated[
    list[Path], typer.Argument(help="Run folders, or folders that hold some at any depth.", metavar="RUN...")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")]


@app.command(no_args_is_help=True, short_help="Metrics of finished runs, with intervals.")
def metrics(
    runs: Runs,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--metric",
            help="Which, e.g. gold_lost@3, change.ndcg@10, flip@1:separation=0..0.05; may be "
            "repeated. All of them are in: quantdrift list metrics.",
            metavar="NAME",
        ),
    ] = None,
    per_input: Annotated[bool, typer.Option(help="One row per input instead of the mean or median.")] = False,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """Compute metrics again from run folders, without the model (and without torch).

    One run: every metric with its interval and meaning. Several: one row per run, with flip@1,
    separation, relative.ndcg@10 and gold_lost@1 if -m asks for no others; change.accuracy and
    coverage@0.10 in place of the last two if all runs are on classification data.
    """
    from quantdrift.cli.metrics import metrics_command  # noqa: PLC0415 -- scipy

    metrics_command(runs, metric or [], per_input=per_input, json_output=json_output, markdown=markdown)


@app.command(no_args_is_help=True, short_help="Which inputs change, which are harmed?")
def breakdown(  # noqa: PLR0917 -- typer makes options of the parameters
    runs: Runs,
    by: Annotated[
        str, typer.Option(help="separation, contenders, or any other metric.", metavar="NAME")
    ] = "separation",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--metric",
            help="What to compute in each bucket; may be repeated. flip@1, harm and benefit if not given.",
            metavar="NAME",
        ),
    ] = None,
    edges: Annotated[
        str | None,
        typer.Option(
            help="Where buckets begin, e.g. 0,0.1,1; the last has no upper end. The paper's for "
            "separation and contenders, quartiles for others, if not given.",
            metavar="A,B,...",
        ),
    ] = None,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """Sort inputs into buckets, and compute metrics in each: which inputs change, which are harmed.

    Several runs are pooled: every input of every run counts once.
    """
    from quantdrift.cli.breakdown import breakdown_command  # noqa: PLC0415 -- scipy

    breakdown_command(runs, by=by, names=metric or [], edges=edges, json_output=json_output, markdown=markdown)


@app.command(no_args_is_help=True, short_help="Does the separation predict the change rate?")
def law(  # noqa: PLR0917 -- typer makes options of the parameters
    runs: Runs,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(
            help="Judge the line on the runs whose label matches, fit it on the others; a part of "
            "the label, or wildcards for all of it, e.g. '*@W4-*'; may be repeated.",
            metavar="PATTERN",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Without --hold-out, what is left out in turn: each corpus (data, the default) or "
            "each number of bits (scheme).",
            metavar="data|scheme",
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Draw the runs into this file: .svg, .png or .pdf (needs quantdrift[figures]).", metavar="FILE"
        ),
    ] = None,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """Over many runs: does a larger separation go with fewer changed answers, and by how much?

    Shows rank correlations (also of other predictors), fits a line, and tests the line on runs that
    it was not fitted on. Needs at least three runs.
    """
    from quantdrift.cli.law import law_command  # noqa: PLC0415 -- scipy

    law_command(runs, hold_out=hold_out or [], by=by, figure=figure, json_output=json_output, markdown=markdown)


@app.command(no_args_is_help=True, short_help="Does the theory predict the flip rate?")
def contenders(
    runs: Runs,
    group_by: Annotated[
        str,
        typer.Option(
            help="Which runs share one fitted scale: those of one scheme, those on one corpus "
            "(data), or all of them (none).",
            metavar="scheme|data|none",
        ),
    ] = "scheme",
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """Compare the theory's flip rate with the measured one, by number of contenders.

    Contenders are items so close behind the first that quantization could put them first. Only one
    number, a scale, is fitted per group of runs.
    """
    from quantdrift.cli.contenders import contenders_command  # noqa: PLC0415 -- scipy

    contenders_command(runs, group_by=group_by, json_output=json_output, markdown=markdown)


@app.command(no_args_is_help=True, short_help="Is run B worse than run A, or no worse?")
def compare(  # noqa: PLR0917 -- typer makes options of the parameters
    a: Annotated[Path, typer.Argument(help="The run to compare with, e.g. of MODEL@W4-g64.", metavar="A")],
    b: Annotated[
        Path, typer.Argument(help="The run asked about, e.g. of MODEL@W4-channel, on the same data.", metavar="B")
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--metric",
            help="Which, e.g. gold_lost@3, ndcg@10; may be repeated. If not given: flip@1, "
            "gold_lost, ndcg@10, recall, mrr@10 and separation, where defined; on classification "
            "data flip@1, gold_lost@1, accuracy and separation.",
            metavar="NAME",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            help="By how much B may be worse, in the metric's own unit: 0.02 is 2 percentage "
            "points of a rate, or 0.02 of nDCG. With it the verdict is whether B is shown to be no "
            "worse by that much; without it, only whether a difference is shown.",
            metavar="X",
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Accepted chance of a wrong verdict, over all metrics together.", metavar="P")
    ] = 0.05,
    seed: Annotated[int, typer.Option(help="Random seed for resampling and permutations.")] = 0,
    json_output: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """Two candidates of one reference on the same inputs: is B worse than A, or no worse?

    Input by input, with exact or resampling tests, adjusted for the number of metrics. "No
    difference shown" is not "no difference": give --margin to ask whether B is no worse. The exit
    code is 0 whatever the verdict.
    """
    from quantdrift.cli.compare import compare_command  # noqa: PLC0415 -- scipy

    compare_command(
        a, b, metric or [], margin=margin, alpha=alpha, seed=seed, json_output=json_output, markdown=markdown
    )
