"""The first page of a server of finished runs: all that there is; and the page of one of them."""

import datetime
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from quantdrift.base.display import error_line
from quantdrift.base.text import counted
from quantdrift.cli.pages import page_of
from quantdrift.features.view.found import MOST, Found
from quantdrift.features.view.history import baseline_in, history
from quantdrift.gate.output import finding
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell
from quantdrift.report import gate
from quantdrift.report.page import Page, Section
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import Identity, classifies
from quantdrift.runs.verdict import verdict
from quantdrift.runs.words import estimates_of
from quantdrift.show.tables import Column, Grid, table


def link_to(kind: str, name: str, other: str | None = None) -> str:
    """The address of a page: "/run/PATH", "/pair/PATH?b=PATH"."""
    a, b = (quote(path, safe="", errors="surrogateescape") for path in (name, other or ""))
    return f"/{kind}/{a}" + ("" if other is None else f"?b={b}")


def overview(folder: Path, found: Found, beside: Path) -> Page:
    """The page of a folder: its runs, studies and gates, and the history of the baseline in the folder beside it."""
    n = counted(len(found.runs), "run")
    return Page(
        kind="view",
        title=f"quantdrift: {n}",
        word="",
        tone="plain",
        verdict=f"{n} in {folder}." if found.runs else f"There is no run in {folder}. quantdrift run writes one.",
        warnings=[f"Only {MOST:,} runs are listed."] if len(found.runs) >= MOST else [],
        sections=[*_sections(found), *history(baseline_in(beside))],
    )


def _sections(found: Found) -> Iterator[Section]:
    told, problems = dict[str, Grid](), dict(found.problems)
    for item in found.runs.items():
        try:
            told[item[0]] = table(_COLUMNS, [item])
        except Exception as error:  # one that cannot be told is one row
            problems[item[0]] = error_line(error)
    if told:
        latest = sorted(told, key=lambda name: told[name].rows[0][_FINISHED], reverse=True)
        rows, links = [told[name].rows[0] for name in latest], [link_to("run", name) for name in latest]
        grid = replace(told[latest[0]], rows=rows, links=links)
        about = ["The latest first; a click on a head sorts. The page of a run leads to others beside it."]
        yield Section(name="runs", title="Runs", about=about, grids=[grid])
    if found.studies:
        links = [link_to("study", name) for name in found.studies]
        grid = Grid(head=["study"], rows=[[name] for name in found.studies], links=links)
        yield Section(name="studies", title="Studies", grids=[grid])
    if found.gates:
        gates = sorted(found.gates.items(), key=lambda item: -item[1][1])
        grid = table(_OF_GATES, gates, links=[link_to("gate", name) for name, _ in gates])
        yield Section(name="gates", title="Gates", about=["The latest first."], grids=[grid])
    if problems:
        grid = Grid(head=["folder", "why"], rows=[[*item] for item in problems.items()], words={"why"})
        yield Section(name="problems", title="Not readable", grids=[grid])


def _finished(run: Run) -> str:
    return str((run.record.get("times") or {}).get("finished") or "")[:16].replace("T", " ")


def _metric(head: str, name: str, of_classes: str = "") -> Column:
    """A metric of a run, with its interval."""

    def text(item: tuple[str, Run]) -> str:
        record = item[1].record
        wanted, estimates = of_classes if of_classes and classifies(record) else name, estimates_of(record)
        return cell(parse_metric(wanted), estimates[wanted]) if wanted in estimates else "-"

    return Column(head, text)


_COLUMNS = (
    Column("run", lambda item: str(item[1].record["spec"]), kind="words"),
    Column("data", lambda item: Identity.of(item[1].record).data_name, kind="words"),
    Column("verdict", lambda item: verdict(item[1].record).word, kind="words"),
    _metric("top-1 changes", "flip@1"),
    _metric("quality moves by", "change.ndcg@10", "change.accuracy"),
    _metric("right answers lost", "gold_lost@1"),
    Column("finished", lambda item: _finished(item[1]), kind="words"),
    Column("folder", lambda item: item[0], kind="words"),
)
_FINISHED = -2
_OF_GATES = (
    Column("result", lambda item: item[0], kind="words"),
    Column("verdict", lambda item: item[1][0].verdict, kind="words"),
    Column("run", lambda item: str(item[1][0].spec), kind="words"),
    Column("data", lambda item: item[1][0].data, kind="words"),
    Column("top-1 changes", lambda item: f"{item[1][0].n_changed:,} of {item[1][0].n_inputs:,}"),
    Column("why", lambda item: finding(item[1][0]), kind="words"),
    Column("written", lambda item: f"{datetime.datetime.fromtimestamp(item[1][1]):%Y-%m-%d %H:%M}", kind="words"),
)


def _beside(found: Found, name: str) -> Iterator[str]:
    """Yield the other candidates of the reference of a run, on the same data, with the same settings."""
    record = found.runs[name].record
    for other, run in found.runs.items():
        same = ("reference", "name", "data", "meaning")
        differs = run.record["spec"] == record["spec"] or Identity.of(record).differences(Identity.of(run.record), same)
        if not differs:
            yield other


def page_for(found: Found, kind: str, name: str) -> Page | None:
    """The page of a run, a study or a gate, as `quantdrift report` makes it; None where there is none of that name."""
    if kind == "gate" and name in found.gates:
        return gate.page_of(found.gates[name][0])
    if kind == "study" and name in found.studies:
        return page_of(found.studies[name])
    if kind != "run" or name not in found.runs:
        return None
    page, others = page_of(found.runs[name].path), list(_beside(found, name))
    rows = [[str(found.runs[other].record["spec"]), other] for other in others]
    links = [link_to("pair", name, other) for other in others]
    grid = Grid(head=["another candidate", "folder"], rows=rows, words={"folder"}, links=links)
    about = ["Both candidates of one reference, query by query."]
    beside = Section(name="pairs", title="Side by side", about=about, grids=[grid])
    return replace(page, sections=[*page.sections, beside]) if others else page
