"""The pages that a server of finished runs has: all that there is, a run, and two candidates beside each other."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

from quantdrift.base.display import shown
from quantdrift.base.errors import QuantDriftError
from quantdrift.base.text import counted, percent
from quantdrift.cli.compare import comparison_grid, comparison_lines
from quantdrift.cli.report import page_of
from quantdrift.compare.two_runs import compare_runs, joined
from quantdrift.evidence.record import Evidence
from quantdrift.features.view.found import Found
from quantdrift.features.view.history import baseline_in, commits_of, section_of
from quantdrift.finished.texts import read_texts
from quantdrift.gate.output import finding
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell
from quantdrift.report import gate
from quantdrift.report.changes import MOST, ROOM, Items, add_rankings, entry_of, texts_that_fit
from quantdrift.report.page import Number, Page, Section, json_size
from quantdrift.runs.changes import Changed, changed_inputs
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import Identity, classifies
from quantdrift.runs.words import estimates_of, verdict
from quantdrift.show.tables import Grid

_NAME = 120
"""Characters of a name."""
_PAIRS = 400
"""Pairs of runs that are listed; every page of a run lists those with it."""
_FIRST = ("harmful", None, "neutral", "beneficial")
"""Kinds of changes, those that harm first."""
_COLUMNS = ("flip@1", "change.ndcg@10", "change.accuracy", "gold_lost@1")


def link_to(kind: str, *names: str) -> str:
    """The address of a page, "/run/PATH" or "/pair/PATH?b=PATH"."""
    first, *rest = (quote(name, safe="") for name in names)
    return f"/{kind}/{first}" + "".join(f"?b={name}" for name in rest)


# --- all that there is ----------------------------------------------------------------------------


def overview(folder: Path, found: Found, beside: Path) -> Page:
    """The page of a folder: its runs, studies and gates, and the history of the baseline that lies beside it."""
    baseline = baseline_in(beside)
    sections = [*_runs(found), *_pairs(found), *_studies(found), *_gates(found)]
    sections += section_of(commits_of(baseline), baseline)
    if found.problems:
        rows = [[name, why] for name, why in found.problems.items()]
        grid = Grid(head=["folder", "why"], rows=rows, words={"why"})
        sections.append(Section(name="problems", title="Not readable", grids=[grid]))
    n = counted(len(found.runs), "run")
    return Page(
        kind="view",
        title=f"{folder.name or folder}: {n}",
        word="",
        tone="plain",
        verdict=f"{n} in {folder}." if found.runs else f"There is no run in {folder}. quantdrift run writes one.",
        warnings=[f"Only the first {len(found.runs):,} are listed."] if found.left_out else [],
        sections=sections,
        home=True,
    )


def _row(name: str, run: Run) -> list[str]:
    record, estimates = run.record, estimates_of(run.record)
    finished = str((record.get("times") or {}).get("finished") or "")[:16].replace("T", " ")
    other = "change.ndcg@10" if classifies(record) else "change.accuracy"
    cells = [
        cell(parse_metric(metric), estimates[metric]) if metric in estimates and metric != other else "-"
        for metric in _COLUMNS
    ]
    return [str(record["spec"]), Identity.of(record).data_name, verdict(record).word, *cells, finished, name]


def _runs(found: Found) -> Iterator[Section]:
    rows = sorted((_row(name, run) for name, run in found.runs.items()), key=lambda row: row[-2], reverse=True)
    if rows:
        head = ["run", "data", "verdict", *_COLUMNS, "finished", "folder"]
        links = [link_to("run", row[-1]) for row in rows]
        empty = {place for place in range(3, 7) if all(row[place] == "-" for row in rows)}
        kept = [place for place in range(len(head)) if place not in empty]
        grid = Grid(
            head=[head[place] for place in kept],
            rows=[[row[place] for place in kept] for row in rows],
            words={"data", "verdict", "finished", "folder"},
            links=links,
        )
        yield Section(name="runs", title="Runs", about=["The latest first; a click on a head sorts."], grids=[grid])


def comparable(a: Run, b: Run) -> bool:
    """Whether two runs are of other candidates of the same reference, on the same data, with the same settings."""
    return a.record["spec"] != b.record["spec"] and not Identity.of(a.record).differences(
        Identity.of(b.record), ("reference", "name", "data", "meaning")
    )


def _pairs(found: Found) -> Iterator[Section]:
    pairs = [
        (one, other) for one, other in combinations(found.runs, 2) if comparable(found.runs[one], found.runs[other])
    ]
    if pairs:
        grid = _grid_of_pairs(found, pairs[:_PAIRS])
        about = ["Two candidates of one reference on the same data, each query."]
        about += [f"The first {_PAIRS} of {len(pairs):,} pairs; the page of a run has its own."] * (len(pairs) > _PAIRS)
        yield Section(name="pairs", title="Side by side", about=about, grids=[grid])


def _grid_of_pairs(found: Found, pairs: list[tuple[str, str]]) -> Grid:
    rows = []
    for a, b in pairs:
        one, other = found.runs[a].record, found.runs[b].record
        rows.append([f"{one['spec']} | {other['spec']}", Identity.of(one).data_name, a, b])
    return Grid(
        head=["two candidates", "data", "folder", "other folder"],
        rows=rows,
        words={"data", "folder", "other folder"},
        links=[link_to("pair", a, b) for a, b in pairs],
    )


def _studies(found: Found) -> Iterator[Section]:
    if found.studies:
        grid = Grid(
            head=["study"], rows=[[name] for name in found.studies], links=[link_to("study", n) for n in found.studies]
        )
        yield Section(name="studies", title="Studies", grids=[grid])


def _gates(found: Found) -> Iterator[Section]:
    if found.gates:
        listed = sorted(found.gates.items(), key=lambda item: -item[1][1])
        rows = [
            [
                name,
                result.verdict,
                str(result.spec),
                result.data,
                f"{result.n_changed:,} of {result.n_inputs:,}",
                finding(result),
                datetime.datetime.fromtimestamp(when).isoformat(" ", "minutes"),
            ]
            for name, (result, when) in listed
        ]
        head = ["result", "verdict", "run", "data", "top-1 changes", "why", "written"]
        links = [link_to("gate", name) for name, _ in listed]
        grid = Grid(head=head, rows=rows, words={*head} - {"top-1 changes"}, links=links)
        yield Section(name="gates", title="Gates", about=["The latest first."], grids=[grid])


# --- one of them ----------------------------------------------------------------------------------


def page_for(found: Found, kind: str, name: str) -> Page | None:
    """The page of a run, a study or a gate, as `quantdrift report` makes it; None where there is none of that name."""
    if kind == "gate" and name in found.gates:
        return replace(gate.page_of(found.gates[name][0]), home=True)
    path = found.path(kind, name)
    if path is None:
        return None
    page = replace(page_of(path), home=True)
    others = [other for other in found.runs if kind == "run" and other != name]
    pairs = [(name, other) for other in others if comparable(found.runs[name], found.runs[other])]
    if not pairs:
        return page
    beside = Section(name="pairs", title="Beside another", grids=[_grid_of_pairs(found, pairs)])
    return replace(page, sections=[*page.sections, beside])


# --- two beside each other ------------------------------------------------------------------------


def pair_page(a: Run, b: Run) -> Page:
    """Two candidates of one reference on the same inputs, each input that either answers otherwise.

    Raises:
        RunError: the two cannot be compared; says in what they differ.
    """
    here, there, notes = joined(a, b)
    names = _names(a, b)
    comparison = compare_runs(a, b)
    content = _content(a, (here, there), names)
    kinds: Mapping[str, int] = content["kinds"]
    changed = sum(kinds.values())
    first, second = (estimate_of(run) for run in (a, b))
    return Page(
        kind="view",
        title=f"{a.record['spec']} beside {b.record['spec']} on {Identity.of(a.record).data_name}",
        word="",
        tone="plain",
        verdict=f"{names[0]} has another top-1 on {first} of the inputs, {names[1]} on {second}.",
        about=counted(here.n_inputs, "input"),
        words=[
            re.sub(r"\b[AB]\b", lambda letter: names[letter[0] == "B"], line)
            for line in comparison_lines(comparison)
            if not line.startswith("Note:")
        ],
        warnings=notes,
        numbers=[Number(label=kind, value=f"{n:,}", note=f"of {here.n_inputs:,} inputs") for kind, n in kinds.items()],
        sections=[
            Section(
                name="changed",
                title=f"{counted(changed, 'input')} that either answers otherwise",
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
        home=True,
    )


def estimate_of(run: Run) -> str:
    """The share of the inputs whose first answer changed."""
    value = estimates_of(run.record)["flip@1"].value if "flip@1" in run.record["metrics"] else run["flip@1"].value
    return "-" if value is None else percent(value)


def _names(a: Run, b: Run) -> tuple[str, str]:
    """What the two are called: by their schemes, and by their folders too where these are the same."""
    first, second = (str(run.record["spec"]).rpartition("@")[2] for run in (a, b))
    return (first, second) if first != second else (f"{first} ({a.path.name})", f"{second} ({b.path.name})")


def _content(run: Run, both: tuple[Evidence, Evidence], names: tuple[str, str]) -> dict[str, Any]:
    """The inputs that either candidate answers otherwise, as a page lists them, with three rankings each."""
    by_id = [{change.input_id: change for change in changed_inputs(evidence)} for evidence in both]
    listed = sorted(by_id[0].keys() | by_id[1].keys(), key=lambda name: _order(by_id[0].get(name), by_id[1].get(name)))
    texts = read_texts(run)
    items = Items(texts=texts)
    entries, firsts = [], []
    for name in listed[:MOST]:
        one, other = (changes.get(name) for changes in by_id)
        change = one or other
        assert change is not None  # it is in one of the two
        firsts.append(change)
        entries.append(_entry(change, one, other, items, names))
    others: list[dict[str, Any]] = [{} for _ in entries]
    add_rankings(entries, firsts, both[0], items)
    add_rankings(others, firsts, both[1], items)
    for entry, of_other in zip(entries, others, strict=True):
        entry["other"] = of_other["candidate"]
        entry.pop("missed", None)  # it is told of two arms
    counts = Counter(entry["kind"] for entry in entries)
    content = {
        "arms": ["full precision", *names],
        "right": "the right class" if classifies(run.record) else "relevant",
        "labelled": True,
        "kinds": dict(counts.most_common()),
        "changed": entries,
    }
    inputs, item_texts, left_out = texts_that_fit(firsts, items, ROOM - json_size(content))
    for entry, text in zip(entries, inputs, strict=True):
        entry.update({} if text is None else {"text": text})
    notes = [f"The worst {MOST:,} of {len(listed):,} are listed."] if len(listed) > MOST else []
    notes += [f"There is no room for {left_out:,} of the texts."] if left_out else []
    notes += [f"{texts.told[:1].upper()}{texts.told[1:]}."] if texts.told else []
    names_of = [shown(name, _NAME) for _, name in items.places]
    return {**content, "items": [list(item) for item in zip(names_of, item_texts, strict=True)], "notes": notes}


def _order(one: Changed | None, other: Changed | None) -> tuple[int, float]:
    """What harms in either first, then the largest gap."""
    changes = [change for change in (one, other) if change is not None]
    return min(_FIRST.index(change.kind) for change in changes), -max(change.gap or 0.0 for change in changes)


def _entry(
    change: Changed, one: Changed | None, other: Changed | None, items: Items, names: tuple[str, str]
) -> dict[str, Any]:
    before = change.before
    after = [before if its is None else its.after for its in (one, other)]
    right = [change.was_right if its is None else its.is_right for its in (one, other)]
    if one is None or other is None:
        kind = f"only {names[one is None]} changes it"
    else:
        kind = "both change it alike" if after[0] == after[1] else "both change it, each otherwise"
    whole = entry_of(replace(change, after=after[0], is_right=right[0], rank_before=None, rank_after=None), items)
    other_after = items.place(change.input_id, after[1])
    kinds = ["same" if its is None else its.kind or "changed" for its in (one, other)]
    return {**whole, "kind": kind, "kinds": kinds, "other_after": other_after, "other_is_right": right[1]}


def refusal(error: QuantDriftError) -> Page:
    """The page that says why there is none."""
    return Page(
        kind="view", title="This page cannot be made", word="", tone="plain", verdict="This page cannot be made.",
        warnings=str(error).splitlines(), home=True,
    )  # fmt: skip
