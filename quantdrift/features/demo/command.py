"""`quantdrift demo`: run the stock mteb command on an embedded model and corpus, or a quick version without mteb."""

import os
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

from quantdrift.api import drift
from quantdrift.base.display import say
from quantdrift.base.errors import MissingExtraError, QuantDriftError
from quantdrift.base.records import check_writable
from quantdrift.cli.options import SPEC, flag, option
from quantdrift.features.ship.command import page_of
from quantdrift.runs.folder import Run, find_runs
from quantdrift.show.output import emit
from quantdrift.spec.grammar import Spec, parse

_TASK, _SHORT = "PythonDocsRetrieval", "PythonDocsShort"


def command(
    *,
    out: Path = option("Folder for the results.", default=Path("demo-results")),
    spec: str = option(SPEC, default="minilm@W4-rtn"),
    quick: bool = flag("--quick: A verdict in seconds, on the 200 shortest documents and without mteb."),
) -> None:
    """Run the stock mteb command on an embedded model and corpus, and explain its result.

    At the end you see the questions whose answers changed most harmfully. With --quick the command is quantdrift ship,
    on the 200 shortest documents and their questions.

    For example: quantdrift demo --quick

    More: docs/tutorials/search.md
    """
    pair, task = parse(spec), _SHORT if quick else _TASK
    if quick:
        say(f"$ quantdrift ship {shlex.quote(spec)} --task {task} --minutes 0 --out {shlex.quote(str(out / task))}")
        run: Run = drift(spec, data=task, out=out / task, progress=True)
    else:
        run = _in_mteb(pair, spec, out)
    page = page_of(run, task)
    emit(replace(page, next=[*page.next, "your own questions:", "    quantdrift ship minilm@W4-rtn --data FOLDER"]))


def _in_mteb(pair: Spec, spec: str, out: Path) -> Run:
    """Run the stock command in a process of its own, and read the run that it wrote."""
    check_writable(out / "results", what="mteb's results")
    script = Path(sysconfig.get_path("scripts")) / ("mteb.exe" if os.name == "nt" else "mteb")
    if not script.is_file():
        raise MissingExtraError("mteb", "demo", needed_for="the demo")
    shown = ["mteb", "run", "--model", f"quantdrift:{spec}", "-t", _TASK, "--output-folder", str(out)]
    shown += ["--verbosity", "1"]
    say(f"$ {shlex.join(shown)}")
    called = [str(script), *shown[1:], "--overwrite-strategy", "always"]
    finished = subprocess.run(called, check=False, env={**os.environ, "QUANTDRIFT_HOOK": "1"})
    if finished.returncode != 0:
        raise QuantDriftError(f"the mteb command ended with exit code {finished.returncode}")
    runs = [run for run in find_runs([out / "results"]) if run.record["spec"] == str(pair)]
    if not runs:
        raise QuantDriftError(f"mteb finished, but left no drift in {out}; run: {Path(sys.argv[0]).name} doctor")
    newest = max(runs, key=lambda run: run.path.stat().st_mtime)
    say(f"\nmteb's result: {newest.path.parents[2] / f'{_TASK}.json'}\n")
    return newest
