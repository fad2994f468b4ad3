"""The small JSON file of a router: threshold, confidence, and what it was set on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quantdrift.confidence import CONFIDENCES, ConfidenceName
from quantdrift.errors import RunError
from quantdrift.origin import Origin
from quantdrift.records import is_number, read_object, refuse_other, sealed, write_text

__all__ = ["MAKE", "read_router", "write_router"]

FORMAT = "quantdrift-router"
FORMAT_VERSION = 2

MAKE = "quantdrift route RUN --save FILE"
"""The command that writes a router."""


def write_router(path: Path, *, threshold: float, score: ConfidenceName, origin: Origin) -> None:
    """Write a router's file, in place of an earlier one.

    Raises:
        RunError: another kind of file lies there, or it cannot be written.
    """
    refuse_other(path, FORMAT, "a router")
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "score": score,
        "threshold": threshold,  # Python's shortest decimal, which reads back to the same number
        "set_on": asdict(origin),
    }
    text = json.dumps(sealed(content), indent=2, ensure_ascii=False) + "\n"
    write_text(path, text, what="the router")


def read_router(path: Path) -> tuple[float, ConfidenceName, Origin]:
    """Threshold, confidence and origin of a router's file.

    Raises:
        RunError: no such file, or it cannot be read.
    """
    content = read_object(path, FORMAT, FORMAT_VERSION, what="a router", make=MAKE, error=RunError)
    threshold: Any = content.get("threshold")
    score: Any = content.get("score")
    if not (is_number(threshold) and score in CONFIDENCES):
        raise RunError(
            f"{path} is damaged: expected a finite threshold and a score of "
            f"{', '.join(CONFIDENCES)}; got {threshold!r:.40}, {score!r:.40}"
        )
    try:
        return float(threshold), score, Origin.read(content.get("set_on"))
    except ValueError as error:
        raise RunError(f"{path} is damaged: set_on: {error}") from error
