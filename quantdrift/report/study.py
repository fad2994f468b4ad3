"""The page of a study: which schemes are safe, a map of all runs, and every run."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quantdrift.base.text import counted, percent, some
from quantdrift.evidence.record import Evidence
from quantdrift.finished.texts import Texts, read_texts
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell as shown_cell
from quantdrift.report import figures
from quantdrift.report.page import Number, Page, Section, Step
from quantdrift.report.study_figures import by_width, change_rates, heat_map, pareto, value_of
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import answers
from quantdrift.runs.verdict import Tone, Verdict, verdict
from quantdrift.show.changes import changed_columns
from quantdrift.show.tables import Column, Grid, metric_columns, table
from quantdrift.statistics.estimates import undefined
from quantdrift.study.folder import StudyFolder
from quantdrift.study.results import Result, metrics_of
from quantdrift.study.shares import judged_whole, waterfalls_of

WORST = 5
"""Changed inputs that are listed for each run."""
_CELL_METRICS = (
    "flip@1", "noise_floor", "gold_lost@1", "change.ndcg@10", "change.accuracy", "separation", "at_risk",
)  # fmt: skip
_TONES: tuple[Tone, ...] = ("bad", "plain", "warn", "good")
"""Tones, the worst first; a scheme has the tone of its worst run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A finished run with its verdict and its section."""

    result: Result
    judged: Verdict
    part: Section

    @property
    def tone(self) -> Tone:
        """The tone of its verdict."""
        return self.judged.tone

    @property
    def scheme(self) -> str:
        """The scheme as charts name it."""
        return figures.short(self.result.parsed)


def page_of(folder: StudyFolder) -> Page:
    """The page of a study.

    Raises:
        RunError: the evidence of a run is damaged.
    """
    links = {cell.name: f"cell-{number}" for number, cell in enumerate(folder.cells, 1)}
    texts: dict[object, Texts] = {}
    results, seen = [], []
    for cell in folder.cells:
        run = folder.run(cell)
        if run is None:
            results.append(Result(cell=cell, state=folder.state(cell), run=None, metrics={}))
            continue
        evidence = run.evidence()
        other = "change.accuracy" if answers(run.record) == "top-1" else "change.ndcg@10"
        metrics = metrics_of(evidence, [parse_metric(name) for name in _CELL_METRICS if name != other])
        results.append(Result(cell=cell, state="done", run=run, metrics=metrics))
        seen.append(_seen(results[-1], run, evidence, links[cell.name], _texts(run, texts)))
    schemes, missing = _tones(seen), [result for result in results if result.run is None]
    unfinished = {figures.short(result.parsed) for result in missing}
    finished = {scheme: tone for scheme, tone in schemes.items() if scheme not in unfinished}
    whole = _whole(folder, seen[-1]) if folder.record.kind == "waterfall" and not missing else None
    best = whole or _best(seen, finished)
    models = dict.fromkeys(cell.model for cell in folder.cells)
    data = dict.fromkeys(cell.data.called for cell in folder.cells)
    safe = f"{sum(tone == 'good' for tone in schemes.values())} of {counted(len(schemes), 'scheme')} safe"
    counts = Counter(result.state for result in missing)
    tone: Tone = "good" if {*schemes.values()} == {"good"} else "bad" if {*schemes.values()} == {"bad"} else "warn"
    return Page(
        kind="study",
        title=f"{some(models)} on {some(data)}",
        about=f"{counted(len(seen), 'run')} of {len(folder.cells):,}, {counted(len(schemes), 'scheme')}",
        word=whole.judged.word if whole else safe if seen else "nothing measured",
        tone=whole.tone if whole else tone if seen else "plain",
        verdict=f"{whole.scheme}: {whole.judged.sentences[0]}" if whole else _verdict(schemes, finished, best),
        words=list(_words(schemes, seen)),
        warnings=[
            f"{counted(n, 'run')} of the study {'is' if n == 1 else 'are'} {state}" for state, n in counts.items()
        ],
        numbers=list(_numbers(results, seen)),
        steps=list(_steps(folder.path, missing, best, len(data))),
        sections=[
            Section(
                name="map",
                title="Every run at a glance",
                about=["Select a square to see its run below."],
                figures=[heat_map(results, {name: f"#{link}" for name, link in links.items()})],
            ),
            Section(name="run", title="The selected run", parts=[run.part for run in seen]),
            *([Section(name="rates", title="Quantizers and widths", figures=[change_rates(results)])] if seen else []),
            *([Section(name="bits", title="Bits against damage", figures=[pareto(results)])] if seen else []),
            _table(results, links),
            *([_missing(folder, missing)] if missing else []),
        ],
    )


def _texts(run: Run, read: dict[object, Texts]) -> Texts:
    """The texts of a run; each corpus is read once."""
    data = run.record["data"]
    key = (data.get("name"), data.get("path"), data.get("fingerprint"), data.get("split"))
    if key not in read:
        read[key] = read_texts(run)
    return read[key]


def _name(result: Result) -> str:
    return f"{result.cell.model} {figures.short(result.parsed)}"


def _seen(result: Result, run: Run, evidence: Evidence, link: str, texts: Texts) -> _Seen:
    judged, changed = verdict(run.record), changed_inputs(evidence, 1)
    metrics = [
        [name, shown_cell(parse_metric(name), estimate), f"{estimate.n:,}"] for name, estimate in result.metrics.items()
    ]
    more = f"{len(changed) - WORST:,} more changed. " if len(changed) > WORST else ""
    worst = table(
        changed_columns(texts, exact=evidence.exact, classes=answers(run.record) != "top-1"),
        changed[:WORST],
        title="Changed inputs, the worst first",
        lines=[f"{more}All, with both rankings: quantdrift report {shlex.quote(str(run.path))}"],
    )
    part = Section(
        name=link,
        title=f"{_name(result)} on {result.cell.data.called}",
        about=[judged.sentence],
        grids=[Grid(head=["metric", "value (95 % interval)", "inputs"], rows=metrics), worst],
    )
    return _Seen(result=result, judged=judged, part=part)


def _whole(folder: StudyFolder, last: _Seen) -> _Seen:
    """The whole deployment of a waterfall, with advice on the stage that changes most."""
    assert last.result.run is not None  # it is seen
    return replace(last, judged=judged_whole(last.result.run.record, waterfalls_of(folder)[0]))


# --- the first screen -----------------------------------------------------------------------------


def _tones(seen: Sequence[_Seen]) -> dict[str, Tone]:
    """The tone of each scheme, which is that of its worst run; most bits first."""
    tones: dict[str, Tone] = {}
    for run in sorted(seen, key=lambda run: by_width(run.result)):
        tones[run.scheme] = min(tones.get(run.scheme, "good"), run.tone, key=_TONES.index)
    return tones


def _best(seen: Sequence[_Seen], schemes: Mapping[str, Tone]) -> _Seen | None:
    """The worst run of the scheme to take: of those that are safe the one of fewest bits, else what changes least."""

    def changed(run: _Seen) -> float:
        return run.result.metrics["flip@1"].value or 0.0

    def bits(run: _Seen) -> tuple[float, float]:
        weights, activations = by_width(run.result)
        return (-weights, activations) if run.tone == "good" else (0, 0)

    worst = {run.scheme: run for run in sorted(seen, key=lambda run: (-_TONES.index(run.tone), changed(run)))}
    tone = max(schemes.values(), key=_TONES.index, default="plain")
    offered = [worst[scheme] for scheme, its in schemes.items() if its == tone]
    return min(offered, key=lambda run: (bits(run), changed(run)), default=None)


def _verdict(schemes: Mapping[str, Tone], finished: Mapping[str, Tone], best: _Seen | None) -> str:
    """Name the scheme to take, of those whose runs are all finished, and count those that lose answers."""
    if not schemes:
        return "No run of this study is finished."
    said = []
    if best is not None and best.tone == "good":
        others = ", and of those that are it has the fewest bits per weight" if _count(finished, "good") > 1 else ""
        said.append(f"Take {best.scheme}: it is safe in every run{others}.")
    if worse := _count(schemes, "bad"):
        lose = f"lose{'s' if worse == 1 else ''} right answers or quality in some run"
        said.append(f"{counted(worse, 'scheme')} of {len(schemes)} {lose}.")
    nothing = "No scheme is shown to lose right answers or quality, and none is shown to be safe in every run."
    return " ".join(said) or nothing


def _count(schemes: Mapping[str, Tone], tone: Tone) -> int:
    return sum(its == tone for its in schemes.values())


def _words(schemes: Mapping[str, Tone], seen: Sequence[_Seen]) -> Iterator[str]:
    """Name the schemes of each tone, with the range of their change rates."""
    heads: Mapping[Tone, str] = {
        "good": "Safe in every run",
        "warn": "Answers change, but no loss beyond the tolerance is shown",
        "plain": "Open or without a verdict in at least one run",
        "bad": "Right answers or quality are lost in at least one run",
    }
    for tone, head in heads.items():
        names = []
        for scheme in (name for name, its in schemes.items() if its == tone):
            flips = [run.result.metrics["flip@1"].value for run in seen if run.scheme == scheme]
            rates = [rate for rate in flips if rate is not None] or [0.0]
            low, high = (f"{100 * end:.1f}" for end in (min(rates), max(rates)))
            names.append(f"{scheme} ({low if low == high else f'{low} to {high}'} %)")
        if names:
            yield f"{head}: {some(names, 20)}."
    if seen:
        yield "In brackets: the range of top-1 change rates over models and corpora."


def _numbers(results: Sequence[Result], seen: Sequence[_Seen]) -> Iterator[Number]:
    yield Number(label="runs", value=f"{len(seen):,}", note=f"of {len(results):,} in the study")
    if floors := [rate for result in results if (rate := value_of(result, "noise_floor")) is not None]:
        note = "the most that full precision changes when it is run twice"
        yield Number(label="noise floor", value=percent(max(floors)), note=note)
    if seen:
        lost = sum(run.tone == "bad" for run in seen)
        yield Number(label="runs that lose right answers", value=f"{lost:,}", note=f"of {len(seen):,}")


def _steps(path: Path, missing: Sequence[Result], best: _Seen | None, n_data: int) -> Iterator[Step]:
    if any(result.state == "failed" for result in missing):
        yield Step(text="Try the failed runs again.", command="quantdrift study retry STUDY.yaml")
    if best is not None and best.judged.next:
        yield Step(text=f"{best.scheme}: {best.judged.next}", command=best.judged.command)
    if best is not None and best.tone == "good" and best.result.run is not None:
        text = f"Let CI notice when {best.scheme} gets worse: write the baseline now, and commit it."
        yield Step(text=text, command=f"quantdrift gate {shlex.quote(str(best.result.run.path))} --update")
    if n_data > 1:
        yield Step(
            text="Compare every scheme with the first one over all corpora.",
            command=f"quantdrift study results {shlex.quote(str(path))} --pooled flip@1",
        )


# --- tables ---------------------------------------------------------------------------------------

_NAMES = (Column("run", _name), Column("data", "cell.data.called", kind="words"))


def _table(results: Sequence[Result], links: Mapping[str, str]) -> Section:
    done = [result for result in results if result.run is not None]
    names = [name for name in _CELL_METRICS if any(name in result.metrics for result in done)]
    others = dict.fromkeys(names, undefined("of inputs of another kind"))
    columns = [
        *_NAMES,
        Column("bits per weight", lambda result: result.bits("linear_with_scales"), lambda n: f"{n:.2f}" if n else "-"),
        *metric_columns(map(parse_metric, names), lambda result: {**others, **result.metrics}),
    ]
    grid = table(columns, done, links=[links[result.cell.name] for result in done])
    about = ["With 95 % intervals, as in quantdrift study results. Click on a heading to sort."]
    return Section(name="results", title="Results", about=about, grids=[grid])


def _missing(folder: StudyFolder, missing: Sequence[Result]) -> Section:
    why = Column("why", lambda result: folder.failure(result.cell), lambda it: it.reason if it else "", kind="words")
    columns = [*_NAMES, Column("state", "state", kind="words"), why]
    return Section(name="missing", title="Not measured", grids=[table(columns, missing)])
