"""lm-eval's own command line with quantdrift in it, for where the start-up hook cannot be."""

import importlib

from quantdrift._hook import WATCHED
from quantdrift._hook_notify import change


def main() -> None:
    """Change lm-eval here and now, whatever the hook's off switch says, and hand over to it."""
    change(WATCHED, "lm_eval")
    importlib.import_module("lm_eval.__main__").cli_evaluate()
