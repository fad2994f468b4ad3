"""`quantdrift diff`: two finished runs of anything, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rich.text import Text

from quantdrift.cli.diff_sentences import sentences
from quantdrift.cli.diff_tables import (
    changed_table,
    chosen_metrics,
    own_metrics_table,
    parts_table,
    print_markdown_diff,
)
from quantdrift.cli.tables import console, metric_table, one_format
from quantdrift.cli.values import names
from quantdrift.display import clean, one_line, print_json
from quantdrift.errors import QuantDriftError
from quantdrift.finished.contents import ARMS, FORMATS, Arm, FinishedRun
from quantdrift.finished.diff import (
    Diff,
    PartDiff,
    change_of,
    changed_inputs,
    diff_runs,
    estimate_of,
    pooled_estimate,
    write_diff,
)
from quantdrift.finished.readers import read_finished, read_qrels
from quantdrift.metrics import Metric, parse_metric
from quantdrift.records import check_writable

_TWO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """What is asked for.

    Attributes:
        qrels: file of relevance labels.
        metrics: metric strings; those that fit if empty.
        changed: how many changed inputs to list.
        common: whether inputs that only one run has are left out.
        complete: whether lists hold every item that was scored.
        ignore_identical: whether items of the name of their query are left out.
        parts: names of parts; all if empty.
        k: ranks kept.
        arms: which arm of run folders, one word or two with a comma.
        format: of both runs, or two with a comma; None to look.
        out: where a run folder goes.
    """

    qrels: Path | None
    metrics: Sequence[str]
    changed: int
    common: bool
    complete: bool
    ignore_identical: bool
    parts: Sequence[str]
    k: int
    arms: str
    format: str | None
    out: Path | None


def diff_command(a: Path, b: Path, asked: DiffOptions, *, json_output: bool, markdown: bool) -> None:
    """Compare two finished runs and print what changed.

    Args:
        a: of the reference.
        b: of the candidate.
        asked: the options.
        json_output: print one JSON object.
        markdown: print Markdown tables.

    Raises:
        QuantDriftError: a run cannot be read, or the two cannot be compared.
    """
    one_format(json_output=json_output, markdown=markdown)
    metrics = [parse_metric(name) for name in dict.fromkeys(asked.metrics)]
    arms = _two(asked.arms, "--arms", ARMS)
    formats = (None, None) if asked.format is None else _two(asked.format, "--format", FORMATS)
    if asked.out is not None:
        check_writable(asked.out / "part", what="the run")
    labels, told = (None, ()) if asked.qrels is None else read_qrels(asked.qrels)
    runs = [
        read_finished(path, format=format, arm=cast("Arm", arm))
        for path, format, arm in zip((a, b), formats, arms, strict=True)
    ]
    found = diff_runs(
        runs[0],
        runs[1],
        qrels=labels,
        common=asked.common,
        complete=asked.complete,
        ignore_identical=asked.ignore_identical,
        only=asked.parts,
        depth=asked.k,
    )
    lines = [*(f"{note[0].upper()}{note[1:]}." for note in told), *sentences(found)]
    chosen = metrics or chosen_metrics(found)
    folders = [] if asked.out is None else [run.path for run in write_diff(found, asked.out)]
    if json_output:
        content = _json(found, chosen, asked.changed, lines)
        print_json({**content, "folders": [str(folder) for folder in folders]})
        return
    if markdown:
        print_markdown_diff(found, chosen, asked.changed, lines)
        return
    _print(found, chosen, asked.changed, lines)
    for folder in folders:
        text = f"written: {folder}"
        console().print(text, soft_wrap=True)


def _two(text: str, option: str, known: Sequence[str] | dict[str, str]) -> tuple[str, str]:
    found = names(text)
    if not 1 <= len(found) <= _TWO or any(name not in known for name in found):
        raise QuantDriftError(f"{option} {text}: expected one of {', '.join(known)}, or two of them with a comma")
    return found[0], found[-1]


def _print(found: Diff, chosen: Sequence[Metric], n_changed: int, lines: Sequence[str]) -> None:
    out = console(wide=True)
    for letter, run in (("A", found.a), ("B", found.b)):
        name = "" if run.name in {str(run.path), run.path.name} else f"{clean(run.name)}  "
        where = (one_line(_where(run)), "dim")
        out.print(Text.assemble((letter, "bold"), f"  {name}", where), soft_wrap=True)
    if len(found.parts) == 1:
        part = found.parts[0]
        if part.evidence is not None:
            estimates = {str(metric): estimate_of(metric, part) for metric in chosen}
            out.print(metric_table(clean(part.name), estimates))
    else:
        out.print(parts_table(found, chosen))
    if any(part.values for part in found.parts):
        out.print(own_metrics_table(found))
    if n_changed and (table := changed_table(found, n_changed)) is not None:
        out.print(table)
    for line in lines:
        out.print(line)


def _where(run: FinishedRun) -> str:
    return f"{run.path} ({run.format})"


def _json(found: Diff, chosen: Sequence[Metric], n_changed: int, lines: Sequence[str]) -> dict[str, Any]:
    pooled = {}
    if len(found.parts) > 1:
        pooled = {"pooled": {str(metric): pooled_estimate(metric, found.parts).to_json() for metric in chosen}}
    return {
        **{
            letter: {"path": str(run.path), "format": run.format, "name": run.name, "digest": run.digest}
            for letter, run in (("a", found.a), ("b", found.b))
        },
        "parts": [_part_json(part, chosen, n_changed) for part in found.parts],
        **pooled,
        "notes": list(lines),
    }


def _part_json(part: PartDiff, chosen: Sequence[Metric], n_changed: int) -> dict[str, Any]:
    evidence = part.evidence
    own = {}
    for name, values in part.values.items():
        before, after, change = change_of(values)
        own[name] = {"a": before, "b": after, "change": change.to_json()}
    listed = [] if evidence is None else changed_inputs(evidence)
    return {
        "name": part.name,
        "n_inputs": _n_inputs(part),
        "left_out": {"a": part.left_out[0], "b": part.left_out[1]},
        "deltas": None if evidence is None else evidence.deltas,
        "ranks": None
        if part.lists is None or evidence is None
        else {"a": list(part.lists.a), "b": list(part.lists.b), "compared": evidence.depth},
        "metrics": {str(metric): estimate_of(metric, part).to_json() for metric in chosen},
        "harness_metrics": own,
        "judged_by": part.judged_by,
        "n_changed": len(listed),
        "changed": [each.to_json() for each in listed[:n_changed]],
    }


def _n_inputs(part: PartDiff) -> int:
    if part.evidence is not None:
        return part.evidence.n_inputs
    return max((len(before) for before, _ in part.values.values()), default=0)
