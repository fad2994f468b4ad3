"""mteb's own command line with quantdrift in it, for where the start-up hook cannot be."""

from __future__ import annotations

import importlib

from quantdrift_mteb import hooks


def main() -> None:
    """Change mteb here and now, whatever the hook's off switch says, and hand over to it."""
    for name, change in (
        ("mteb.models.get_model_meta", hooks.on_models_imported),
        ("mteb.get_tasks", hooks.on_tasks_imported),
        ("mteb.evaluate", hooks.on_evaluate_imported),
    ):
        module = importlib.import_module(name)
        change(module)
    cli = importlib.import_module("mteb.cli")
    cli.main()
