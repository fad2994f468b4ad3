"""`quantdrift report`: a run, a study, or what a gate said, as a page for a browser, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from quantdrift.cli.options import TASK, argument, flag, option, prints
from quantdrift.cli.output import Shown
from quantdrift.display import note
from quantdrift.errors import QuantDriftError
from quantdrift.records import check_writable, write_text
from quantdrift.report.figures import PictureForm, write_pictures
from quantdrift.report.page import Page, render
from quantdrift.report.words import counted

if TYPE_CHECKING:
    from quantdrift.report.logging import Client
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
    log: str | None = option(
        "--log-to CLIENT: Also log the run, or every finished cell of the study, to wandb, mlflow or trackio: metrics,"
        " settings, the run folder and the report. What was logged before is not logged again."
    ),
    project: str | None = option("NAME: Project or experiment to log to; by default what the client's settings say."),
    png: Path | None = option("FOLDER: The charts as PNG, in place of a page."),
    svg: Path | None = option("FOLDER: The charts as SVG."),
    pdf: Path | None = option("FOLDER: The charts as PDF."),
    tex: Path | None = option(
        "FOLDER: Of a study: the paper's tables as LaTeX and its charts as PDF, as far as the study has them."
    ),
    k: int = option("-k --k: An input has changed if the set of its first K answers did.", default=1, min=1),
) -> Shown:
    """Write a report that anybody can open: one HTML file, which loads nothing else.

    It says first what changed, how bad that is and what to do. Below stand charts, every changed input with both
    rankings, and the metrics. Texts are in it if the data are where they were when the run was made, or with --data:
    whoever gets the file can read them.

    Of a study it says which schemes are safe, and has a map of all runs, in which every run can be opened.
    """
    client = None if log is None else _client(log)
    places = {"png": png, "svg": svg, "pdf": pdf, "tex": tex}
    asked = {form: place for form, place in places.items() if place is not None}
    if len(asked) + (out is not None) > 1 or (asked and (md or log is not None)):
        raise QuantDriftError(
            "expected one of -o, --md, --png, --svg, --pdf and --tex at a time; --log-to goes with the first two"
        )
    if client is not None and _is_gate(what):
        raise QuantDriftError(f"--log-to is for runs and studies; {what} is what a gate said")
    if tex is not None:
        return _paper(what, tex)
    for form, place in asked.items():
        check_writable(place / "chart", what="the charts")
        page = _page(what, data=data, task=task, k=k)
        written = write_pictures(
            [each for one in page.sections for each in one.figures], place, cast(PictureForm, form)
        )
        return Shown(next=[f"written: {len(written)} charts in {place}", *(f"  {each.name}" for each in written)])
    if md:
        shown = _markdown(_text(what, data=data, task=task, k=k), out)
        return shown if client is None else _logged(shown, client, what, out, project)
    out = out or Path("report.html")
    if out.suffix.lower() not in _SUFFIXES:
        raise QuantDriftError(f"expected a file that ends in .html; got {str(out)!r}")
    check_writable(out, what="the report")
    html = render(_page(what, data=data, task=task, k=k))
    write_text(out, html, what="the report")
    shown = Shown(next=[f"written: {out} ({len(html.encode()) / 1e6:.1f} MB); open it in a browser"])
    return shown if client is None else _logged(shown, client, what, out, project)


def _text(what: Path, *, data: Path | None, task: str | None, k: int) -> str:
    from quantdrift.gate.output import markdown_text
    from quantdrift.report.gate import read_result
    from quantdrift.report.markdown import markdown_of

    page = _page(what, data=data, task=task, k=k)
    # a gate has words of its own, which CI shows too
    return markdown_text(read_result(what)) if page.kind == "gate" else markdown_of(page)


def _markdown(text: str, out: Path | None) -> Shown:
    if out is None:
        return Shown(text=text)
    if out.suffix.lower() not in _MARKDOWN:
        raise QuantDriftError(f"expected a file that ends in .md, for --md; got {str(out)!r}")
    write_text(out, text, what="the report")
    return Shown(next=[f"written: {out}"])


def _client(name: str) -> Client:
    from quantdrift.report.logging import client_of

    return client_of(name)


def _logged(shown: Shown, client: Client, what: Path, out: Path | None, project: str | None) -> Shown:
    from quantdrift.report.logging import entries_of, log_to

    entries, group = entries_of(what, out)
    new = log_to(client, entries, project=project, group=group)
    note(f"{counted(len(entries), 'run')} in {client}, {new:,} of them new")
    return shown


def _study(what: Path) -> StudyFolder | None:
    """The study that lies in a folder, or whose study.json is named."""
    from quantdrift.study.folder import STUDY, open_study

    return open_study(what) if what.name == STUDY or (what / STUDY).is_file() else None


def _is_gate(what: Path) -> bool:
    from quantdrift.runs import RECORD
    from quantdrift.study.folder import STUDY

    return what.is_file() and what.name not in {RECORD, STUDY}


def _paper(what: Path, place: Path) -> Shown:
    from quantdrift.report.paper import write_paper

    folder = _study(what)
    if folder is None:
        raise QuantDriftError(f"--tex is for studies: expected the folder of one, with study.json; got {what}")
    check_writable(place / "table", what="the tables")
    written, left_out = write_paper(folder, place)
    made = {kind: [file.stem for file in written if file.parent.name == kind] for kind in ("tables", "figures")}
    given = {name for names in made.values() for name in names}
    lines = [f"{kind}: {', '.join(names)}" for kind, names in made.items() if names]
    if folder.shows:
        missed = {
            name: left_out.get(name) or left_out.get(f"figure {name}") or "the paper has no table of this name"
            for name in folder.shows
            if name not in given
        }
        lines += ["not given: " + "; ".join(f"{name} ({why})" for name, why in missed.items())] if missed else []
    else:
        lines.append(
            f"{len(left_out)} other tables and figures of the paper need other runs; quantdrift list suites says which "
            "suite is for which"
        )
    return Shown(lines=lines, next=[f"\nwritten: {len(written)} files in {place}; {written[-1]} shows all"])


def _page(what: Path, *, data: Path | None, task: str | None, k: int) -> Page:
    from quantdrift.report import gate, run, study
    from quantdrift.runs import read_run

    folder, is_gate = _study(what), _is_gate(what)
    if (folder is not None or is_gate) and (data or task or k > 1):
        holder = "a study knows its data" if folder else "the result of a gate holds what it shows"
        raise QuantDriftError(f"--data, --task and -k are for runs; {holder}")
    if folder is not None:
        return study.page_of(folder)
    if is_gate:
        return gate.page_of(gate.read_result(what))
    return run.page_of(read_run(what), data=data, task=task, k=k)
