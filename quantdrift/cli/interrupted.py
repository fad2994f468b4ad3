"""Ctrl-C, as commands tell it."""

from __future__ import annotations


class Interrupted(Exception):  # noqa: N818 -- not an error
    """The user pressed Ctrl-C; says what is left and how to go on.

    A KeyboardInterrupt itself does not come through: typer ends on it without a word.
    """
