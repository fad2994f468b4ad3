"""The paper's tables and figures from studies, joined, as LaTeX, JSON and PDF.

Each table lies in a file of its own, tables/NAME.tex, and the charts in figures/. `all.tex` shows all of them and
compiles as it is; `tables.json` has the values. A table that the studies do not support is left out, and why is said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import check_writable, write_text
from quantdrift.cli.options import argument, option, prints
from quantdrift.metrics import parse_metric
from quantdrift.report.figures import Figure, separation_histogram, write_pictures
from quantdrift.report.study_figures import change_rates
from quantdrift.show.output import Output
from quantdrift.study.folder import StudyFolder, open_study
from quantdrift.study.results import Result
from quantdrift_paper import allocation, damage
from quantdrift_paper.capture import METRICS, Capture, read_capture, verdict
from quantdrift_paper.cells import ANY, RETRIEVAL, RunCell, by, each, mean_of, only, run_cells, usual
from quantdrift_paper.figures import capture_chart, law_chart
from quantdrift_paper.latex import Column, Row, Table, escaped, lines_of
from quantdrift_paper.law import LEAST_RUNS, law_runs
from quantdrift_rag.answers import Rag

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {**vars(damage), **vars(allocation)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a table of the paper is made; see tables.yaml.

    Attributes:
        said: what stands there.
        models: of the paper's table, by which notes say what is not here.
    """

    said: Mapping[str, Any]
    models: Sequence[str]

    @property
    def title(self) -> str:
        """What it shows."""
        return str(self.said["title"])

    def made(self, source: Any) -> Table | str:
        """The table of studies, or what they lack."""
        rows, columns = list(self._rows(source)), self._columns(source)
        lines = lines_of(rows, columns) if columns else []
        if not lines:
            return str(self.said["needs"])
        here = each(only(source.cells, family=(*self.said["families"],)), "model")
        notes = {
            "Not of the paper": [name for name in here if name not in self.models],
            "Of the paper's models not here": [name for name in self.models if name not in here],
        }
        return Table(
            labels=self.said["labels"],
            columns=columns,
            lines=lines,
            about=re.sub(r"\{(\w+)\}", lambda found: self._word(found[1], source, rows), self.said["about"]),
            notes=[*self.said.get("notes", ()), *(f"{what}: {', '.join(n)}." for what, n in notes.items() if n)],
            best=self.said.get("best"),
        )

    def _rows(self, source: Any) -> Iterable[Row]:
        rest = _facts(self.said["rows"])
        made = rest.pop("made", None)
        rows: Iterable[Row] = _FUNCTIONS[made](source, **rest) if made else by(source.cells, rest.pop("by"), **rest)
        return rows

    def _columns(self, source: Any) -> list[Column]:
        said = self.said["columns"]
        if isinstance(said, list):
            return [_column(column) for column in said]
        rest = _facts(said)
        made, of = rest.pop("made"), rest.pop("of", None)
        if of is None:
            columns: list[Column] = _FUNCTIONS[made](source, **rest)
            return columns
        models = _FUNCTIONS[made](source, **rest)
        return [_column(column, model) for model in models for column in of]

    def _word(self, word: str, source: Any, rows: Sequence[Row]) -> str:
        """What stands for a word in braces."""
        if word == "over":
            names = each(usual(source.cells, family=(*self.said["families"],), quantizer=ANY), "data")
            return f"Mean over {len(names)} {'corpus' if len(names) == 1 else 'corpora'} ({', '.join(names)})."
        return str(_FUNCTIONS[word](source, rows))


_DEFAULTS: tuple[Any, ...] = (".1%", {})
"""Of the form and the facts of a column."""


def _column(said: Sequence[Any], model: str | None = None) -> Column:
    head, value, form, facts = (*said, *_DEFAULTS[len(said) - 2 :])
    heads, more = (head,) if isinstance(head, str) else tuple(head), _facts(facts)
    if model is not None:
        heads, more = tuple(filter(None, (escaped(model), *heads))), {**more, "model": model}
    if not value.endswith("()"):
        return Column(heads, mean_of(value, **more), form)
    function = _FUNCTIONS[value.removesuffix("()")]
    return Column(heads, lambda row: function(row, **more), form)


def _facts(said: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as code has them: several values in a tuple."""
    return {
        name: ANY if value == "any" else tuple(value) if isinstance(value, list) and name != "of" else value
        for name, value in said.items()
    }


_CONTENT = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
_LATEX = _CONTENT["latex"]
PLANS = {
    name: Plan(said=said, models=[model for group in said["models"] for model in _CONTENT["models"][group]])
    for name, said in _CONTENT["tables"].items()
}
"""Every table of the paper by its file's name."""
FIGURES = ("criteria", "law", "sephist", "quantizers")
"""The paper's figures; its teaser is a drawing."""


@dataclass(kw_only=True)
class Source:
    """What tables are made of: studies that are joined."""

    folders: Sequence[StudyFolder]

    @cached_property
    def cells(self) -> list[RunCell]:
        """The finished runs."""
        return run_cells(self.folders)

    @cached_property
    def capture(self) -> Capture:
        """What the capture studies among them say; nothing, where there is none."""
        studies = [folder for folder in self.folders if folder.record.capture is not None]
        return read_capture(studies, [parse_metric(name) for name in METRICS])

    @cached_property
    def rag(self) -> Rag | None:
        """Answers behind a search, where a study has some."""
        return allocation.rag_of(self.folders)

    def tables(self) -> tuple[dict[str, Table], dict[str, str]]:
        """The paper's tables that the studies support, by name; and why the others are not."""
        made = {name: plan.made(self) for name, plan in PLANS.items()}
        supported = {name: table for name, table in made.items() if isinstance(table, Table)}
        return supported, {name: why for name, why in made.items() if isinstance(why, str)}

    def figures(self) -> tuple[list[Figure], dict[str, str]]:
        """The paper's figures that the studies support, and why the others are not."""
        whole = [cell for cell in self.cells if cell.evidence.exact]
        plain = [cell.evidence for cell in usual(whole, bits=4)]
        results = [
            Result(cell=cell.cell, state="done", run=cell.run, metrics={"flip@1": cell.estimate("flip@1")})
            for cell in whole
            if cell.facts["family"] in RETRIEVAL and cell.facts["whole"] and cell.facts["criterion"] is None
        ]
        criteria = allocation.captures(self.capture)
        names = {cell.run.path: cell.model for cell in whole}
        figures: dict[str, Figure | str] = {
            "criteria": capture_chart(criteria, allocation.CRITERIA, 3.5)
            if criteria
            else str(PLANS["alloc_nograd"].said["needs"]),
            "law": f"it takes {LEAST_RUNS} runs or more",
            "sephist": replace(separation_histogram(plain), name="sephist") if plain else "no run at W4-g128-rtn",
            "quantizers": replace(change_rates(results), name="quantizers") if results else "no search",
        }
        if len(whole) >= LEAST_RUNS:
            figures["law"] = law_chart(law_runs([cell.run for cell in whole]), {}, names)
        made = [figure for figure in figures.values() if isinstance(figure, Figure)]
        return made, {name: figure for name, figure in figures.items() if isinstance(figure, str)}


def write_paper(folders: Sequence[StudyFolder], place: Path) -> tuple[list[Path], dict[str, str], str | None]:
    """Write all that studies support into a folder.

    Returns:
        The files; by name why a table or figure of the paper is not there; whether the paper's claim on allocation is
        seen, None where it cannot be.

    Raises:
        QuantDriftError: the studies have no finished run.
        RunError: a file cannot be written.
    """
    source = Source(folders=folders)
    made, left_out = source.tables()
    if not made:
        where = ", ".join(str(folder.path) for folder in folders)
        raise QuantDriftError(f"{where} has no run that a table of the paper is made of; see quantdrift study status")
    figures, gone = source.figures()
    claim = verdict(source.capture, allocation.points_of(source.capture, quantizer=None))
    content = {f"tables/{name}.tex": table.tabular() for name, table in made.items()}
    content["tables.json"] = json.dumps({name: table.to_json() for name, table in made.items()}, indent=1)
    content["all.tex"] = _document(folders, made, figures, claim)
    for name, text in content.items():
        write_text(place / name, text, what="the tables")
    pictures = write_pictures(figures, place / "figures", "pdf")
    return [*pictures, *(place / name for name in content)], {**left_out, **gone}, claim


def _document(
    folders: Sequence[StudyFolder], made: Mapping[str, Table], figures: Sequence[Figure], claim: str | None
) -> str:
    names = ", ".join(escaped(folder.path.name) for folder in folders)
    parts = [_LATEX["head"].replace("STUDIES", names), escaped(claim or "")]
    for name, table in made.items():
        said = {"TITLE": escaped(PLANS[name].title), "ABOUT": escaped(table.about), "LABEL": name.replace("_", "-")}
        parts.append(_filled("table", {**said, "NAME": name}))
    for figure in figures:
        said = {"TITLE": escaped(figure.title), "ABOUT": escaped(figure.caption), "NAME": figure.name}
        parts.append(_filled("figure", said))
    return "\n".join([*parts, r"\end{document}", ""])


def _filled(part: str, said: Mapping[str, str]) -> str:
    return re.sub("|".join(said), lambda word: said[word[0]], _LATEX[part])


# --- the command ----------------------------------------------------------------------------------


@prints()
def command(
    *,
    studies: list[Path] = argument("STUDY...: Folders of studies, whose runs are joined."),
    out: Path = option("-o --out FOLDER: Where the tables and figures go.", default=Path("paper")),
) -> Output:
    """Write the paper's tables as LaTeX and its charts as PDF, as far as studies have them."""
    folders = [open_study(study) for study in studies]
    check_writable(out / "table", what="the tables")
    written, left_out, claim = write_paper(folders, out)
    made = {kind: [file.stem for file in written if file.parent.name == kind] for kind in ("tables", "figures")}
    given = {name for names in made.values() for name in names}
    lines = [] if claim is None else [claim]
    lines += [f"{kind}: {', '.join(names)}" for kind, names in made.items() if names]
    shows = dict.fromkeys(name for folder in folders for name in folder.record.shows)
    missed = {name: left_out.get(name) or "the paper has no table of this name" for name in shows if name not in given}
    if missed:
        lines.append("not given: " + "; ".join(f"{name} ({why})" for name, why in missed.items()))
    elif not shows:
        lines.append(
            f"{len(left_out)} other tables and figures of the paper need other runs; quantdrift list suites says which "
            "suite is for which"
        )
    return Output(lines=lines, next=[f"\nwritten: {len(written)} files in {out}; {written[-1]} shows all"])
