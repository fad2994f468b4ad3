"""A finished evaluation is worth more than its drift."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quantdrift.display import clean, complain


@contextmanager
def carefully(task: str) -> Iterator[None]:
    """Inside, what goes wrong costs a task's drift, not its results, and one line says why."""
    try:
        yield
    except Exception as error:  # whatever it is: the evaluation itself went well
        warn(f"no drift is measured on {task}: {str(error) or type(error).__name__}")


def warn(message: str) -> None:
    """Say something on stderr, in one line."""
    complain(clean(message))
