"""A command line as a user types it, run in this process."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

from quantdrift.cli import main
from quantdrift_paper.__main__ import main as paper

OF_PAPER = {"tables", "capture", "law", "contenders", "reader"}
"""Commands of the kit: python -m quantdrift_paper."""


def cli(*words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `quantdrift WORDS`, or of the paper's kit."""
    out, err, before, code = io.StringIO(), io.StringIO(), sys.argv, 0
    sys.argv = ["quantdrift", *map(str, words)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            (paper if {*words[:1]} & OF_PAPER else main)()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()
