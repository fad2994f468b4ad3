"""Patching of functions of other libraries: a function is checked, marked, and never patched twice."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from quantdrift.base.display import complain
from quantdrift.base.errors import QuantDriftError

_MARK = "__quantdrift_wrapped__"


def replace(holder: Any, name: str, wrapper: Any, *, static: bool = False) -> None:
    """Replace a function by a wrapper and mark the wrapper."""
    setattr(wrapper, _MARK, True)
    setattr(holder, name, staticmethod(wrapper) if static else wrapper)


def wrap(
    holder: Any, name: str, parameters: Iterable[str], around: Callable[..., Any], *, static: bool = False
) -> None:
    """Replace a function by `around(original, ...)`, unless it is replaced already (as after a reload)."""
    original = getattr(holder, name, None)
    if not callable(original):
        raise TypeError(f"{holder.__name__} has no function {name}")
    if is_replaced(original):
        return
    if missing := {*parameters} - inspect.signature(original).parameters.keys():
        raise TypeError(f"{holder.__name__}.{name} has no parameter {', '.join(sorted(missing))}")

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    replace(holder, name, wrapper, static=static)


def arguments_of(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name, defaults included."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def is_pair(model: Any) -> bool:
    """Whether a harness's model is a pair, told by its class, as an object may raise on an unknown attribute."""
    return getattr(type(model), "is_quantdrift_pair", False) is True


def is_replaced(function: Any) -> bool:
    """Whether a function is one of our wrappers."""
    return hasattr(function, _MARK)


# --- our errors inside another program's command ------------------------------------------------


def errors_in_one_line() -> None:
    """Let an uncaught error of ours end the program with one line in place of a traceback.

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
