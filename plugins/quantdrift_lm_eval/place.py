"""Where lm-eval saves the results of the evaluation at hand, beside which the evidence goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

FOLDER = "drift"
_tracker: ContextVar[Any] = ContextVar("quantdrift_lm_eval_tracker", default=None)


@contextmanager
def results_at(tracker: Any) -> Iterator[None]:
    """Inside, results go where an EvaluationTracker of lm-eval's saves them; None saves nothing."""
    token = _tracker.set(tracker)
    try:
        yield
    finally:
        _tracker.reset(token)


def default_folder() -> Path | None:
    """The folder `drift` beside lm-eval's result file; None where it saves none."""
    output = getattr(_tracker.get(), "output_path", None)
    if not output:
        return None
    path = Path(output)
    if path.suffix == ".json":
        return path.parent / FOLDER
    config = getattr(_tracker.get(), "general_config_tracker", None)
    return path / str(getattr(config, "model_name_sanitized", "")) / FOLDER
