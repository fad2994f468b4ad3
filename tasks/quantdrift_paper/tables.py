"""The paper's tables and figures from studies, joined, as LaTeX, JSON and PDF.

Each table lies in a file of its own, tables/NAME.tex, and the charts in figures/. `all.tex` shows all of them and
compiles as it is; `tables.json` has the values. A table that the studies do not support is left out, and why is said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import write_text
from quantdrift.features.rag.answers import Rag
from quantdrift.metrics import parse_metric
from quantdrift.report.figures import Figure, separation_histogram, write_pictures
from quantdrift.report.study_figures import change_rates
from quantdrift.study.folder import StudyFolder
from quantdrift.study.results import Result
from quantdrift_paper import allocation
from quantdrift_paper.capture import METRICS, Capture, read_capture
from quantdrift_paper.cells import RETRIEVAL, RunCell, run_cells, usual
from quantdrift_paper.figures import capture_chart, law_chart
from quantdrift_paper.latex import Table, escaped
from quantdrift_paper.law import LEAST_RUNS, law_runs
from quantdrift_paper.plans import PLANS

_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"
"""As wide as it is, or as the page."""
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
        studies = [folder for folder in self.folders if folder.capture is not None]
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
            if cell.facts["family"] in RETRIEVAL and cell.facts["whole"] and cell.scheme.criterion is None
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
    verdict = allocation.verdict(source.capture)
    content = {f"tables/{name}.tex": table.tabular() for name, table in made.items()}
    content["tables.json"] = json.dumps({name: table.to_json() for name, table in made.items()}, indent=1)
    content["all.tex"] = _document(folders, made, figures, verdict)
    for name, text in content.items():
        write_text(place / name, text, what="the tables")
    pictures = write_pictures(figures, place / "figures", "pdf")
    return [*pictures, *(place / name for name in content)], {**left_out, **gone}, verdict


def _document(
    folders: Sequence[StudyFolder], made: Mapping[str, Table], figures: Sequence[Figure], verdict: str | None
) -> str:
    parts = [
        r"\documentclass{article}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage{textcomp,booktabs,amsmath,amssymb,graphicx,multirow}",
        r"\usepackage[margin=2cm]{geometry}",
        r"\begin{document}",
        rf"% of {', '.join(escaped(folder.path.name) for folder in folders)}, by quantdrift_paper tables",
        escaped(verdict or ""),
    ]
    for name, table in made.items():
        parts += [
            r"\begin{table}[ht]\centering\footnotesize",
            rf"\caption{{\textbf{{{escaped(PLANS[name].title)}.}} {escaped(table.about)}}}",
            rf"\label{{tab:{name.replace('_', '-')}}}",
            rf"{_FIT}{{\input{{tables/{name}}}}}",
            r"\end{table}",
        ]
    for figure in figures:
        parts += [
            r"\begin{figure}[ht]\centering",
            rf"\includegraphics[width=0.9\linewidth]{{figures/{figure.name}.pdf}}",
            rf"\caption{{\textbf{{{escaped(figure.title)}.}} {escaped(figure.caption)}}}\label{{fig:{figure.name}}}",
            r"\end{figure}",
        ]
    return "\n".join([*parts, r"\end{document}", ""])
