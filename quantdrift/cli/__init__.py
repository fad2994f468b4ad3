"""The command line: `quantdrift run`, `metrics`, `list`, `allocate`, `mteb`, `demo` and others.

Commands import what they need when they run, so that `--help` and the light commands stay fast.
"""

from __future__ import annotations

import os
import sys

from quantdrift.cli.interrupted import Interrupted
from quantdrift.errors import QuantDriftError, SpecError

__all__ = ["Interrupted", "main"]

USAGE = 2
INTERRUPTED = 130


def main() -> None:
    """Entry point of the `quantdrift` command."""
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
        commands_study,
    )
    from quantdrift.cli.app import app  # noqa: PLC0415 -- typer takes a while to import
    from quantdrift.extras import extras_named  # noqa: PLC0415 -- as above

    try:
        with extras_named(needed_for=" ".join(["quantdrift", *sys.argv[1:2]])):
            app(prog_name="quantdrift")
    except QuantDriftError as error:
        if os.environ.get("QUANTDRIFT_DEBUG"):
            raise
        if isinstance(error, SpecError) and error.text:
            print(error.caret(), file=sys.stderr)
        print(f"quantdrift: {error}", file=sys.stderr)
        sys.exit(USAGE)
    except Interrupted as reason:
        print(f"quantdrift: interrupted; {reason}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # the reader (head, less) has gone; leave quietly, as other tools do
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
