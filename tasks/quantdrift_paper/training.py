"""What the scripts that train a model share: a folder of its own, one line of result, and errors in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quantdrift.base.display import complain, say
from quantdrift.base.errors import DataError, QuantDriftError, RunError


def options_of(
    arguments: list[str] | None,
    *,
    name: str,
    about: str,
    data: str,
    epochs: int,
    more: Sequence[tuple[str, Any, str]] = (),
) -> argparse.Namespace:
    """The options of such a script: data, out, epochs and seed; data may be left out if its help says so.

    `more` are options of its own: name, default (None asks for one that must be given, a path), and help.
    """
    parser = argparse.ArgumentParser(prog=f"python -m quantdrift_paper.{name}", description=about.partition("\n")[0])
    parser.add_argument("--data", type=Path, required="by default" not in data, help=data)
    parser.add_argument("--out", type=Path, required=True, help="folder of the model; must be new or empty")
    for option, default, told in more:
        kind = Path if default is None else type(default)
        parser.add_argument(option, default=default, type=kind, required=default is None, help=told)
    parser.add_argument("--epochs", type=int, default=epochs, help=f"passes over the train part, {epochs} by default")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    return parser.parse_args(arguments)


def make(options: argparse.Namespace, work: Callable[[], str]) -> None:
    """Do the work and say what came of it; ends the process with 2 on an error, with 130 on Ctrl-C."""
    try:
        if options.epochs < 1:
            raise DataError(f"--epochs: expected 1 or more, got {options.epochs}")
        if options.out.exists() and not (options.out.is_dir() and not any(options.out.iterdir())):
            raise RunError(f"{options.out} is there already; expected a new or empty folder. Name another with --out")
        say(f"{options.out}{work()}")
    except QuantDriftError as error:
        complain(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        complain(f"stopped; {options.out} is not complete" if options.out.exists() else "stopped; nothing was written")
        sys.exit(130)
