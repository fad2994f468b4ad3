"""`gate`: a run against rules and a committed baseline, for CI."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantdrift.cli.app import app
from quantdrift.cli.commands_runs import AsJson
from quantdrift.cli.options import (
    AnyData,
    AnySplit,
    BatchSize,
    Cache,
    Device,
    NoiseFloor,
    NoiseSeed,
    Quiet,
    Ranks,
    Revision,
    ShortlistFrom,
    ShortlistTop,
    Task,
    takes,
)

if TYPE_CHECKING:
    from quantdrift.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """What is asked for; None and empty where it is left to the configuration."""

    context: typer.Context
    target: Annotated[
        str | None,
        typer.Argument(
            help="What to judge: a spec, such as minilm@W4-rtn, which is measured on --data or "
            "--task; a run folder; or, with CANDIDATE, the finished run of the reference (all "
            "that quantdrift diff reads). What pyproject.toml says if not given.",
            metavar="TARGET",
        ),
    ] = None
    candidate: Annotated[
        Path | None, typer.Argument(help="The finished run of the candidate.", metavar="CANDIDATE")
    ] = None
    data: AnyData = None
    task: Task = None
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="The committed file with the outcome of every input, drift-baseline.json if not "
            "given; --update writes it.",
            metavar="FILE",
        ),
    ] = None
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "-r",
            "--rule",
            help="What is asked, such as 'flip@1 no worse by 0.03' (than the baseline), 'flip@1 "
            "<= 0.25', 'flip@1 [german] <= 0.3'; may be repeated, and replaces the rules of "
            "pyproject.toml.",
            metavar="RULE",
        ),
    ] = None
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice",
            help="Inputs that a rule can look at, by patterns on their ids: german=de-*; may be repeated.",
            metavar="NAME=PATTERN",
        ),
    ] = None
    alpha: Annotated[
        float | None,
        typer.Option(help="Accepted chance of a false alarm, over all rules together; 0.05 by default.", metavar="P"),
    ] = None
    update: Annotated[bool, typer.Option("--update", help="Write the baseline from this run; commit it.")] = False
    accept_underpowered: Annotated[
        bool, typer.Option("--accept-underpowered", help="End in success where there are too few inputs to tell.")
    ] = False
    report: Annotated[
        list[Path] | None,
        typer.Option(
            help="Write the result too: .md (Markdown), .xml (JUnit) or .json; may be repeated.", metavar="FILE"
        ),
    ] = None
    worst: Annotated[int, typer.Option(min=0, help="How many of the changed inputs to list.", metavar="N")] = 10
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with [tool.quantdrift.gate]; the nearest pyproject.toml, here or above, if not given.",
            metavar="FILE",
        ),
    ] = None
    qrels: Annotated[
        Path | None, typer.Option(help="Two finished runs: relevance labels, as for diff.", metavar="FILE")
    ] = None
    part: Annotated[
        list[str] | None, typer.Option(help="Two finished runs: which task or subset, as for diff.", metavar="NAME")
    ] = None
    common: Annotated[bool, typer.Option("--common", help="Two finished runs: leave out inputs of one only.")] = False
    complete: Annotated[bool, typer.Option("--complete", help="Two finished runs: lists hold every scored item.")] = (
        False
    )
    out: Annotated[
        Path | None,
        typer.Option(help="A spec: run folder to write; quantdrift-runs/SPEC_on_DATA if not given.", metavar="FOLDER"),
    ] = None
    split: AnySplit = "test"
    shortlist: ShortlistFrom = None
    top: ShortlistTop = None
    k: Ranks = 200
    batch_size: BatchSize = 32
    noise_floor: NoiseFloor = True
    device: Device = None
    revision: Revision = None
    seed: NoiseSeed = 0
    cache: Cache = True
    json_output: AsJson = False
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False
    quiet: Quiet = False

    def given(self, name: str) -> bool:
        """Whether an option was given, also where it was given as it is by itself."""
        source = self.context.get_parameter_source(name)
        return source is not None and source.name != "DEFAULT"


@app.command(no_args_is_help=False, short_help="Pass or fail, against rules and a baseline.")
@takes(GateOptions)
def gate(options: GateOptions) -> None:
    """Judge a quantized model in CI: against limits, and input by input against a baseline.

    Once: quantdrift gate minilm@W4-rtn --data FOLDER --update

    Commit drift-baseline.json. In CI the same line without --update.

    The exit code is 0 (pass), 1 (fail), 2 (error), 3 (incomparable: other data, model or settings
    than the baseline's) or 4 (underpowered: too few inputs to tell).

    Without rules it asks that flip@1 and ndcg@10 be no worse than the baseline by 0.03, and
    gold_lost@10 by 0.05 (of classes flip@1 and accuracy by 0.03). A rule fails where the run is
    shown to be worse, by an exact or a randomization test on the inputs that differ, with Holm's
    adjustment over the rules; and it passes where the run is shown to be no worse by the margin.
    Rules, baseline and target can stand in pyproject.toml, under [tool.quantdrift.gate].

    A finished run is judged without a model and without torch. In GitHub Actions the summary page
    gets the result too.
    """
    from quantdrift.cli.gate import gate_command  # noqa: PLC0415 -- numpy, pyarrow
    from quantdrift.extras import extras_named  # noqa: PLC0415 -- as above

    def measure(spec: str, data: Path | None, task: str | None) -> Run:
        with extras_named(needed_for="quantdrift gate"):
            from quantdrift.cli.run import RunOptions, measured  # noqa: PLC0415 -- torch

            return measured(
                RunOptions(
                    spec=spec,
                    data=data,
                    task=task,
                    split=options.split,
                    out=options.out,
                    k=options.k,
                    batch_size=options.batch_size,
                    noise_floor=options.noise_floor,
                    device=options.device,
                    revision=options.revision,
                    seed=options.seed,
                    cache=options.cache,
                    json_output=False,
                    quiet=options.quiet,
                    shortlist=options.shortlist,
                    top=options.top,
                )
            )

    gate_command(options, measure)
