"""Tables of two finished runs: metrics by part, the harness's own, and the changed inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.table import Table

from quantdrift.cli.tables import cell, has_value, print_markdown, show, show_interval
from quantdrift.display import clean, prose, say
from quantdrift.finished.diff import Changed, Diff, change_of, changed_inputs, estimate_of, pooled_estimate
from quantdrift.metrics import Metric, headline_metrics, parse_metric

OF_ANSWERS = (
    "flip@1",
    "separation",
    "at_risk",
    "reference.accuracy",
    "accuracy",
    "change.accuracy",
    "gold_lost@1",
    "harm",
    "benefit",
)
"""Of questions with choices, of labels and of texts, where only the first answer says much."""

OF_PARTS = ("flip@1", "separation", "harm", "benefit", "change.ndcg@10", "gold_lost@1")
OF_ANSWER_PARTS = ("flip@1", "separation", "harm", "benefit", "change.accuracy")

_SHOWN = 40
"""Characters of an answer in a table."""


def chosen_metrics(found: Diff) -> list[Metric]:
    """The metrics that are shown if none are asked for.

    Args:
        found: the comparison.
    """
    known = [part.evidence for part in found.parts if part.evidence is not None]
    ranked = all(part.lists is not None for part in found.parts)
    labelled = any(evidence.judgements is not None for evidence in known)
    scored = any(evidence.deltas != "none" for evidence in known)
    if len(found.parts) > 1:
        names: Sequence[str] = OF_PARTS if ranked else OF_ANSWER_PARTS
    elif ranked:
        # nobody ran the reference a second time
        headline = [str(metric) for metric in headline_metrics()]
        names = [name for name in headline if name != "noise_floor"]
        names.insert(names.index("harm") + 1, "benefit")
    else:
        names = OF_ANSWERS
    metrics = [parse_metric(name) for name in names]
    return [
        metric
        for metric in metrics
        if (labelled or not metric.family.needs_labels) and (scored or metric.family.when_cut == "the same")
    ]


def parts_table(found: Diff, chosen: Sequence[Metric]) -> Table:
    """One row per part, and one of all of them."""
    table = Table(show_lines=True)
    table.add_column("part", overflow="fold")
    table.add_column("inputs", justify="right")
    for metric in chosen:
        table.add_column(str(metric), justify="right", no_wrap=True)
    for name, n, *cells in _part_rows(found, chosen, "\n"):
        table.add_row(clean(name), n, *cells)
    return table


def _part_rows(found: Diff, chosen: Sequence[Metric], joint: str) -> Iterator[list[str]]:
    for part in found.parts:
        n = "-" if part.evidence is None else f"{part.evidence.n_inputs:,}"
        yield [part.name, n, *(cell(each, estimate_of(each, part), joint) for each in chosen)]
    known = {part.inputs: part.evidence.n_inputs for part in found.parts if part.evidence is not None}
    pooled = (pooled_estimate(metric, found.parts) for metric in chosen)
    shown = [cell(metric, each, joint) for metric, each in zip(chosen, pooled, strict=True)]
    yield ["all", f"{sum(known.values()):,}", *shown]


def own_metrics_table(found: Diff) -> Table:
    """The harness's own metrics of either run, and their change."""
    head, rows = _own_metrics(found)
    table = Table()
    for name in head:
        table.add_column(name, justify="left" if name in {"task", "metric"} else "right")
    for row in rows:
        table.add_row(*(clean(each) for each in row))
    return table


def _own_metrics(found: Diff) -> tuple[list[str], list[list[str]]]:
    rows = []
    for part in found.parts:
        for name, values in part.values.items():
            before, after, change = change_of(values)
            if before is None or after is None or change.value is None:
                rows.append([part.name, name, "-", "-", "-", "0"])
                continue
            ends = ""
            if change.low is not None and change.high is not None:
                ends = f" ({change.low:+.4f} to {change.high:+.4f})"
            moved = f"{change.value:+.4f}{ends}"
            rows.append([part.name, name, f"{before:.4f}", f"{after:.4f}", moved, f"{change.n:,}"])
    return ["task", "metric", "A", "B", "B - A (95 %)", "n"], rows


def changed_table(found: Diff, n: int) -> Table | None:
    """The changed inputs, the worst first; None if there are none.

    Args:
        found: the comparison.
        n: how many, of each part.
    """
    head, rows, total = _changed(found, n)
    if not rows:
        return None
    title = f"{len(rows):,} of {total:,} changed inputs, the worst first"
    table = Table(title=title, title_justify="left")
    for name in head:
        justify: Literal["left", "right"] = "right" if name.startswith("rank") else "left"
        table.add_column(name, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(clean(each) for each in row))
    return table


def _labelled(found: Diff) -> bool:
    return any(part.evidence is not None and part.evidence.judgements is not None for part in found.parts)


def _changed(found: Diff, n: int) -> tuple[list[str], list[list[str]], int]:
    several, ranked = len(found.parts) > 1, all(part.lists is not None for part in found.parts)
    labelled = _labelled(found)
    head = [*(["part"] if several else []), "input", "A answers", "B answers"]
    if ranked:
        head += ["rank of A's\nanswer in B", "rank of B's\nanswer in A"]
    head += ["from"] if labelled else []
    rows, total = [], 0
    for part in found.parts:
        if part.evidence is None:
            continue
        listed = changed_inputs(part.evidence)
        total += len(listed)
        deepest = part.evidence.depth
        for each in listed[:n]:
            row = [part.name] if several else []
            row += [each.input_id, _cut(each.before), _cut(each.after)]
            if ranked:
                row += [_rank(each.rank_after, deepest), _rank(each.rank_before, deepest)]
            rows.append([*row, _judged(each)] if labelled else row)
    return head, rows, total


def _cut(answer: str | None) -> str:
    if answer is None:
        return "-"
    line = clean(answer)
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def _rank(rank: int | None, deepest: int) -> str:
    return f"below {deepest:,}" if rank is None else f"{rank:,}"


def _judged(each: Changed) -> str:
    if each.was_right is None:
        return "no label"
    words = {True: "right", False: "wrong"}
    return f"{words[each.was_right]} to {words[bool(each.is_right)]}"


def print_markdown_diff(found: Diff, chosen: Sequence[Metric], n_changed: int, lines: Sequence[str]) -> None:
    """Print the comparison as Markdown.

    Args:
        found: the comparison.
        chosen: metrics.
        n_changed: how many changed inputs to list.
        lines: sentences below the tables.
    """
    if len(found.parts) > 1:
        head = ["part", "inputs", *(str(metric) for metric in chosen)]
        print_markdown(head, _part_rows(found, chosen, " "))
    elif found.parts[0].evidence is not None:
        rows = []
        for metric in chosen:
            estimate = estimate_of(metric, found.parts[0])
            ends = show_interval(metric, estimate)
            if not has_value(estimate):
                ends = str(estimate.to_json()["reason"])
            rows.append((str(metric), show(metric, estimate), ends, f"{estimate.n:,}"))
        print_markdown(("metric", "value", "95 % interval", "n"), rows)
    head, own = _own_metrics(found)
    if own:
        say()
        print_markdown(head, own)
    head, listed, _ = _changed(found, n_changed)
    if listed:
        say()
        print_markdown(head, listed)
    say()
    say("\n".join(f"- {prose(line)}" for line in lines))
