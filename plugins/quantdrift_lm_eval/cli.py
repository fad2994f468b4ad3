"""lm-eval's own command line with quantdrift, for environments without the start-up hook."""

import importlib

from quantdrift._hook import WATCHED
from quantdrift._hook_notify import change


def main() -> None:
    """Hook into lm-eval now, whatever the off switch says, and start its command line."""
    change(WATCHED, "lm_eval")
    importlib.import_module("lm_eval.__main__").cli_evaluate()
