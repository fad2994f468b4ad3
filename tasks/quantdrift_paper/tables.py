"""The paper's tables and figures from a study, as LaTeX and PDF.

Each table lies in a file of its own, tables/NAME.tex, and the charts in figures/. `all.tex` shows all of them and
compiles as it is. A table that a study does not support is left out, and why is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import write_text
from quantdrift.report.figures import Figure, separation_histogram, write_pictures
from quantdrift.report.study_figures import change_rates
from quantdrift.runs.identity import is_part
from quantdrift.study.folder import StudyFolder
from quantdrift.study.results import Result
from quantdrift_paper import rows as tables
from quantdrift_paper.capture_tables import capture_tables, criteria_figure
from quantdrift_paper.figures import law_chart
from quantdrift_paper.law import LEAST_RUNS, law_runs
from quantdrift_paper.rag_tables import FOLDER as RAG
from quantdrift_paper.rag_tables import rag_tables
from quantdrift_paper.rows import NO_W4, Cells, Table, escaped, plain_cells, run_cells

_FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"
"""As wide as it is, or as the page."""
_CAPTURE = "captured benefit is measured by a capture study (a block `capture` in study.yaml)"
_CONTENT: Mapping[str, tuple[str, Callable[[Cells], Table | str]]] = {
    "fragility": ("One backbone, read in two ways.", tables.fragility),
    "gold": ("What the mean does not show.", tables.gold),
    "certificate": ("The stability check on held-out inputs.", tables.certificate),
    "clip": ("A deployed retrieval system.", tables.system),
    "alloc_nograd": ("Allocation criteria under every quantizer.", lambda _: _CAPTURE),
    "alloc_clip": ("", lambda _: "alloc_nograd has the searches of a study"),
    "contrast": ("", lambda _: "embeddings read both ways are measured by quantdrift contrast"),
    "arch": ("The separation ratio orders models.", tables.arch),
    "crossencoder": ("A quantized cross-encoder rewrites the reranked order.", tables.reranker),
    "quantizers": ("Stronger quantizers reduce ranking damage.", tables.quantizers),
    "regime": ("Separation shows which configurations cross the threshold.", tables.regime),
    "alloc_absolute": ("Retrieval with each allocation, not as a share.", tables.absolute),
    "alloc_rag_gap": ("Answers with widths chosen by gap.", lambda _: ""),
    "alloc_rag_mse": ("Answers with widths chosen by reconstruction error.", lambda _: ""),
    "alloc_permodel": ("Capture per model.", lambda _: _CAPTURE),
    "routing_sweep": ("Routing by score and by threshold.", tables.routing),
    "granularity": ("A finer grid helps both task families.", tables.granularity),
    "rag": ("Quantizing the retriever changes answers.", lambda _: ""),
    "topk": ("Below the first rank little is protected.", tables.topk),
    "accrank": ("Accuracy damage against ranking damage.", tables.accuracy_rank),
    "harm": ("What a flip costs, by separation.", tables.harm),
    "corpus": ("What the size of the corpus does.", tables.corpus),
    "baselines": ("The stability check against confidence scores.", tables.baselines),
    "certificate_tau": ("Thresholds that the stability check keeps.", tables.tau),
    "pflip": ("Predicted and measured flip rates by contenders.", tables.predicted),
    "clip_mechanism": ("Contender set and separation of a search.", tables.mechanism),
    "clip_regime": ("Separation and change rate of a search under each quantizer.", tables.search_regime),
    "clip_corpus": ("What the size of the index of images does.", partial(tables.corpus, images=True)),
    "clip_alloc_main": ("Allocation under each quantizer.", lambda _: _CAPTURE),
    "clip_alloc_absolute": ("", lambda _: "alloc_absolute has the searches of this study"),
    "clip_alloc_permodel": ("", lambda _: "alloc_permodel has the searches of a study"),
    "alloc_budget": ("Capture at every budget.", lambda _: _CAPTURE),
    "alloc_seed": ("Agreement across calibration draws.", lambda _: _CAPTURE),
    "alloc_calib": ("Capture by calibration size.", lambda _: _CAPTURE),
    "activation": ("Eight-bit activations.", tables.activation),
    "activation_quantizers": ("Eight-bit activations under every quantizer.", tables.activation_quantizers),
    "alloc_activation_quantizers": ("Allocation criteria with eight-bit activations.", lambda _: _CAPTURE),
}
"""Every table of the paper by its file's name: what it shows, and how it is made or why not."""


def tables_of(folder: StudyFolder) -> tuple[dict[str, Table], dict[str, str]]:
    """The paper's tables that a study supports, by name; and why the others are not."""
    cells = run_cells(folder)
    captured = {} if folder.capture is None or not cells else capture_tables(folder)
    captured |= rag_tables(folder.path / RAG)
    made = {name: captured.get(name) or make(cells) for name, (_, make) in _CONTENT.items()}
    supported = {name: table for name, table in made.items() if isinstance(table, Table)}
    return supported, {name: why for name, why in made.items() if isinstance(why, str)}


def figures_of(folder: StudyFolder) -> tuple[list[Figure], dict[str, str]]:
    """The paper's figures that a study supports, and why the others are not."""
    cells = [cell for cell in run_cells(folder) if cell.evidence.exact and not is_part(cell.run.record)]
    usual = [cell.evidence for cell in plain_cells(cells, 4)]
    runs = {cell.run.path for cell in cells if cell.kind == "search" and cell.scheme.criterion is None}
    results = [
        Result(cell=cell, state="done", run=run, metrics={"flip@1": run["flip@1"]})
        for cell in folder.cells
        if (run := folder.run(cell)) is not None and run.path in runs
    ]
    law: Figure | str = f"it takes {LEAST_RUNS} runs or more"
    if len(cells) >= LEAST_RUNS:
        law = law_chart(law_runs([cell.run for cell in cells]), {}, {cell.run.path: cell.model for cell in cells})
    figures: dict[str, Figure | str] = {
        "teaser": "it is a drawing",
        "criteria": _CAPTURE if folder.capture is None else criteria_figure(folder),
        "law": law,
        "sephist": replace(separation_histogram(usual), name="sephist") if usual else NO_W4,
        "quantizers": replace(change_rates(results), name="quantizers") if results else "no search",
    }
    made = [figure for figure in figures.values() if isinstance(figure, Figure)]
    return made, {name: figure for name, figure in figures.items() if isinstance(figure, str)}


def write_paper(folder: StudyFolder, place: Path) -> tuple[list[Path], dict[str, str]]:
    """Write all that a study supports into a folder.

    Returns:
        The files, and by name why a table or figure of the paper is not there.

    Raises:
        QuantDriftError: the study has no finished run.
        RunError: a file cannot be written.
    """
    made, left_out = tables_of(folder)
    if not made:
        raise QuantDriftError(
            f"{folder.path} has no run that a table of the paper is made of; see quantdrift study status"
        )
    figures, gone = figures_of(folder)
    written = []
    for name, table in made.items():
        written.append(place / "tables" / f"{name}.tex")
        write_text(written[-1], table.tabular(), what="the table")
    written += write_pictures(figures, place / "figures", "pdf")
    written.append(place / "all.tex")
    write_text(written[-1], _document(folder, made, figures), what="the document")
    return written, {**left_out, **{f"figure {name}": why for name, why in gone.items()}}


def _document(folder: StudyFolder, made: Mapping[str, Table], figures: Sequence[Figure]) -> str:
    parts = [
        r"\documentclass{article}",
        r"\usepackage[utf8]{inputenc}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage{textcomp,booktabs,amsmath,amssymb,graphicx,multirow}",
        r"\usepackage[margin=2cm]{geometry}",
        r"\begin{document}",
        rf"% of the study {escaped(folder.path.name)}, by quantdrift_paper tables",
    ]
    for name, table in made.items():
        caption = rf"\textbf{{{escaped(_CONTENT[name][0])}}} {_prose(table.about)}"
        parts += [
            r"\begin{table}[ht]\centering\footnotesize",
            rf"\caption{{{caption}}}\label{{tab:{name.replace('_', '-')}}}",
            rf"{_FIT}{{\input{{tables/{name}}}}}",
            r"\end{table}",
        ]
    for figure in figures:
        parts += [
            r"\begin{figure}[ht]\centering",
            rf"\includegraphics[width=0.9\linewidth]{{figures/{figure.name}.pdf}}",
            rf"\caption{{\textbf{{{escaped(figure.title)}.}} {_prose(figure.caption)}}}\label{{fig:{figure.name}}}",
            r"\end{figure}",
        ]
    return "\n".join([*parts, r"\end{document}", ""])


def _prose(text: str) -> str:
    return r"$\pm$".join(escaped(part) for part in text.split("±"))
