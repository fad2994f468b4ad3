"""The command line: the help of `quantdrift`, the loading of commands, and their exit codes.

A command is the function `command` in the module of its name, or in the feature of its name; it is imported when it
is called.
"""

import errno
import io
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from quantdrift import __version__
from quantdrift.base.display import complain, error_line, flush, let_go, say
from quantdrift.base.errors import QuantDriftError, RunError, SpecError
from quantdrift.base.extras import extras_named
from quantdrift.base.registry import Registry

USAGE, INTERRUPTED = 2, 130
GROUPS: dict[str, dict[str, str]] = {
    "Begin here": {},
    "Measure": {
        "run": "Measure MODEL@SCHEME on a corpus, or on labelled inputs.",
        "study": "Measure many models, schemes and corpora; resumes where it stopped.",
    },
    "Read finished runs": {
        "show": "The changed inputs of a run, with their texts.",
        "report": "Write a run or a study as a page for a browser.",
        "diff": "What changed between any two finished runs?",
        "compare": "Is run B worse than run A, or no worse?",
    },
    "Trust and repair": {},
    "Guard": {"gate": "Pass or fail a run, by rules and a baseline."},
    "Look around": {
        "mteb": "mteb's own command, where the start-up hook is off.",
        "lm-eval": "lm-eval's own command, where the start-up hook is off.",
    },
}
"""Title of a group in the help to the core's commands in it, with a line on each; features add theirs."""
PANELS = ("Data", "", "Model", "Servers", "A corpus in shards", "Two finished runs")
"""Groups of options in the help of a command, in order."""
_MODULES = {"mteb": "harness", "lm-eval": "harness"}
_NO_OUTPUT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command of a feature: the function `command` in its module `command`.

    Attributes:
        group: title of its group in the help; empty for a form of another command.
        help: its line in the help; for our own features the docstring of their package.
        form_of: name of the command that it is a form of, called as `quantdrift FORM_OF --NAME`.
    """

    group: str = ""
    help: str | None
    form_of: str | None = None


FEATURES: Registry[Command] = Registry(
    "quantdrift.features", package="quantdrift.features", attribute="COMMAND", kind=Command
)


class Interrupted(Exception):  # noqa: N818 -- not an error
    """Ctrl-C in a command; the message says what is kept, and how to go on."""


class InPanels(TyperCommand):
    """A command whose help shows its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then one group after another."""
        parts: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{panel: [] for panel in PANELS}}
        for param in self.get_params(ctx):
            panel = getattr(param, "rich_help_panel", None) or ""
            if (line := param.get_help_record(ctx)) is not None:
                parts["Arguments" if param.param_type_name == "argument" else panel].append(line)
        for title, lines in parts.items():
            if lines:
                with formatter.section(title or "Options"):
                    formatter.write_dl(lines)


class Commands(TyperGroup):
    """The commands; each is imported when it is called, or its help is shown."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.groups = {title: dict(commands) for title, commands in GROUPS.items()}
        self.forms = {
            f"{command.form_of} --{name}": name for name, command in FEATURES.items() if command.form_of is not None
        }
        for name, command in FEATURES.items():
            if command.form_of is None:
                self.groups.setdefault(command.group, {})[name] = command.help or ""
        # the names alone, from which an unknown name gets a suggestion
        self.commands: Any = {name: None for group in self.groups.values() for name in group}
        self.commands |= dict.fromkeys(self.forms)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, or a form of it, such as `report --card`."""
        for form in self.forms:
            name, flag = form.split()
            if args[0] == name and flag in args[1:]:
                args = [form, *(argument for argument in args[1:] if argument != flag)]
            if args[0] == self.forms[form]:
                ctx.fail(f"{args[0]} is a form of another command: quantdrift {form}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the command of a name; None if there is none."""
        if cmd_name not in self.commands:
            return None
        feature = FEATURES.module(self.forms.get(cmd_name, cmd_name))
        module = import_module(
            f"{feature}.command" if feature else f"{__name__}.{_MODULES.get(cmd_name, cmd_name.replace('-', '_'))}"
        )
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        inside: dict[str, Any] = getattr(module, "COMMANDS", {})
        for name, command in inside.items():
            alone.command(name, cls=InPanels)(command)
        if inside:
            return get_group(alone)
        forms = [f"quantdrift {form}: {FEATURES[name].help}" for form, name in self.forms.items()]
        mine = [form for form in forms if form.startswith(f"quantdrift {cmd_name} --")]
        settings = {"epilog": "\n\n".join(mine) or None, **getattr(module, "SETTINGS", {})}
        alone.command(cmd_name, cls=InPanels, **settings)(module.command)
        return get_command(alone)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """One line for each command, in groups."""
        width = max(len(name) for commands in self.groups.values() for name in commands)
        for title, commands in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


app = typer.Typer(
    cls=Commands,
    name="quantdrift",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it pipes, greps and fits narrow terminals
    context_settings={"help_option_names": ["-h", "--help"]},
    help="See which answers quantization changed, and which can still be trusted.\n\n\b\n"
    "My model, my data:  quantdrift ship minilm@W4 --data faq.csv\n"
    "Inside mteb:        mteb run --model quantdrift:minilm@W4-rtn -t PythonDocsRetrieval",
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"quantdrift {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command that sys.argv names, and exit."""
    ended(app, "quantdrift")


def ended(app: typer.Typer, name: str) -> NoReturn:
    """Run a command line and exit; an error becomes one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # some encodings lack the lines of tables
    try:
        code = _run(app, name, sys.argv[1:])
        flush()
    except Interrupted as interruption:
        complain(f"interrupted; {interruption}")
        code = INTERRUPTED
    except BrokenPipeError:
        let_go(sys.stdout)  # the reader (head, less) has gone; leave quietly, as other tools do
        code = 1
    except Exception as error:
        if os.environ.get("QUANTDRIFT_DEBUG"):
            raise
        if isinstance(error, SpecError) and error.text:
            say(error.caret(), error=True)
        if isinstance(error, QuantDriftError):
            complain(str(error))
        else:
            tell_crash(error)
        code = USAGE
    sys.exit(code)


def _run(app: typer.Typer, name: str, arguments: Sequence[str]) -> int:
    try:
        with extras_named(needed_for=" ".join([name, *arguments[:1]])):
            _refuse_unquoted(arguments)
            code = app(prog_name=name, standalone_mode=False)
    except Exception as error:
        show = getattr(error, "show", None)  # typer's usage errors have it
        if show is None:
            raise
        if type(error).__name__ == "MissingParameter":
            complain(_missing(error))
            return USAGE
        usage = io.StringIO()
        show(usage)
        say(usage.getvalue().rstrip("\n"), error=True)
        return USAGE
    if code == INTERRUPTED:
        complain("interrupted")
    return code if isinstance(code, int) else 0


def _missing(error: Any) -> str:
    """The argument or option that a command lacks, in one line."""
    command, param = str(error.ctx.command_path), error.param
    name = param.metavar if param.param_type_name == "argument" else param.opts[0]
    newest = _newest_for(name)
    example = "" if newest is None else f"; the newest run here: {command} {shlex.quote(str(newest))}"
    said = f"{command.partition(' ')[2]} expects {name}: {(param.help or '').rstrip('.')}"
    return f"{said}{example} (more: {command} --help)"


def _newest_for(metavar: str) -> Path | None:
    """The run that was written last, for an argument that takes one."""
    from quantdrift.runs.folder import last_run

    with suppress(RunError):
        return last_run() if metavar.startswith("RUN") else None
    return None


def _refuse_unquoted(arguments: Sequence[str]) -> None:
    """Refuse `run minilm vs ./other`, of which the shell makes three arguments, and show the quotes."""
    if arguments[:1] in (["run"], ["gate"]) and "vs" in arguments[2:-1]:
        at = arguments.index("vs", 2)
        before, after = arguments[at - 1], arguments[at + 1]
        quoted = shlex.join([*arguments[: at - 1], f"{before} vs {after}", *arguments[at + 2 :]])
        raise QuantDriftError(f"a pair of two models is one argument, so it takes quotes: quantdrift {quoted}")


def tell_crash(error: Exception) -> None:
    """Report an unforeseen error in one line; the tests replace this to see it raised."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _NO_OUTPUT:
        let_go(sys.stdout)
        complain(f"the output could not be written: {error.strerror}")
    else:
        complain(f"{error_line(error)} (QUANTDRIFT_DEBUG=1 shows where)")
