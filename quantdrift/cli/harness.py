"""`quantdrift mteb ...`: a harness's own command line, with quantdrift in it, without any hook."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points

from quantdrift.errors import MissingExtraError, QuantDriftError
from quantdrift.extras import extras_named
from quantdrift.spec import parse, parse_scheme

GROUP = "quantdrift.harnesses"


def harness_command(name: str, arguments: Sequence[str]) -> None:
    """Hand over to a harness.

    Args:
        name: of the harness.
        arguments: its own command-line arguments.

    Raises:
        MissingExtraError: the harness is not installed.
    """
    needed_for = f"quantdrift {name}"
    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    if entry is None:
        raise MissingExtraError(name, name, needed_for=needed_for)
    _check_schemes(arguments)
    sys.argv = [name, *arguments]
    with extras_named(needed_for=needed_for, extra=name):
        run = entry.load()
    try:
        with extras_named(needed_for=needed_for):
            run()
    except QuantDriftError:
        raise
    except Exception:
        traceback.print_exc()  # its own, as its own command would end
        sys.exit(1)


def _check_schemes(arguments: Sequence[str]) -> None:
    """Say what is wrong with a spec before the harness loads, which takes seconds."""
    for argument in arguments:
        model = argument.removeprefix("--model=")
        if model.startswith("quantdrift:"):  # mteb's
            parse(model.removeprefix("quantdrift:"))
        for part in argument.split(","):
            if part.startswith("scheme="):  # of lm-eval's --model_args
                parse_scheme(part.removeprefix("scheme="))
