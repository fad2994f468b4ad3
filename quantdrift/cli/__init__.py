"""The command line: `quantdrift run`, `metrics`, `list`, `allocate`, `mteb`, `demo` and others.

Commands import what they need when they run, so that `--help` and the light commands stay fast.
"""

from __future__ import annotations

import errno
import io
import os
import sys

from quantdrift.cli.interrupted import Interrupted
from quantdrift.display import complain, error_line, flush, let_go, say
from quantdrift.errors import QuantDriftError, SpecError

__all__ = ["Interrupted", "main", "tell_crash"]

USAGE = 2
INTERRUPTED = 130
_NO_OUTPUT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}


def main() -> None:
    """Entry point of the `quantdrift` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every encoding has the lines of tables
    try:
        code = _run()
        flush()
        sys.exit(code)
    except QuantDriftError as error:
        if os.environ.get("QUANTDRIFT_DEBUG"):
            raise
        if isinstance(error, SpecError) and error.text:
            say(error.caret(), error=True)
        complain(str(error))
        sys.exit(USAGE)
    except Interrupted as reason:
        complain(f"interrupted; {reason}")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        let_go(sys.stdout)  # the reader (head, less) has gone; leave quietly, as other tools do
        sys.exit(1)
    except Exception as error:
        if os.environ.get("QUANTDRIFT_DEBUG"):
            raise
        tell_crash(error)
        sys.exit(USAGE)


def _run() -> int:
    from quantdrift.cli import (  # noqa: F401, PLC0415 -- they register; typer is slow to import
        commands_allocation,
        commands_certify,
        commands_classification,
        commands_diff,
        commands_gate,
        commands_harness,
        commands_models,
        commands_route,
        commands_runs,
        commands_setup,
    )
    from quantdrift.cli.app import app, refuse_unquoted  # noqa: PLC0415 -- typer is slow
    from quantdrift.extras import extras_named  # noqa: PLC0415 -- as above

    try:
        with extras_named(needed_for=" ".join(["quantdrift", *sys.argv[1:2]])):
            refuse_unquoted(sys.argv[1:])
            code = app(prog_name="quantdrift", standalone_mode=False)
    except Exception as error:
        show = getattr(error, "show", None)
        if show is None:
            raise
        told = io.StringIO()
        show(told)  # typer's errors of usage do
        say(told.getvalue().rstrip("\n"), error=True)
        return USAGE
    return code if isinstance(code, int) else 0


def tell_crash(error: Exception) -> None:
    """Say in one line what nobody saw coming; the tests let it through instead."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_OUTPUT:
        let_go(sys.stdout)
        complain(f"the output could not be written: {error.strerror}")
        return
    complain(f"{error_line(error)} (QUANTDRIFT_DEBUG=1 shows where)")
