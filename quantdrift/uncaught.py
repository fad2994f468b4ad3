"""What a user sees of our errors inside somebody else's command: one line, not a traceback."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from quantdrift.display import complain
from quantdrift.errors import QuantDriftError
from quantdrift.patching import is_replaced, replace

__all__ = ["errors_in_one_line"]


def errors_in_one_line() -> None:
    """Let an error of ours that nobody catches end the program in one line.

    `QUANTDRIFT_DEBUG=1` shows the traceback.
    """
    previous = sys.excepthook
    if is_replaced(previous):
        return

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, QuantDriftError) and not os.environ.get("QUANTDRIFT_DEBUG"):
            complain(str(error))
        else:
            previous(kind, error, trace)

    replace(sys, "excepthook", show)
