"""`quantdrift report`: show a run or a study as a page for a browser, without torch."""

from pathlib import Path
from typing import cast

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.records import check_writable, write_text
from quantdrift.cli.options import TASK, TEXTS, argument, flag, option, prints
from quantdrift.report import run, study
from quantdrift.report.figures import PictureForm, write_pictures
from quantdrift.report.markdown import markdown_of
from quantdrift.report.page import Page, render
from quantdrift.runs.folder import read_run
from quantdrift.show.output import Output
from quantdrift.study.folder import STUDY, open_study

_PAGE, _MARKDOWN = (".html", ".htm"), (".md", ".markdown")


@prints()
def command(
    *,
    what: Path = argument("RUN|STUDY: A run folder, or the folder of a study."),
    out: Path | None = option("-o --out FILE: The page to write, by default report.html; an earlier file is replaced."),
    data: Path | None = option(TEXTS),
    task: str | None = option(TASK),
    md: bool = flag("--md: Instead of a page, Markdown for a pull request or a README; printed, or written with -o."),
    png: Path | None = option("FOLDER: Instead of a page, the charts as PNG."),
    svg: Path | None = option("FOLDER: Instead of a page, the charts as SVG."),
    pdf: Path | None = option("FOLDER: Instead of a page, the charts as PDF."),
    k: int = option("-k --k: List the inputs whose set of first K answers changed.", default=1, min=1),
) -> Output:
    """Write a report that anybody can open: one HTML file, which loads nothing else.

    The page begins with what changed, how bad that is and what to do. Below are charts, every changed input with both
    rankings, and the metrics. The page contains texts of the data if these are where they were when the run was made,
    or with --data; whoever gets the file can read them.

    The page of a study shows which schemes are safe, and a map of all runs, in which you can open each run.

    For example: quantdrift report RUN -o page.html

    More: docs/guides/report.md
    """
    asked = {form: place for form, place in {"png": png, "svg": svg, "pdf": pdf}.items() if place is not None}
    if len(asked) + (out is not None) > 1 or (asked and md):
        raise QuantDriftError("expected one of -o, --md, --png, --svg and --pdf at a time; -o goes with --md")
    for place in asked.values():
        check_writable(place / "chart", what="the charts")
    suffixes, out = _MARKDOWN if md else _PAGE, out or (None if md or asked else Path("report.html"))
    if out is not None:
        if out.suffix.lower() not in suffixes:
            raise QuantDriftError(f"expected a file that ends in {suffixes[0]}; got {str(out)!r}")
        check_writable(out, what="the report")
    page = _page_of(what, data=data, task=task, k=k)
    for form, place in asked.items():
        figures = [figure for section in page.sections for figure in section.figures]
        written = write_pictures(figures, place, cast(PictureForm, form))
        return Output(next=[f"written: {len(written)} charts in {place}", *(f"  {figure.name}" for figure in written)])
    text = markdown_of(page) if md else render(page)
    if out is None:
        return Output(text=text)
    instead = " (in place of the earlier one)" * out.exists()
    write_text(out, text, what="the report")
    size = f" ({len(text.encode()) / 1e6:.1f} MB); open it in a browser"
    return Output(next=[f"written: {out}{instead}{'' if md else size}"])


def _page_of(what: Path, *, data: Path | None, task: str | None, k: int) -> Page:
    if what.name != STUDY and not (what / STUDY).is_file():
        return run.page_of(read_run(what), data=data, task=task, k=k)
    if data or task or k > 1:
        raise QuantDriftError("--data, --task and -k are for runs; a study knows its data")
    return study.page_of(open_study(what))
