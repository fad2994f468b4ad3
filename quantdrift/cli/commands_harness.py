"""Commands that hand over to a harness: `mteb`, `lm-eval`, `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantdrift.cli.app import app
from quantdrift.cli.options import SPEC_HELP

__all__: list[str] = []


@app.command(
    short_help="mteb's own command, without the hook.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def mteb(context: typer.Context) -> None:
    """Run mteb's own command with quantdrift in it; needs no start-up hook.

    quantdrift mteb run --model quantdrift:minilm@W4-rtn -t PythonDocsRetrieval
    """
    from quantdrift.cli.harness import harness_command  # noqa: PLC0415 -- each command loads its own

    harness_command("mteb", context.args)


@app.command(
    name="lm-eval",
    short_help="lm-eval's own command, without the hook.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def lm_eval(context: typer.Context) -> None:
    """Run lm-eval's own command with quantdrift in it; needs no start-up hook.

    quantdrift lm-eval --model quantdrift --model_args pretrained=NAME,scheme=W4-rtn --tasks piqa
    """
    from quantdrift.cli.harness import harness_command  # noqa: PLC0415 -- each command loads its own

    harness_command("lm-eval", context.args)


@app.command(short_help="The main job on an embedded model.")
def demo(
    out: Annotated[Path, typer.Option(help="Where mteb puts its results.")] = Path("demo-results"),
    spec: Annotated[str, typer.Option(help=SPEC_HELP, metavar="SPEC")] = "minilm@W4-rtn",
) -> None:
    """Run the stock mteb command on an embedded model and corpus, and explain what it prints."""
    from quantdrift.cli.demo import demo_command  # noqa: PLC0415 -- each command loads its own

    demo_command(spec, out)
