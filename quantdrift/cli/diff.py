"""`quantdrift diff`: compare two finished runs of any program, without torch."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import check_writable
from quantdrift.base.text import percent
from quantdrift.cli.options import COMMON, COMPLETE, METRIC, PART, QRELS, argument, flag, option, prints
from quantdrift.data.retrieval import read_qrels
from quantdrift.evidence import perturbation
from quantdrift.finished import diff as compared
from quantdrift.finished.contents import ARMS, Arm
from quantdrift.finished.formats import read_finished
from quantdrift.finished.texts import Texts
from quantdrift.metrics import Metric, parse_metric
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.verdict import JUDGED_BY, judged
from quantdrift.show.changes import changed_columns
from quantdrift.show.output import Output
from quantdrift.show.tables import Column, Grid, metric_columns, metric_grid, records, table
from quantdrift.statistics.estimates import Estimate, as_json

_OF_ANSWERS = ["flip@1", "separation", "at_risk", "reference.accuracy", "accuracy", "change.accuracy", "gold_lost@1"]
_OF_ANSWERS += ["harm", "benefit"]
"""Default metrics for choices, labels and texts, where only the first answer counts."""
_OF_RANKED = ["flip@1", "separation", "at_risk", "accepted@0.10", "ndcg@10", "reference.ndcg@10", "change.ndcg@10"]
_OF_RANKED += ["gold_lost@1", "gold_lost@5", "gold_lost@10", "harm", "benefit", "rbo@10"]
_OF_PARTS = ("flip@1", "separation", "harm", "benefit", "change.ndcg@10", "gold_lost@1")
_OF_ANSWER_PARTS = ("flip@1", "separation", "harm", "benefit", "change.accuracy")


@prints("json", "markdown")
def command(
    *,
    a: Path = argument(
        "A: The run of the reference: a TREC run file; rankings as JSON, query to document to score, as beir's search "
        "returns them; mteb's TASK_predictions.json, or a folder of them; lm-eval's samples_TASK_DATE.jsonl, or the "
        "folder it writes; a run folder of quantdrift. Files may be gzipped."
    ),
    b: Path = argument("B: The run of the candidate, in one of the same formats."),
    qrels: Path | None = option(QRELS),
    metric: list[str] | None = option(METRIC),
    changed: int = option("N: How many of the changed inputs to list, the worst first.", default=5, min=0),
    common: bool = flag(COMMON),
    complete: bool = flag(COMPLETE),
    ignore_identical_ids: bool = flag("--ignore-identical-ids: Leave out items with the id of their query."),
    part: list[str] | None = option(PART),
    arms: str = option(
        "ARM[,ARM]: With run folders of quantdrift: the arm of A, and that of B if it is another, e.g. "
        "reference,candidate.",
        default="candidate",
    ),
    out: Path | None = option("-o --out FOLDER: Also write a run folder, for quantdrift metrics and compare."),
) -> Output:
    """Show what changed between two finished runs of any program; A is the reference.

    This is for models that cannot be loaded here: APIs, vLLM, GGUF servers. Run your harness twice and give both
    outputs. Runs on different inputs, items, prompts or settings are refused, with a list of the differences. If
    rankings are truncated, values that cannot be computed exactly are left out or marked as bounds. The exit code is 0
    whatever changed.

    For example: quantdrift diff full-precision.trec quantized.trec --qrels qrels/test.tsv

    More: docs/guides/diff.md
    """
    metrics = [parse_metric(name) for name in dict.fromkeys(metric or ())]
    names = [name.strip() for name in arms.split(",")]
    if len(names) > 2 or not set(names) <= set(ARMS):  # noqa: PLR2004 -- A and B
        raise QuantDriftError(f"--arms {arms}: expected one of {', '.join(ARMS)}, or two of them with a comma")
    if out is not None:
        check_writable(out / "part", what="the run")
    labels = None if qrels is None else read_qrels(qrels)
    runs = [read_finished(path, arm=cast(Arm, name)) for path, name in zip((a, b), (names[0], names[-1]), strict=True)]
    if len(names) > 1 and all(run.format != "run" for run in runs):
        raise QuantDriftError(f"--arms {arms} is for run folders of quantdrift; {a} and {b} hold one arm each")
    diff = compared.diff_runs(
        *runs,
        qrels=labels,
        common=common,
        complete=complete,
        ignore_identical=ignore_identical_ids,
        only=tuple(part or ()),
    )
    chosen = metrics or _chosen(diff)
    folders = [] if out is None else [str(run.path) for run in compared.write_diff(diff, out)]
    lines = list(_sentences(diff))
    sides = {"a": diff.a, "b": diff.b}
    pooled = {str(m): compared.pooled_estimate(m, diff.parts).to_json() for m in chosen if len(diff.parts) > 1}
    return Output(
        data={
            **{letter: run.about for letter, run in sides.items()},
            "parts": [_part_json(part, chosen, changed) for part in diff.parts],
            **({"pooled": pooled} if pooled else {}),
            "notes": lines,
            "folders": folders,
        },
        about=[f"{letter.upper()}  {run.name}  {run.path} ({run.format})" for letter, run in sides.items()],
        grids=list(_grids(diff, chosen, changed)),
        lines=lines,
        next=[f"written: {folder}" for folder in folders],
    )


def _chosen(diff: compared.Diff) -> list[Metric]:
    """The default metrics."""
    compared_parts = [part.evidence for part in diff.parts if part.evidence is not None]
    ranked = all(part.lists for part in diff.parts)
    labelled = any(evidence.judgements is not None for evidence in compared_parts)
    scored = any(evidence.deltas != "none" for evidence in compared_parts)
    if len(diff.parts) > 1:
        metrics = [parse_metric(name) for name in (_OF_PARTS if ranked else _OF_ANSWER_PARTS)]
    else:
        metrics = [parse_metric(name) for name in (_OF_RANKED if ranked else _OF_ANSWERS)]
    return [
        metric
        for metric in metrics
        if (labelled or not metric.family.needs_labels) and (scored or metric.family.when_cut == "the same")
    ]


# --- tables ---------------------------------------------------------------------------------------


def _grids(diff: compared.Diff, chosen: Sequence[Metric], n_changed: int) -> Iterator[Grid]:
    if len(diff.parts) > 1:
        yield _parts(diff, chosen)
    elif diff.parts[0].evidence is not None:
        yield metric_grid(_estimates(diff.parts[0], chosen), diff.parts[0].name)
    if rows := [row for part in diff.parts for row in _harness_rows(part)]:
        yield table(_HARNESS, rows)
    for part in diff.parts:
        if part.evidence is None or not (changed := changed_inputs(part.evidence)):
            continue
        listed = changed[:n_changed]
        title = f"{len(listed):,} of {len(changed):,} changed inputs, the worst first"
        if listed:
            columns = changed_columns(Texts(told=""), exact=part.evidence.exact, classes=not part.lists)
            yield table(columns, listed, title=f"{part.name}: {title}" if len(diff.parts) > 1 else title)


def _parts(diff: compared.Diff, chosen: Sequence[Metric]) -> Grid:
    """One row for each part, and one for all of them."""
    rows: list[tuple[str, int | None, dict[str, Estimate]]] = [
        (part.name, None if part.evidence is None else part.evidence.n_inputs, _estimates(part, chosen))
        for part in diff.parts
    ]
    n = sum({part.inputs: part.evidence.n_inputs for part in diff.parts if part.evidence is not None}.values())
    rows.append(("all", n, {str(metric): compared.pooled_estimate(metric, diff.parts) for metric in chosen}))
    columns = [
        Column("part", itemgetter(0), kind="words"),
        Column("inputs", itemgetter(1), lambda n: "-" if n is None else f"{n:,}"),
        *metric_columns(chosen, itemgetter(2)),
    ]
    return table(columns, rows, stacked=True)


def _estimates(part: compared.PartDiff, chosen: Sequence[Metric]) -> dict[str, Estimate]:
    return {str(metric): compared.estimate_of(metric, part) for metric in chosen}


def _step(change: Estimate) -> str:
    """The change of a harness's own metric, with its interval."""
    ends = f" ({change.low:+.4f} to {change.high:+.4f})" if change.low is not None and change.high is not None else ""
    return "-" if change.value is None else f"{change.value:+.4f}{ends}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


_HARNESS = (
    Column("task", itemgetter(0), kind="words"),
    Column("metric", itemgetter(1), kind="words"),
    Column("A", itemgetter(2), _number, key="a"),
    Column("B", itemgetter(3), _number, key="b"),
    Column("B - A (95 %)", itemgetter(4), _step, key="change"),
    Column("n", lambda row: row[4].n, "{:,}".format),
)
"""The harness's own metrics of both runs, and their change."""


def _harness_rows(part: compared.PartDiff) -> list[tuple[Any, ...]]:
    return [(part.name, name, *compared.change_of(values)) for name, values in part.values.items()]


# --- sentences and JSON ---------------------------------------------------------------------------


def _sentences(diff: compared.Diff) -> Iterator[str]:
    """The finding and the verdict of each part, the inputs left out, and the notes."""
    for part in diff.parts:
        yield _finding(part)
        if part.evidence is not None:
            estimates = _estimates(part, list(map(parse_metric, _judged_by(part))))
            outcome = judged(estimates, classes=not part.lists, answer="top-1" if part.lists else "answer")
            yield f"Verdict: {outcome.told}"
    for part in diff.parts:
        if any(part.left_out):
            before, (a, b) = f"{part.name}: " if part.name else "", part.left_out
            yield f"Note: {before}left out, as only one of the two runs has them: {a:,} inputs of A and {b:,} of B."
    for note in dict.fromkeys((*diff.notes, *(note for part in diff.parts for note in part.notes))):
        yield f"Note: {note}."


def _judged_by(part: compared.PartDiff) -> list[str]:
    """Names of the metrics that the verdict on a part depends on."""
    labelled = part.evidence is not None and part.evidence.judgements is not None
    return [*JUDGED_BY, "change.ndcg@10" if part.lists else "change.accuracy"] if labelled else ["flip@1"]


def _finding(part: compared.PartDiff) -> str:
    before = f"{part.name}: " if part.name else ""
    if part.evidence is None:
        return f"{before}{part.reason}; only the harness's own metrics are compared."
    changed, n = int(perturbation.flips(part.evidence).sum()), part.evidence.n_inputs
    what = "first answer" if part.lists else "answer"
    if not changed:
        return f"{before}0 of {n:,} inputs have another {what} in B than in A."
    text = f"{before}{changed:,} of {n:,} inputs ({percent(changed / n)}) have another {what} in B"
    if part.evidence.judgements is not None:
        lost, won = (compared.estimate_of(parse_metric(name), part) for name in ("harm", "benefit"))
        if lost.value is not None and won.value is not None:
            text += f"; {round(lost.value * lost.n):,} went from right to wrong"
            text += f", {round(won.value * won.n):,} from wrong to right"
    return f"{text}."


def _part_json(part: compared.PartDiff, chosen: Sequence[Metric], n_changed: int) -> dict[str, Any]:
    evidence = part.evidence
    listed = [] if evidence is None else changed_inputs(evidence)
    ranks = None
    if part.lists and evidence is not None:
        ranks = {**dict(zip("ab", map(list, part.lists), strict=True)), "compared": evidence.depth}
    harness = max((len(before) for before, _ in part.values.values()), default=0)
    return {
        "name": part.name,
        "n_inputs": harness if evidence is None else evidence.n_inputs,
        "left_out": {"a": part.left_out[0], "b": part.left_out[1]},
        "deltas": None if evidence is None else evidence.deltas,
        "ranks": ranks,
        "metrics": as_json(_estimates(part, chosen)),
        "harness_metrics": dict(zip(part.values, records(_HARNESS, _harness_rows(part)), strict=True)),
        "judged_by": part.judged_by,
        "n_changed": len(listed),
        "changed": as_json(listed[:n_changed]),
    }
