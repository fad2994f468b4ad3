"""The page of a study: which schemes are safe and which are not, the map of all runs, and every run behind it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from quantdrift.base.display import clean, shorten
from quantdrift.base.text import counted, percent, some
from quantdrift.evidence.record import Evidence
from quantdrift.finished.texts import Texts, read_texts
from quantdrift.metrics import parse_metric
from quantdrift.metrics.numbers import cell as shown_cell
from quantdrift.report.figures import (
    Curve,
    Figure,
    coverage_chart,
    coverage_of,
    layers,
    routing_chart,
    routing_of,
    short,
)
from quantdrift.report.page import Number, Page, Section, Step
from quantdrift.report.study_figures import by_width, change_rates, heat_map, pareto
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import classifies
from quantdrift.runs.words import Tone, verdict
from quantdrift.show.tables import Grid
from quantdrift.study.folder import StudyFolder
from quantdrift.study.results import Result, metrics_of

WORST = 5
"""Changed inputs that are listed of every run."""
_TEXT = 140
"""Characters of a text in these lists."""
_MOST_ALLOCATIONS = 24
_CELL_METRICS = (
    "flip@1", "noise_floor", "gold_lost@1", "change.ndcg@10", "change.accuracy", "separation", "at_risk",
)  # fmt: skip
_TONES: tuple[Tone, ...] = ("bad", "plain", "warn", "good")
"""From the worst on: what a scheme is called by is its worst run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the page says of one finished run."""

    result: Result
    run: Run
    tone: Tone
    sentence: str
    part: Section
    coverage: Curve
    routing: Curve


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
        known = [name for name in _CELL_METRICS if classifies(run.record) or name != "change.accuracy"]
        known = [name for name in known if not classifies(run.record) or name != "change.ndcg@10"]
        metrics = metrics_of(evidence, [parse_metric(name) for name in known])
        results.append(Result(cell=cell, state="done", run=run, metrics=metrics))
        seen.append(_seen(results[-1], run, evidence, links[cell.name], _texts(run, texts)))
    open_at = {name: f"#{link}" for name, link in links.items()}
    schemes, told = _tones(seen), Counter(one.tone for one in seen)
    safe = [scheme for scheme, tone in schemes.items() if tone == "good"]
    others = [scheme for scheme, tone in schemes.items() if tone != "bad"]
    missing = [one for one in results if one.run is None]
    models, data = (
        list(dict.fromkeys(names))
        for names in ((one.model for one in folder.cells), (one.data.called for one in folder.cells))
    )
    return Page(
        kind="study",
        title=f"{some(models)} on {some(data)}",
        about=f"{counted(len(seen), 'run')} of {len(folder.cells):,}, {counted(len(schemes), 'scheme')}",
        word=f"{len(safe)} of {counted(len(schemes), 'scheme')} safe" if seen else "nothing measured",
        tone="plain" if not seen else "good" if len(safe) == len(schemes) else "warn" if others else "bad",
        verdict=_verdict(schemes, seen),
        words=list(_words(schemes, seen)),
        warnings=list(_missing_words(missing)),
        numbers=list(_numbers(results, told)),
        steps=_steps(folder.path, missing),
        sections=[
            Section(
                name="map",
                title="Every run at a glance",
                about=["Choose a square to see the run below."],
                figures=[heat_map(results, open_at)],
            ),
            Section(name="run", title="The run chosen", parts=[one.part for one in seen]),
            *(_charts(results, seen, links)),
            _table(results, links),
            *([_missing(folder, missing)] if missing else []),
        ],
    )


def _texts(run: Run, known: dict[object, Texts]) -> Texts:
    """The texts of a run, read once for each corpus."""
    data = run.record["data"]
    key = (data.get("name"), data.get("path"), data.get("fingerprint"), data.get("split"))
    if key not in known:
        known[key] = read_texts(run)
    return known[key]


def _seen(result: Result, run: Run, evidence: Evidence, link: str, texts: Texts) -> _Seen:
    found, named = verdict(run.record), {"model": result.cell.model, "scheme": short(result.parsed)}
    changed = changed_inputs(evidence, 1)
    metrics = [
        [name, shown_cell(parse_metric(name), estimate), f"{estimate.n:,}"] for name, estimate in result.metrics.items()
    ]
    worst = [
        [
            shorten(clean(one.input_id), _TEXT),
            _told(texts.inputs.get(one.input_id)),
            _answer(one.before, one.was_right, texts.item(one.input_id, one.before)),
            _answer(one.after, one.is_right, texts.item(one.input_id, one.after)),
            "-" if one.separation is None else f"{one.separation:.3g}",
        ]
        for one in changed[:WORST]
    ]
    words = {"says", "first answer", "first answer now"}
    more = f"{len(changed) - WORST:,} more changed. " if len(changed) > WORST else ""
    part = Section(
        name=link,
        title=f"{named['model']} {named['scheme']} on {result.cell.data.called}",
        about=[found.sentence],
        grids=[
            Grid(head=["metric", "value (95 % interval)", "inputs"], rows=metrics),
            Grid(
                title="Changed inputs, the worst first",
                head=["input", "says", "first answer", "first answer now", "separation"],
                rows=worst,
                words=words,
                lines=[f"{more}All of them, with both rankings: quantdrift report {shlex.quote(str(run.path))}"],
            ),
        ],
    )
    return _Seen(
        result=result,
        run=run,
        tone=found.tone,
        sentence=found.sentence,
        part=part,
        coverage=Curve(points=coverage_of(evidence), **named),
        routing=Curve(points=routing_of(evidence) if evidence.exact else (), **named),
    )


def _told(text: str | None) -> str:
    return "" if text is None else shorten(clean(text[: 20 * _TEXT]), _TEXT)


def _answer(name: str | None, right: bool | None, text: str | None) -> str:
    sign = "" if right is None else "relevant: " if right else "not relevant: "
    return sign + ": ".join(part for part in (shorten(clean(name or "-"), _TEXT), _told(text)) if part)


# --- the first screen -----------------------------------------------------------------------------


def _tones(seen: Sequence[_Seen]) -> dict[str, Tone]:
    """Every scheme by its worst run."""
    found: dict[str, Tone] = {}
    for one in by_width([each.result for each in seen]):
        found.setdefault(short(one.parsed), "good")
    for each in seen:
        scheme = short(each.result.parsed)
        if each.tone in _TONES:
            found[scheme] = min(found[scheme], each.tone, key=_TONES.index)
    return found


def _verdict(schemes: Mapping[str, Tone], seen: Sequence[_Seen]) -> str:
    if not seen:
        return "No run of this study is finished."
    worse = [scheme for scheme, tone in schemes.items() if tone == "bad"]
    safe = [scheme for scheme, tone in schemes.items() if tone == "good"]
    if len(safe) == len(schemes):
        return "Every scheme is safe to deploy, on every model and corpus."
    if not worse:
        return "Schemes change first answers, or too few inputs tell, and none is shown to cost quality."
    return f"{counted(len(worse), 'scheme')} of {len(schemes)} cost{'s' if len(worse) == 1 else ''} quality somewhere."


def _words(schemes: Mapping[str, Tone], seen: Sequence[_Seen]) -> Iterator[str]:
    """Which schemes are safe, which not, and by how much."""
    flips: dict[str, list[float]] = {}
    for one in seen:
        if (value := one.result.metrics["flip@1"].value) is not None:
            flips.setdefault(short(one.result.parsed), []).append(value)

    def listed(tone: Tone) -> str:
        found = []
        for scheme in (name for name, its in schemes.items() if its == tone):
            rates = flips.get(scheme) or [0.0]
            low, high = f"{100 * min(rates):.1f}", f"{100 * max(rates):.1f}"
            found.append(f"{scheme} ({low if low == high else f'{low} to {high}'} %)")
        return some(found, 20)

    heads: Mapping[Tone, str] = {
        "good": "Safe to deploy, by every run",
        "warn": "Top-1 changes, and no loss that is shown",
        "plain": "Too few inputs to tell, in at least one run",
        "bad": "A loss that is shown in at least one run",
    }
    for tone, head in heads.items():
        if names := listed(tone):
            yield f"{head}: {names}."
    if seen:
        yield "In brackets: the share of first answers that changed, over models and corpora."


def _numbers(results: Sequence[Result], told: Counter[Tone]) -> Iterator[Number]:
    def values(name: str) -> list[tuple[float, Result]]:
        found = [(one.metrics[name].value, one) for one in results if name in one.metrics]
        return [(value, one) for value, one in found if value is not None and isfinite(value)]

    def named(one: Result) -> str:
        return f"{one.cell.model} {short(one.parsed)} on {one.cell.data.called}"

    done = sum(one.run is not None for one in results)
    yield Number(label="runs", value=f"{done:,}", note=f"of {len(results):,} in the study")
    if floors := values("noise_floor"):
        note = "most that full precision changes when it is run twice"
        yield Number(label="noise floor", value=percent(max(floors, key=lambda each: each[0])[0]), note=note)
    if flips := values("flip@1"):
        for label, pick in (("fewest top-1 changes", min), ("most top-1 changes", max)):
            value, one = pick(flips, key=lambda each: each[0])
            yield Number(label=label, value=percent(value), note=named(one))
    if lost := values("gold_lost@1"):
        value, one = max(lost, key=lambda each: each[0])
        yield Number(label="most relevant first answers lost", value=percent(value), note=named(one))
    if done:
        yield Number(label="runs with a loss that is shown", value=f"{told['bad']:,}", note=f"of {done:,}")


def _steps(path: Path, missing: Sequence[Result]) -> list[Step]:
    place = shlex.quote(str(path))
    steps = []
    if any(one.state == "failed" for one in missing):
        steps.append(
            Step(
                text="Try the failed runs again, with the study's own file.",
                command="quantdrift study retry STUDY.yaml",
            )
        )
    steps.append(
        Step(
            text="Compare every scheme with the first one over all corpora.",
            command=f"quantdrift study results {place} --pooled flip@1",
        )
    )
    return steps


def _missing_words(missing: Sequence[Result]) -> Iterator[str]:
    for state, n in Counter(one.state for one in missing).items():
        names = [f"{one.cell.spec} on {one.cell.data.called}" for one in missing if one.state == state]
        yield f"{counted(n, 'run')} of the study {'is' if n == 1 else 'are'} {state}: {some(names)}."


# --- below ----------------------------------------------------------------------------------------


def _charts(results: Sequence[Result], seen: Sequence[_Seen], links: Mapping[str, str]) -> Iterator[Section]:
    exact = [one for one in seen if one.routing.points]
    if seen:
        yield Section(name="rates", title="Quantizers and widths", figures=[change_rates(results)])
        yield Section(name="bits", title="Bits against damage", figures=[pareto(results)])
    widths = {
        f"{one.result.cell.model} {short(one.result.parsed)} on {one.result.cell.data.called}": found
        for one in seen
        if (found := (one.run.record.get("quantization") or {}).get("allocation")) and found.get("widths")
    }
    if widths:
        some_widths = dict(list(widths.items())[:_MOST_ALLOCATIONS])
        yield Section(name="layers", title="Bits of the layers", figures=[layers(some_widths)])
    if exact:
        yield Section(
            name="trust",
            title="Answers that can be trusted, or asked again",
            about=["Each line is a scheme, the mean over the corpora."],
            figures=_trust(exact),
        )


def _trust(seen: Sequence[_Seen]) -> list[Figure]:
    groups: dict[tuple[str, str], list[_Seen]] = {}
    for one in by_width([each.result for each in seen]):
        groups[one.cell.model, short(one.parsed)] = []
    for each in seen:
        groups[each.result.cell.model, short(each.result.parsed)].append(each)
    return [
        coverage_chart([Curve.mean([one.coverage for one in group]) for group in groups.values()]),
        routing_chart([Curve.mean([one.routing for one in group]) for group in groups.values()]),
    ]


def _table(results: Sequence[Result], links: Mapping[str, str]) -> Section:
    done = [one for one in results if one.run is not None]
    names = [name for name in _CELL_METRICS if any(name in one.metrics for one in done)]
    rows = []
    for one in done:
        bits = one.bits("linear_with_scales")
        cells = [shown_cell(parse_metric(name), one.metrics[name]) if name in one.metrics else "-" for name in names]
        rows.append(
            [
                f"{one.cell.model} {short(one.parsed)}",
                one.cell.data.called,
                "-" if bits is None else f"{bits:.2f}",
                *cells,
            ]
        )
    grid = Grid(
        head=["run", "data", "bits per weight", *names],
        rows=rows,
        words={"data"},
        links=[links[one.cell.name] for one in done],
    )
    about = ["With 95 % intervals. A click on a head sorts; the same numbers as of quantdrift study results."]
    return Section(name="results", title="Results", about=about, grids=[grid])


def _missing(folder: StudyFolder, missing: Sequence[Result]) -> Section:
    rows = []
    for one in missing:
        failed = folder.failure(one.cell)
        rows.append(
            [
                f"{one.cell.model} {short(one.parsed)}",
                one.cell.data.called,
                one.state,
                "" if failed is None else failed.reason,
            ]
        )
    grid = Grid(head=["run", "data", "state", "why"], rows=rows, words={"data", "state", "why"})
    return Section(name="missing", title="Not measured", grids=[grid])
