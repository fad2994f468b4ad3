"""Capturing the warnings that libraries log."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def captured_logs(loggers: Iterable[str], hear: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Inside the block, pass warnings and errors of these loggers to `hear` and to no other handler."""
    ear, before = logging.Handler(logging.WARNING), []
    ear.emit = hear  # type: ignore[method-assign,assignment]  # a handler of one function
    for log in map(logging.getLogger, loggers):
        before.append((log, log.handlers, log.propagate, log.level))
        log.handlers, log.propagate = [ear], False
        if not log.isEnabledFor(logging.WARNING):
            log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for log, handlers, propagate, level in before:
            log.handlers, log.propagate = handlers, propagate
            log.setLevel(level)
