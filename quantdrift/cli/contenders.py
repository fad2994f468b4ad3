"""`quantdrift contenders`: predicted against measured flip rate by contender count. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from rich.table import Table

from quantdrift.cli.tables import console, one_format, print_markdown
from quantdrift.compare.contenders import ContenderBucket, ContenderGroup, contender_findings, contender_groups
from quantdrift.display import clean, print_json, say
from quantdrift.progress import Terminal
from quantdrift.runs import find_runs

HEAD = ("group", "contenders", "inputs", "predicted", "measured", "95 % interval", "within", "cut short")
_WORDS = {True: "yes", False: "NO", None: "-"}


def contenders_command(paths: Sequence[Path], *, group_by: str, json_output: bool, markdown: bool) -> None:
    """Print one row per contender count and group.

    Args:
        paths: run folders, or folders that hold some.
        group_by: "scheme", "data" or "none": which runs share a scale.
        json_output: print one JSON object.
        markdown: print a Markdown table.

    Raises:
        QuantDriftError: no such run or grouping.
    """
    one_format(json_output=json_output, markdown=markdown)
    groups = contender_groups(find_runs(paths), group_by=group_by, progress=Terminal())
    findings = contender_findings(groups)
    if json_output:
        print_json(_json(groups, group_by, findings))
        return
    if markdown:
        rows = [(group.name, *row) for group in groups for row in _rows(group)]
        heads = [(group.name, *_about(group)) for group in groups]
        print_markdown(("group", "runs", "inputs", "flip rate", "scale / epsilon"), heads)
        say()
        print_markdown(HEAD, rows, findings)
        return
    table = Table(title="Flip rate by number of contenders", title_justify="left")
    for position, name in enumerate(HEAD):
        table.add_column(name, justify="right" if position else "left", no_wrap=position > 0, overflow="fold")
    for group in groups:
        runs, inputs, rate, scale = _about(group)
        about = [
            clean(group.name),
            f"{runs} run" + ("" if runs == "1" else "s") + f", {inputs} inputs",
            f"flip rate {rate}",
            f"scale {scale} epsilon" if group.fit.scale is not None else "no scale",
        ]
        for left, row in zip_longest(about, _rows(group)):
            table.add_row(left or "", *(row or ("",) * (len(HEAD) - 1)))
        table.add_section()
    out = console(wide=True)
    out.print(table)
    for line in findings:
        out.print(line)


def _about(group: ContenderGroup) -> tuple[str, str, str, str]:
    fit = group.fit
    return (
        f"{len(group.paths)}",
        f"{fit.n:,}",
        _percent(fit.observed),
        "-" if fit.scale is None else f"{fit.scale:.3f}",
    )


def _rows(group: ContenderGroup) -> list[tuple[str, ...]]:
    return [
        (
            _range(bucket),
            f"{bucket.measured.n:,}",
            _percent(bucket.predicted),
            _percent(bucket.measured.value),
            f"{_percent(bucket.measured.low)} to {_percent(bucket.measured.high)}".replace(" % to", " to"),
            _WORDS[bucket.within],
            f"{bucket.n_cut_short:,}",
        )
        for bucket in group.filled
    ]


def _range(bucket: ContenderBucket) -> str:
    if bucket.high is None:
        return f"{bucket.low} or more"
    return f"{bucket.low}" if bucket.high == bucket.low else f"{bucket.low} to {bucket.high}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _json(groups: Sequence[ContenderGroup], group_by: str, findings: list[str]) -> dict[str, object]:
    return {
        "group_by": group_by,
        "groups": [
            {
                "name": group.name,
                "runs": list(group.paths),
                "n": group.fit.n,
                "flip_rate": group.fit.observed,
                "scale": group.fit.scale,
                "reason": group.fit.reason,
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
            for group in groups
        ],
        "findings": findings,
    }
