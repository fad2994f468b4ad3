"""`quantdrift mteb ...` and `quantdrift lm-eval ...`: a harness's own command line, without the start-up hook."""

import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points

import typer

from quantdrift.base.errors import MissingExtraError, QuantDriftError
from quantdrift.base.extras import extras_named
from quantdrift.spec.grammar import pair_named, parse_scheme

SETTINGS = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    "add_help_option": False,
}


def command(context: typer.Context) -> None:
    """Run a harness's own command with quantdrift's models in it; the start-up hook is not needed."""
    harness_command(str(context.info_name), context.args)


def harness_command(name: str, arguments: Sequence[str]) -> None:
    """Run a harness with its own command-line arguments."""
    needed_for = f"quantdrift {name}"
    entry = next(iter(entry_points(group="quantdrift.harnesses", name=name)), None)
    if entry is None:
        raise MissingExtraError(name, name, needed_for=needed_for)
    # a wrong spec is refused before the harness loads, which takes seconds
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if name == "mteb" and (before in {"-m", "--model"} or argument.startswith("--model=")):
            pair_named(argument.removeprefix("--model="))
        for part in argument.split(","):
            if part.startswith("scheme="):  # of lm-eval's --model_args
                parse_scheme(part.removeprefix("scheme="))
    sys.argv = [name, *arguments]
    with extras_named(needed_for=needed_for, extra=name):
        run = entry.load()
    try:
        with extras_named(needed_for=needed_for):
            run()
    except QuantDriftError:
        raise
    except Exception:
        traceback.print_exc()  # as the harness's own command ends
        sys.exit(1)
