"""`quantdrift contenders`: predicted against measured flip rate by contender count. No torch."""

from __future__ import annotations

from pathlib import Path

from quantdrift.cli.options import RUNS, argument, option, prints
from quantdrift.cli.output import Grid, Shown, percent
from quantdrift.compare.contenders import ContenderBucket, ContenderGroup, contender_findings, contender_groups
from quantdrift.progress import Terminal
from quantdrift.runs import find_runs


@prints("json", "markdown")
def command(
    *,
    runs: list[Path] = argument(RUNS),
    group_by: str = option(
        "scheme|data|none: Which runs share one fitted scale: those of one scheme, those on one corpus (data), or"
        " all of them (none).",
        default="scheme",
    ),
) -> Shown:
    """Compare the theory's flip rate with the measured one, by number of contenders.

    Contenders are items so close behind the first that quantization could put them first. Only one number, a scale,
    is fitted per group of runs.
    """
    groups = contender_groups(find_runs(runs), group_by=group_by, progress=Terminal())
    findings = contender_findings(groups)
    about = Grid(
        head=["group", "runs", "inputs", "flip rate", "scale / epsilon"], rows=[_about(group) for group in groups]
    )
    by_count = Grid(
        title="Flip rate by number of contenders",
        head=["group", "contenders", "inputs", "predicted", "measured", "95 % interval", "within", "cut short"],
        rows=[[group.name, *_row(bucket)] for group in groups for bucket in group.filled],
        ruled=True,
    )
    data = {"group_by": group_by, "groups": [_json(group) for group in groups], "findings": findings}
    return Shown(data=data, grids=[about, by_count], lines=findings)


def _about(group: ContenderGroup) -> list[str]:
    fit = group.fit
    scale = "-" if fit.scale is None else f"{fit.scale:.3f}"
    return [group.name, f"{len(group.paths)}", f"{fit.n:,}", percent(fit.observed), scale]


def _row(bucket: ContenderBucket) -> list[str]:
    several = f"{bucket.low}" if bucket.high == bucket.low else f"{bucket.low} to {bucket.high}"
    low, high = percent(bucket.measured.low), percent(bucket.measured.high)
    return [
        f"{bucket.low} or more" if bucket.high is None else several,
        f"{bucket.measured.n:,}",
        percent(bucket.predicted),
        percent(bucket.measured.value),
        f"{low.removesuffix(' %')} to {high}",
        {True: "yes", False: "NO", None: "-"}[bucket.within],
        f"{bucket.n_cut_short:,}",
    ]


def _json(group: ContenderGroup) -> dict[str, object]:
    fit = group.fit
    return {
        "name": group.name,
        "runs": list(group.paths),
        "n": fit.n,
        "flip_rate": fit.observed,
        "scale": fit.scale,
        "reason": fit.reason,
        "n_list_full": group.n_list_full,
        "inputs_repeated": group.repeated,
        "buckets": [
            {
                "low": bucket.low,
                "high": bucket.high,
                "n": bucket.measured.n,
                "predicted": bucket.predicted,
                "measured": bucket.measured.to_json(),
                "within": bucket.within,
                "n_cut_short": bucket.n_cut_short,
            }
            for bucket in group.buckets
        ],
    }
