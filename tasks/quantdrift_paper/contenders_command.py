"""The command `contenders`: predicted against measured flip rate by contender count. No torch."""

from __future__ import annotations

from pathlib import Path

from quantdrift.base.progress import Terminal
from quantdrift.base.text import percent, with_interval
from quantdrift.cli.options import RUNS, argument, prints
from quantdrift.runs.folder import find_runs
from quantdrift.show.output import Output
from quantdrift.show.tables import Grid
from quantdrift.statistics.estimates import as_json
from quantdrift_paper.contenders import ContenderBucket, ContenderGroup, contender_findings, contender_groups


@prints("json", "markdown")
def command(*, runs: list[Path] = argument(RUNS)) -> Output:
    """Compare the theory's flip rate with the measured one, by number of contenders.

    Contenders are items so close behind the first that quantization could put them first. Only one number, a scale,
    is fitted for all runs of a scheme.
    """
    groups = contender_groups(find_runs(runs), progress=Terminal())
    findings = contender_findings(groups)
    about = Grid(
        head=["scheme", "runs", "inputs", "flip rate", "scale / epsilon"],
        rows=[
            [
                group.name,
                f"{len(group.paths)}",
                f"{group.fit.n:,}",
                percent(group.fit.observed),
                "-" if group.fit.scale is None else f"{group.fit.scale:.3f}",
            ]
            for group in groups
        ],
    )
    by_count = Grid(
        title="Flip rate by number of contenders",
        head=["scheme", "contenders", "inputs", "predicted", "measured", "within", "cut short"],
        rows=[[group.name, *_row(bucket)] for group in groups for bucket in group.filled],
        ruled=True,
    )
    return Output(
        data={"groups": [_json(group) for group in groups], "findings": findings},
        grids=[about, by_count],
        lines=findings,
    )


def _row(bucket: ContenderBucket) -> list[str]:
    several = f"{bucket.low}" if bucket.high == bucket.low else f"{bucket.low} to {bucket.high}"
    return [
        f"{bucket.low} or more" if bucket.high is None else several,
        f"{bucket.measured.n:,}",
        percent(bucket.predicted),
        with_interval(bucket.measured),
        {True: "yes", False: "NO", None: "-"}[bucket.within],
        f"{bucket.n_cut_short:,}",
    ]


def _json(group: ContenderGroup) -> dict[str, object]:
    fit = group.fit
    about = {"name": group.name, "runs": group.paths, "n": fit.n, "flip_rate": fit.observed, "scale": fit.scale}
    buckets = [{**as_json(bucket), "n": bucket.measured.n, "within": bucket.within} for bucket in group.buckets]
    return {**about, "reason": fit.reason, "buckets": buckets}
