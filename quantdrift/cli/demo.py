"""`quantdrift demo`: the stock mteb command on an embedded model and corpus, explained."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from quantdrift.cli.tables import console, print_run
from quantdrift.errors import MissingExtraError, QuantDriftError
from quantdrift.records import check_writable
from quantdrift.runs import RECORD, read_run
from quantdrift.spec import parse

TASK = "PythonDocsRetrieval"
_EXPLAINED = (
    "\nflip@1 counts the queries whose first answer is another one than at full precision.",
    "gold_lost@k counts those that had a relevant document in their top k and lost one.",
    "separation is how far the first answer led, in units of what would overturn it: at 1",
    "or more it is safe. noise_floor is what the unquantized model changes by itself when",
    "only the batch size differs; a flip rate means something as far as it exceeds that.",
    "\nNext:  quantdrift run minilm@W8-rtn --task PythonDocsRetrieval   (a gentler scheme)",
    "       quantdrift run minilm@W4-rtn --data FOLDER                (your own corpus)",
)


def demo_command(spec: str, out: Path) -> None:
    """Run mteb's own console script on a pair, then show what it measured.

    Args:
        spec: the pair.
        out: mteb's output folder.

    Raises:
        MissingExtraError: mteb is not installed.
        QuantDriftError: mteb's command failed; its own output says why.
    """
    parse(spec)
    check_writable(out / "results", what="mteb's results")
    script = Path(sysconfig.get_path("scripts")) / ("mteb.exe" if os.name == "nt" else "mteb")
    if not script.is_file():
        raise MissingExtraError("mteb", "demo", needed_for="the demo")
    shown = ["mteb", "run", "--model", f"quantdrift:{spec}", "-t", TASK]
    shown += ["--output-folder", str(out), "--verbosity", "1"]
    say = console()
    say.print(f"$ {shlex.join(shown)}", style="bold", soft_wrap=True)
    command = [str(script), *shown[1:], "--overwrite-strategy", "always"]
    finished = subprocess.run(command, check=False, env={**os.environ, "QUANTDRIFT_HOOK": "1"})
    if finished.returncode != 0:
        raise QuantDriftError(f"the mteb command ended with exit code {finished.returncode}")
    records = [
        path
        for path in out.glob(f"results/*/*/drift/{TASK}/*/{RECORD}")
        if read_run(path).record["spec"] == str(parse(spec))
    ]
    if not records:
        raise QuantDriftError(f"mteb finished, but left no drift in {out}; run: {Path(sys.argv[0]).name} doctor")
    newest = max(records, key=lambda path: path.stat().st_mtime)
    result = newest.parents[3] / f"{TASK}.json"
    print_run(read_run(newest))
    say.print(f"mteb's result:   {result}", soft_wrap=True)
    for line in (*_EXPLAINED, f"       quantdrift metrics {newest.parent} --per-input -m flip@1"):
        say.print(line, soft_wrap=True)
