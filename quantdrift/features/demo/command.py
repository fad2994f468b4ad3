"""`quantdrift demo`: the stock mteb command on an embedded model and corpus, explained."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

from quantdrift.base.display import say
from quantdrift.base.errors import MissingExtraError, QuantDriftError
from quantdrift.base.records import check_writable
from quantdrift.cli.measuring import shown_run
from quantdrift.cli.options import SPEC, option
from quantdrift.runs.folder import RECORD, read_run
from quantdrift.show.output import emit
from quantdrift.spec.grammar import parse

SETTINGS = {"no_args_is_help": False}
_TASK = "PythonDocsRetrieval"
_EXPLAINED = (
    "\nflip@1 counts the queries whose first answer is another one than at full precision.",
    "gold_lost@k counts those that had a relevant document in their top k and lost one.",
    "separation is how far the first answer led, in units of what would overturn it: at 1",
    "or more it is safe. noise_floor is what the unquantized model changes by itself when",
    "only the batch size differs; a flip rate means something as far as it exceeds that.",
    "\nNext:  quantdrift run minilm@W8-rtn --task PythonDocsRetrieval   (a gentler scheme)",
    "       quantdrift run minilm@W4-rtn --data FOLDER                (your own corpus)",
)


def command(
    *,
    out: Path = option("Where mteb puts its results.", default=Path("demo-results")),
    spec: str = option(SPEC, default="minilm@W4-rtn"),
) -> None:
    """Run the stock mteb command on an embedded model and corpus, and explain what it prints.

    For example: quantdrift demo

    More: docs/tutorials/search.md
    """
    pair = parse(spec)
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
    records = [
        path for path in out.glob(f"results/*/*/drift/{_TASK}/*/{RECORD}") if read_run(path).record["spec"] == str(pair)
    ]
    if not records:
        raise QuantDriftError(f"mteb finished, but left no drift in {out}; run: {Path(sys.argv[0]).name} doctor")
    newest = max(records, key=lambda path: path.stat().st_mtime)
    shown_output = shown_run(read_run(newest))
    result = f"mteb's result:   {newest.parents[3] / f'{_TASK}.json'}"
    per_input = f"       quantdrift metrics {newest.parent} --per-input -m flip@1"
    emit(replace(shown_output, next=[*shown_output.next, result, *_EXPLAINED, per_input]))
