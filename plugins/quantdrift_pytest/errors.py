"""Errors of ours in a test: the line that asked and the message, without the way in between."""

from __future__ import annotations

import os

import pytest

from quantdrift.display import printable
from quantdrift.errors import QuantDriftError, SpecError

__all__ = ["OURS", "in_short"]

OURS = (QuantDriftError, pytest.UsageError)
"""What is raised on purpose, with a message that says what to do."""


def in_short(error: Exception) -> Exception:
    """The error without its traceback, to be raised again; one of a spec shows where it is.

    `QUANTDRIFT_DEBUG=1` keeps the traceback.

    Args:
        error: that was caught.
    """
    error.args = tuple(printable(x) if isinstance(x, str) else x for x in error.args)
    if isinstance(error, SpecError) and error.text and not hasattr(error, "__notes__"):
        error.add_note(error.caret())
    if not os.environ.get("QUANTDRIFT_DEBUG"):
        error.with_traceback(None)
    return error
