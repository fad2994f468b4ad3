"""lm-eval's own command line with quantdrift in it, for where the start-up hook cannot be."""

from __future__ import annotations

import importlib

from quantdrift_lm_eval import hooks


def main() -> None:
    """Change lm-eval here and now, whatever the hook's off switch says, and hand over to it."""
    for name, change in (
        ("lm_eval.models", hooks.on_models_imported),
        ("lm_eval.evaluator", hooks.on_evaluator_imported),
    ):
        change(importlib.import_module(name))
    cli = importlib.import_module("lm_eval.__main__")
    cli.cli_evaluate()
