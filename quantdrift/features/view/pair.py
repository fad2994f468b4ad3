"""The page of two candidates beside each other: every input that either answers otherwise, with three rankings."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

from quantdrift.base.text import counted
from quantdrift.compare.two_runs import compare_runs, joined
from quantdrift.evidence.record import Evidence
from quantdrift.finished.texts import read_texts
from quantdrift.report.changes import MOST, Items, add_rankings, entry_of, with_texts
from quantdrift.report.page import Number, Page, Section
from quantdrift.runs.changes import Changed, changed_inputs
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import Identity, classifies
from quantdrift.show.comparison import comparison_grid, comparison_lines

_FIRST = ("harmful", None, "neutral", "beneficial")
"""Kinds of changes, those that harm first."""


def pair_page(a: Run, b: Run) -> Page:
    """Two candidates of one reference on the same inputs.

    Raises:
        RunError: the two cannot be compared; says in what they differ.
    """
    here, there, notes = joined(a, b)
    names = [str(run.record["spec"]).rpartition("@")[2] for run in (a, b)]
    comparison, content = compare_runs(a, b), _content(a, (here, there), names)
    kinds, n = content["kinds"], counted(here.n_inputs, "input")
    lines = [line for line in comparison_lines(comparison) if not line.startswith("Note:")]
    return Page(
        kind="view",
        title=f"{a.record['spec']} beside {b.record['spec']} on {Identity.of(a.record).data_name}",
        word="",
        tone="plain",
        verdict=f"Of {n}, {sum(kinds.values()):,} get another top-1 from {names[0]}, {names[1]} or both.",
        words=[re.sub(r"\b[AB]\b", lambda letter: names[letter[0] == "B"], line) for line in lines],
        warnings=notes,
        numbers=[Number(label=kind, value=f"{count:,}", note=f"of {n}") for kind, count in kinds.items()],
        sections=[
            Section(
                name="changed",
                title="Inputs that either answers otherwise",
                about=["What harms comes first, and among that the largest gap."],
                changed=content,
            ),
            Section(
                name="compared",
                title="Compared",
                about=[f"A is {names[0]}, B is {names[1]}. With 95 % intervals, input by input."],
                grids=[comparison_grid(comparison)],
            ),
        ],
    )


def _content(run: Run, both: tuple[Evidence, Evidence], names: list[str]) -> dict[str, Any]:
    """The inputs as a page lists them: of a changed run's entries, with a third arm."""
    by_id = [{change.input_id: change for change in changed_inputs(evidence)} for evidence in both]
    pairs = [(by_id[0].get(name), by_id[1].get(name)) for name in by_id[0].keys() | by_id[1].keys()]
    pairs.sort(key=lambda pair: _order([change for change in pair if change is not None]))
    changes = [change for one, other in pairs if (change := one or other) is not None]
    items = Items(texts=read_texts(run))
    entries = [_entry(change, *pair, items, names) for change, pair in zip(changes[:MOST], pairs, strict=False)]
    others: list[dict[str, Any]] = [{} for _ in entries]
    for listed, evidence in zip((entries, others), both, strict=True):
        add_rankings(listed, changes, evidence, items)
    for entry, of_other in zip(entries, others, strict=True):
        entry["other"] = of_other["candidate"]
        entry.pop("missed", None)  # which is told of two arms
    content = {
        "arms": ["full precision", *names],
        "right": "the right class" if classifies(run.record) else "relevant",
        "labelled": True,
        "kinds": dict(Counter(entry["kind"] for entry in entries).most_common()),
        "changed": entries,
    }
    return with_texts(content, changes, items)


def _order(changes: list[Changed]) -> tuple[int, float, str]:
    """What harms in either first, then the largest gap."""
    kind = min(_FIRST.index(change.kind) for change in changes)
    return kind, -max(change.gap or 0.0 for change in changes), changes[0].input_id


def _entry(
    change: Changed, one: Changed | None, other: Changed | None, items: Items, names: list[str]
) -> dict[str, Any]:
    """An input: what full precision answers, and what both candidates do, which keep that where they do not change."""
    after = [change.before if its is None else its.after for its in (one, other)]
    right = [change.was_right if its is None else its.is_right for its in (one, other)]
    if one is None or other is None:
        kind = f"only {names[one is None]} changes it"
    else:
        kind = "both change it alike" if after[0] == after[1] else "both change it, each otherwise"
    whole = entry_of(replace(change, after=after[0], is_right=right[0], rank_before=None, rank_after=None), items)
    more = {"other_after": items.place(change.input_id, after[1]), "other_is_right": right[1]}
    return {**whole, "kind": kind, "kinds": ["same" if its is None else its.kind for its in (one, other)], **more}
