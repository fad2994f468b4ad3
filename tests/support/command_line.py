"""A command line as a user types it, run in this process."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

from quantdrift.cli import main


def cli(*words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `quantdrift WORDS`."""
    out, err, before, code = io.StringIO(), io.StringIO(), sys.argv, 0
    sys.argv = ["quantdrift", *map(str, words)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    return code, out.getvalue(), err.getvalue()
