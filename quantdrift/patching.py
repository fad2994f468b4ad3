"""How a function of somebody else's is replaced: looked at first, marked, and never twice."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from quantdrift.display import complain
from quantdrift.errors import QuantDriftError

# --- How a function of somebody else's is replaced: looked at first, marked, and never twice ------

_MARK = "__quantdrift_wrapped__"


def expected(holder: Any, name: str, *parameters: str) -> Any:
    """The function to wrap; None if it is wrapped already (a reload keeps wrapped functions).

    Args:
        holder: module or class that has it.
        name: of the function.
        parameters: that it must have.

    Raises:
        TypeError: there is no such function, or it takes something else.
    """
    function = getattr(holder, name, None)
    if function is None or not callable(function):
        kind = "method" if isinstance(holder, type) else "function"
        raise TypeError(f"{holder.__name__} has no {kind} {name}")
    if is_replaced(function):
        return None
    missing = set(parameters) - set(_parameters(function)) if parameters else set()
    if missing:
        raise TypeError(f"{holder.__name__}.{name} has no parameter {', '.join(sorted(missing))}")
    return function


def replace(holder: Any, name: str, wrapper: Any, *, static: bool = False) -> None:
    """Put a wrapper in a function's place.

    Args:
        holder: module or class.
        name: of the function.
        wrapper: what is called from now on; one by functools.wraps has the original as its
            `__wrapped__`.
        static: whether it is a static method of a class.
    """
    setattr(wrapper, _MARK, True)
    setattr(holder, name, staticmethod(wrapper) if static else wrapper)


def _parameters(function: Any) -> Iterable[str]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # one written in C may not say what it takes
        return ()


def is_replaced(function: Any) -> bool:
    """Whether a function is one that was put in another's place."""
    return hasattr(function, _MARK)


# --- What a user sees of our errors inside somebody else's command: one line, not a traceback -----


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
