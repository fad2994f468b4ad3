"""`quantdrift demo`: a verdict on an embedded model and corpus, and the questions that broke."""

import os
import shlex
from dataclasses import replace
from pathlib import Path

from quantdrift.api import drift
from quantdrift.base.display import say
from quantdrift.cli.measuring import shown_run
from quantdrift.cli.options import SPEC, option
from quantdrift.finished.texts import read_texts
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.folder import Run
from quantdrift.show.changes import changes_grid
from quantdrift.show.output import Output, emit
from quantdrift.spec.grammar import parse

_TASK = "PythonDocsShort"
_BROKEN = 3
"""Questions that are shown, the worst first."""


def command(
    *,
    out: Path = option("Folder for the results.", default=Path("demo-results")),
    spec: str = option(SPEC, default="minilm@W4-rtn"),
) -> None:
    """Run a model against its quantized self on 200 short docstrings of Python and their questions.

    It takes seconds, and needs no harness. At the end you see the questions whose answers changed most harmfully. For
    all docstrings, and inside mteb: mteb run --model quantdrift:minilm@W4-rtn -t PythonDocsRetrieval

    For example: quantdrift demo

    More: docs/tutorials/search.md
    """
    parse(spec)  # a wrong one is refused before anything is said
    say(f"$ quantdrift run {shlex.quote(spec)} --task {_TASK} --out {shlex.quote(str(out / _TASK))}")
    run: Run = drift(spec, data=_TASK, out=out / _TASK, progress=True)
    emit(replace(shown_run(run), next=[""]))
    emit(_broken(run))


def _broken(run: Run) -> Output:
    """Show the questions whose answers changed most harmfully, with texts, and what to type next."""
    evidence, changed = run.evidence(), changed_inputs(run.evidence(), 1)
    texts, listed = read_texts(run, data=None, task=_TASK), changed[:_BROKEN]
    grid = changes_grid(run.record, evidence, changed, listed, texts)
    place = shlex.quote(os.path.relpath(run.path))
    following = {
        f"quantdrift show {place} --task {_TASK} --all": "all of them",
        f"quantdrift report {place} --task {_TASK}": "the same as a page for a browser",
        f"quantdrift run minilm@W8-rtn --task {_TASK}": "a gentler scheme",
        "quantdrift run minilm@W4-rtn --data FOLDER": "your own corpus",
    }
    return Output(grids=[grid], next=["", *(f"{line}   # {why}" for line, why in following.items())])
