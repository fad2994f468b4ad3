"""The page of a run: the verdict with what to do, every changed input, the gaps, and the metrics."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from quantdrift.base.text import counted
from quantdrift.compare.buckets import breakdown, range_words
from quantdrift.evidence.record import Evidence
from quantdrift.finished.texts import Texts, read_texts
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.metrics.numbers import has_value
from quantdrift.report.changes import changes_of
from quantdrift.report.figures import separation_histogram
from quantdrift.report.page import Number, Page, Section, Step
from quantdrift.runs import words
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.folder import Run
from quantdrift.runs.identity import answers, classifies, signature
from quantdrift.runs.verdict import Verdict, verdict
from quantdrift.show.changes import changed_columns
from quantdrift.show.run import figure_grid
from quantdrift.show.tables import Column, Grid, metric_columns, metric_grid, table

_RIGHT = {"top-1": "relevant", "class": "the right class", "answer": "right"}
WORST = 10
"""Changed inputs of the table for Markdown."""


def page_of(run: Run, *, data: Path | None = None, task: str | None = None, k: int = 1) -> Page:
    """The page of a run.

    Args:
        run: a finished run of any kind.
        data: the folder of its data, for texts; by default where it was when the run was made.
        task: a built-in task in place of a folder.
        k: an input has changed if the set of its first k answers did.

    Raises:
        RunError: the evidence is damaged, or fewer ranks are stored.
        DataError: `data` or `task` is not the data of the run.
    """
    record, evidence = run.record, run.evidence()
    judged, answer = verdict(record), answers(record)
    changed = changed_inputs(evidence, k)
    texts = read_texts(run, data=data, task=task) if changed else Texts(told="")
    what = f"set of first {k} answers" if k > 1 else answer
    reference, _, candidate = str(record["spec"]).partition(" vs ")
    arms = (reference, candidate) if candidate else ("full precision", reference.rpartition("@")[2])
    title = counted(len(changed), "changed input")
    listed = Section(
        name="changed",
        title=title,
        about=[f"Inputs with another {what}. Harmful changes come first, and among them the largest gap."],
        changed=changes_of(changed, arms=arms, right=_RIGHT[answer], texts=texts, evidence=evidence),
    )
    return Page(
        kind="run",
        title=f"{record['spec']} on {record['data']['name']}",
        about=" ".join(_lines(lambda record: [words.data_line(record)], record)),
        word=judged.word,
        tone=judged.tone,
        verdict=judged.sentences[0],
        words=[*judged.sentences[1:], *_lines(words.findings, record)],
        warnings=[*(record["data"].get("warnings") or ()), *_lines(words.left_alone, record)],
        numbers=list(_numbers(record)),
        steps=list(_steps(run, judged)),
        sections=[*([listed] if changed else []), _closeness(evidence), *_tables(record), _facts(run)],
        worst=table(
            changed_columns(texts, exact=evidence.exact, classes=answer != "top-1"),
            changed[:WORST],
            title=f"{min(WORST, len(changed))} of {title}, the worst first",
        )
        if changed
        else None,
    )


def _lines(lines_of: Callable[[Mapping[str, Any]], Iterable[str]], record: Mapping[str, Any]) -> list[str]:
    """Sentences on a record; none if the record of another program lacks their facts."""
    try:
        return list(lines_of(record))
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _numbers(record: Mapping[str, Any]) -> Iterator[Number]:
    for label, text, what in figure_grid(record).rows:
        value, _, interval = text.partition(" (")
        yield Number(label=label, value=value, note=f"{f'95 %: {interval[:-1]}, ' if interval else ''}of {what}")


def _steps(run: Run, judged: Verdict) -> Iterator[Step]:
    """Yield the advice of the verdict, then further commands that take this run."""
    record, place = run.record, shlex.quote(str(run.path))
    if judged.next:
        yield Step(text=judged.next, command=judged.command)
    if judged.tone in {"warn", "bad"}:
        yield Step(text="Find the answers that can be trusted, without labels.", command=f"quantdrift certify {place}")
        if classifies(record):
            text = "See what it brings to send unsure inputs to full precision."
            yield Step(text=text, command=f"quantdrift route {place}")
    if not record["data"].get("limit"):  # a quick try cannot be a baseline
        text = "Let CI notice when it gets worse: write the baseline now, and commit it."
        yield Step(text=text, command=f"quantdrift gate {place} --update")


# --- gap and separation -----------------------------------------------------------------------


def _closeness(evidence: Evidence) -> Section:
    """The histogram of the separation, and change rates in its buckets; by the gap where lists were cut short."""
    by = parse_metric("separation" if evidence.exact else "gap")
    metrics = [parse_metric(name) for name in ("flip@1", "harm", "benefit")]
    about = [
        "The separation is the reference's gap between its first two answers in units of twice epsilon, the largest "
        "change of any score. From 1 on the first answer cannot change."
        if evidence.exact
        else "The lists were cut short, so the separation is not known. The gap is the difference of the reference's "
        "first two scores."
    ]
    try:
        buckets = [bucket for bucket in breakdown([evidence], by=by, metrics=metrics) if bucket.n]
    except MetricError as error:
        return Section(name="closeness", title="How close answers were", about=[*about, f"{error}."])
    metrics = [metric for metric in metrics if any(has_value(bucket.estimates[str(metric)]) for bucket in buckets)]
    columns = [Column(str(by), "where", range_words), Column("inputs", "n", "{:,}".format)]
    columns += metric_columns(metrics, attrgetter("estimates"))
    return Section(
        name="closeness",
        title="How close answers were",
        about=about,
        figures=[separation_histogram([evidence])] if evidence.exact else [],
        grids=[table(columns, buckets)],
    )


# --- tables -----------------------------------------------------------------------------------


def _tables(record: Mapping[str, Any]) -> Iterator[Section]:
    """All metrics with their meanings."""
    if whole := words.estimates_of(record):
        grid = metric_grid(whole)
        yield Section(name="all-metrics", title="All metrics", grids=[grid.on_terminal or grid], folded=True)


def _facts(run: Run) -> Section:
    """The model, data, settings and versions of a run."""
    record = run.record

    def part(label: str, name: str) -> Iterator[tuple[str, str]]:
        facts = record.get(name)
        for key, value in facts.items() if isinstance(facts, Mapping) else ():
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                yield f"{label}: {key.replace('_', ' ')}", f"{value:,}" if isinstance(value, int) else str(value)

    finished = (record.get("times") or {}).get("finished")
    rows = [
        ("spec", str(record["spec"])),
        ("signature", signature(record)),
        *part("model", "model"),
        *(("weights", line) for line in _lines(lambda record: [words.weights_line(record)], record) if line),
        *(("candidate", line) for line in _lines(words.candidate_lines, record)),
        *part("data", "data"),
        *part("setting", "settings"),
        *part("version", "versions"),
        *([("measured", str(finished))] if finished else []),
        ("run folder", str(run.path)),
    ]
    grid = Grid(head=["what", "value"], rows=list(map(list, rows)), words={"value"})
    return Section(name="facts", title="Facts of the run", grids=[grid], folded=True)
