"""mteb's own command line with quantdrift in it, for where the start-up hook cannot be."""

from __future__ import annotations

import importlib

from quantdrift._hook_notify import change


def main() -> None:
    """Change mteb here and now, whatever the hook's off switch says, and hand over to it."""
    change("mteb")
    importlib.import_module("mteb.cli").main()
