"""The command line: `quantdrift run`, `metrics`, `list`, `doctor`, `mteb`, `demo`, `cache`.

Commands import what they need when they run, so that `--help` and the light commands stay fast.
"""

from __future__ import annotations

import os
import sys

from quantdrift.errors import QuantDriftError, SpecError

__all__ = ["main"]

USAGE = 2
INTERRUPTED = 130


def main() -> None:
    """Entry point of the `quantdrift` command."""
    from quantdrift.cli.app import app  # noqa: PLC0415 -- typer takes a while to import

    try:
        app(prog_name="quantdrift")
    except QuantDriftError as error:
        if os.environ.get("QUANTDRIFT_DEBUG"):
            raise
        if isinstance(error, SpecError):
            print(f"{error.caret()}", file=sys.stderr)
        print(f"quantdrift: {error}", file=sys.stderr)
        sys.exit(USAGE)
    except KeyboardInterrupt:
        print(
            "quantdrift: interrupted; no run was written. Embeddings made so far are kept, and the "
            "same command goes on from there",
            file=sys.stderr,
        )
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # the reader (head, less) has gone; leave quietly, as other tools do
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
