"""`quantdrift show`: the changed inputs of a finished run with their texts, without torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from quantdrift.cli.tables import console, print_markdown
from quantdrift.display import clean, print_json, prose, say, shorten, shown
from quantdrift.errors import DataError, QuantDriftError
from quantdrift.finished.diff import KINDS, Changed, changed_inputs
from quantdrift.finished.texts import Texts, read_texts
from quantdrift.records import write_text
from quantdrift.runs import Run, classifies, read_run

FIRST = 10
"""Inputs that people are shown if they do not say how many."""
_TEXT = 240
"""Characters of a text on the screen."""
_CELL = 32_000
"""Of a cell in CSV; a spreadsheet takes 32,767."""
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""What a spreadsheet takes for the beginning of a formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """What is asked for.

    Attributes:
        data: where the texts are, a folder.
        task: likewise, a built-in task.
        kind: one of KINDS, or all.
        k: how many of the first ranks are looked at, as a set.
        n: how many inputs; None for as many as fit the format.
        everything: all of them.
        format: "table", "json", "markdown" or "csv".
        out: file for CSV; None for standard output.
    """

    data: Path | None
    task: str | None
    kind: str
    k: int
    n: int | None
    everything: bool
    format: str
    out: Path | None


def show_command(path: Path, asked: ShowOptions) -> None:
    """Print the changed inputs, the worst first.

    Args:
        path: the run folder.
        asked: the options.

    Raises:
        QuantDriftError: the run or the data cannot be read, or an option does not fit the run.
    """
    if asked.kind not in {*KINDS, "all"}:
        raise QuantDriftError(f"--kind {asked.kind}: expected {', '.join(KINDS)} or all")
    run = read_run(path)
    evidence = run.evidence()
    if asked.kind != "all" and evidence.judgements is None:
        raise DataError(f"--kind {asked.kind} needs relevance labels, and {run.path} has none; leave it out")
    every = changed_inputs(evidence, asked.k)
    wanted = [one for one in every if asked.kind in {one.kind, "all"}]
    n = asked.n if asked.n is not None else len(wanted) if asked.format == "csv" else FIRST
    listed = wanted if asked.everything else wanted[:n]
    texts = read_texts(run, data=asked.data, task=asked.task)
    found = _Found(run=run, k=asked.k, n_inputs=evidence.n_inputs, every=every, listed=listed, texts=texts)
    if asked.format == "json":
        print_json(found.to_json())
    elif asked.format == "csv":
        content = _csv(found)
        if asked.out is None:
            say(content.removesuffix("\n"))
        else:
            write_text(asked.out, content, what="the changed inputs")
    elif asked.format == "markdown":
        _print_markdown(found)
    else:
        _print(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What is shown: `listed` of `every` changed input of the run."""

    run: Run
    k: int
    n_inputs: int
    every: Sequence[Changed]
    listed: Sequence[Changed]
    texts: Texts

    @property
    def counts(self) -> dict[str, int]:
        """Changed inputs by kind; empty without labels."""
        kinds = [one.kind for one in self.every]
        return {} if set(kinds) <= {None} else {kind: kinds.count(kind) for kind in KINDS}

    @property
    def title(self) -> str:
        record = self.run.record
        what = "another class" if classifies(record) else "another first answer"
        if self.k > 1:
            what = f"other first {self.k}"
        parts = ", ".join(f"{n:,} {kind}" for kind, n in self.counts.items())
        return (
            f"{shown(record['spec'])} on {shown(record['data']['name'])}: "
            f"{len(self.every):,} of {self.n_inputs:,} inputs have {what}" + (f" ({parts})" if parts else "")
        )

    @property
    def lines(self) -> list[str]:
        """What is said below."""
        told = [f"{self.texts.told[0].upper()}{clean(self.texts.told[1:])}"]
        if 0 < len(self.listed) < len(self.every):
            told.insert(0, f"{len(self.listed):,} of {len(self.every):,} are shown; --all shows all")
        return told if self.every else []

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.run.path),
            "spec": self.run.record["spec"],
            "k": self.k,
            "n_inputs": self.n_inputs,
            "n_changed": len(self.every),
            "kinds": self.counts,
            "changed": [
                {
                    **one.to_json(),
                    "text": self.texts.inputs.get(one.input_id),
                    "text_before": self.texts.item(one.input_id, one.before),
                    "text_after": self.texts.item(one.input_id, one.after),
                }
                for one in self.listed
            ],
            "texts": self.texts.told,
        }


def _print(found: _Found) -> None:
    out = console()
    out.print(Text(found.title, style="bold"), soft_wrap=True)
    for number, one in enumerate(found.listed, start=1):
        out.print()
        grid = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(2):
            grid.add_column(overflow="fold")
        grid.add_row(f"{number:,}", Text(f"{shown(one.input_id)}   {_told(one)}"))
        if text := found.texts.inputs.get(one.input_id):
            grid.add_row(Text("input", style="dim"), Text(shown(text, _TEXT)))
        for arm, line in (("reference", _answer(one, found, 0)), ("candidate", _answer(one, found, 1))):
            grid.add_row(Text(arm, style="dim"), Text(line))
        out.print(grid)
    for line in ["", *found.lines] if found.lines else []:
        out.print(line, soft_wrap=True)


def _told(one: Changed) -> str:
    parts: list[str] = [one.kind or "no label"]
    if one.lead is not None:
        parts.append(f"gap {one.lead:.4g}")
    if one.separation is not None:
        parts.append(f"separation {one.separation:.3g}")
    return ", ".join(parts)


def _answer(one: Changed, found: _Found, arm: int) -> str:
    """The answer of an arm on one line: id, score, whether it is right, and its text."""
    name, score, right, rank, other = (
        (one.before, one.score_before, one.was_right, one.rank_after, "candidate"),
        (one.after, one.score_after, one.is_right, one.rank_before, "reference"),
    )[arm]
    parts = [] if score is None else [f"{score:.4f}"]
    if right is not None:
        parts.append("relevant" if right else "not relevant")
    if rank is not None:
        parts.append(f"rank {rank:,} in the {other}")
    text = found.texts.item(one.input_id, name)
    return (
        shown(name, _TEXT)
        + (f" ({', '.join(parts)})" if parts else "")
        + ("" if text is None else f"  {shown(text, _TEXT)}")
    )


def _print_markdown(found: _Found) -> None:
    say(f"{prose(found.title)}\n")
    rows = []
    for one in found.listed:
        text = found.texts.inputs.get(one.input_id)
        rows.append(
            (
                shown(one.input_id) + ("" if text is None else f": {shown(text, _TEXT)}"),
                _answer(one, found, 0),
                _answer(one, found, 1),
                _told(one),
            )
        )
    if rows:
        print_markdown(("input", "reference", "candidate", "change"), rows)
    for line in ["", *found.lines] if found.lines else []:
        say(prose(line))


_COLUMNS = (
    "input_id",
    "kind",
    "input",
    "reference_id",
    "reference_text",
    "reference_score",
    "reference_relevant",
    "candidate_id",
    "candidate_text",
    "candidate_score",
    "candidate_relevant",
    "gap",
    "separation",
    "rank_of_candidate_in_reference",
    "rank_of_reference_in_candidate",
)


def _csv(found: _Found) -> str:
    """As CSV that no spreadsheet runs: text that begins like a formula gets an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(_rows(found))
    return out.getvalue()


def _rows(found: _Found) -> Iterator[list[str]]:
    for one in found.listed:
        yield [
            _safe(one.input_id),
            one.kind or "",
            _safe(found.texts.inputs.get(one.input_id)),
            _safe(one.before),
            _safe(found.texts.item(one.input_id, one.before)),
            _number(one.score_before),
            _word(one.was_right),
            _safe(one.after),
            _safe(found.texts.item(one.input_id, one.after)),
            _number(one.score_after),
            _word(one.is_right),
            _number(one.lead),
            _number(one.separation),
            _number(one.rank_before),
            _number(one.rank_after),
        ]


def _safe(text: str | None) -> str:
    line = shorten(clean(text or ""), _CELL)
    return f"'{line}" if line.startswith(_FORMULA) else line


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.7g}"


def _word(value: bool | None) -> str:
    return "" if value is None else str(value).lower()
