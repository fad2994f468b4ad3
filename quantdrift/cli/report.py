"""`quantdrift report`: a run, a study, or what a gate said, as a page for a browser, without torch."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import check_writable, write_text
from quantdrift.cli import FEATURES
from quantdrift.cli.options import TASK, argument, flag, option, prints
from quantdrift.report.figures import PictureForm, write_pictures
from quantdrift.report.page import Page, render
from quantdrift.show.output import Output

if TYPE_CHECKING:
    from quantdrift.study.folder import StudyFolder

_SUFFIXES, _MARKDOWN = {".html", ".htm"}, {".md", ".markdown"}


@prints()
def command(
    *,
    what: Path = argument(
        "RUN|STUDY|GATE: A run folder; the folder of a study; or the JSON file that quantdrift gate --report wrote."
    ),
    out: Path | None = option(
        "-o --out FILE: The page to write, report.html if not given; an earlier one is replaced."
    ),
    data: Path | None = option(
        "FOLDER: The data that the run was made of, for the texts, if they have moved or another program made the"
        " run; for a run of lm-eval, its samples_TASK_DATE.jsonl."
    ),
    task: str | None = option(TASK),
    md: bool = flag("--md: Markdown for a pull request or a README, in place of a page; printed, or written with -o."),
    png: Path | None = option("FOLDER: The charts as PNG, in place of a page."),
    svg: Path | None = option("FOLDER: The charts as SVG."),
    pdf: Path | None = option("FOLDER: The charts as PDF."),
    k: int = option("-k --k: An input has changed if the set of its first K answers did.", default=1, min=1),
) -> Output:
    """Write a report that anybody can open: one HTML file, which loads nothing else.

    It says first what changed, how bad that is and what to do. Below stand charts, every changed input with both
    rankings, and the metrics. Texts are in it if the data are where they were when the run was made, or with --data:
    whoever gets the file can read them.

    Of a study it says which schemes are safe, and has a map of all runs, in which every run can be opened.
    """
    places = {"png": png, "svg": svg, "pdf": pdf}
    asked = {form: place for form, place in places.items() if place is not None}
    if len(asked) + (out is not None) > 1 or (asked and md):
        raise QuantDriftError("expected one of -o, --md, --png, --svg and --pdf at a time; -o goes with --md")
    for form, place in asked.items():
        check_writable(place / "chart", what="the charts")
        page = _page(what, data=data, task=task, k=k)
        written = write_pictures(
            [figure for section in page.sections for figure in section.figures], place, cast(PictureForm, form)
        )
        return Output(next=[f"written: {len(written)} charts in {place}", *(f"  {figure.name}" for figure in written)])
    if md:
        return _markdown(_text(what, data=data, task=task, k=k), out)
    out = out or Path("report.html")
    if out.suffix.lower() not in _SUFFIXES:
        raise QuantDriftError(f"expected a file that ends in .html; got {str(out)!r}")
    check_writable(out, what="the report")
    html = render(_page(what, data=data, task=task, k=k))
    write_text(out, html, what="the report")
    return Output(next=[f"written: {out} ({len(html.encode()) / 1e6:.1f} MB); open it in a browser"])


def _text(what: Path, *, data: Path | None, task: str | None, k: int) -> str:
    from quantdrift.gate.output import markdown_text
    from quantdrift.gate.result import read_result
    from quantdrift.report.markdown import markdown_of

    page = _page(what, data=data, task=task, k=k)
    # a gate has words of its own, which CI shows too
    return markdown_text(read_result(what)) if page.kind == "gate" else markdown_of(page)


def _markdown(text: str, out: Path | None) -> Output:
    if out is None:
        return Output(text=text)
    if out.suffix.lower() not in _MARKDOWN:
        raise QuantDriftError(f"expected a file that ends in .md, for --md; got {str(out)!r}")
    write_text(out, text, what="the report")
    return Output(next=[f"written: {out}"])


def _study(what: Path) -> StudyFolder | None:
    """The study that lies in a folder, or whose study.json is named."""
    from quantdrift.study.folder import STUDY, open_study

    return open_study(what) if what.name == STUDY or (what / STUDY).is_file() else None


def _is_gate(what: Path) -> bool:
    from quantdrift.runs.folder import RECORD
    from quantdrift.study.folder import STUDY

    return what.is_file() and what.name not in {RECORD, STUDY}


def _page(what: Path, *, data: Path | None, task: str | None, k: int) -> Page:
    from quantdrift.gate.result import read_result
    from quantdrift.report import gate, run, study
    from quantdrift.runs.folder import read_run

    folder, is_gate = _study(what), _is_gate(what)
    if (folder is not None or is_gate) and (data or task or k > 1):
        holder = "a study knows its data" if folder else "the result of a gate holds what it shows"
        raise QuantDriftError(f"--data, --task and -k are for runs; {holder}")
    if folder is not None:
        page = study.page_of(folder)
        if folder.kind in FEATURES and FEATURES[folder.kind].page:
            return cast(Page, import_module(f"{FEATURES.module(folder.kind)}.page").on_study(page, folder))
        return page
    if is_gate:
        return gate.page_of(read_result(what))
    return run.page_of(read_run(what), data=data, task=task, k=k)
