"""The small JSON file of a router: threshold, confidence, and what it was set on."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quantdrift.confidence import CONFIDENCES, ConfidenceName
from quantdrift.errors import RunError
from quantdrift.origin import Origin
from quantdrift.whole_file import refuse_other, write_text

__all__ = ["MAKE", "read_router", "write_router"]

FORMAT = "quantdrift-router"
FORMAT_VERSION = 1

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
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text, what="the router")


def read_router(path: Path) -> tuple[float, ConfidenceName, Origin]:
    """Threshold, confidence and origin of a router's file.

    Raises:
        RunError: no such file, or it cannot be read.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(
            f"expected a router's file; {path} cannot be read ({error.strerror}). "
            f"Routers are written by: {MAKE}"
        ) from error
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        kind = content.get("format") if isinstance(content, dict) else None
        raise RunError(
            f"{path} is not a router's file, but "
            + (f"holds a {kind!r}" if isinstance(kind, str) else "something else")
            + "; routers are written by: quantdrift route RUN --save FILE"
        )
    if content.get("format_version") != FORMAT_VERSION:
        raise RunError(
            f"{path} is of format version {content.get('format_version')}; this quantdrift reads "
            f"version {FORMAT_VERSION}"
        )
    threshold: Any = content.get("threshold")
    score: Any = content.get("score")
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not (number and math.isfinite(threshold) and score in CONFIDENCES):
        raise RunError(
            f"{path} is damaged: expected a finite threshold and a score of "
            f"{', '.join(CONFIDENCES)}; got {threshold!r}, {score!r}"
        )
    try:
        return float(threshold), score, Origin.read(content.get("set_on"))
    except ValueError as error:
        raise RunError(f"{path} is damaged: set_on: {error}") from error
