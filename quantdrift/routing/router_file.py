"""The small JSON file of a router: threshold, confidence, and what it was set on."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from quantdrift.confidence import CONFIDENCES, ConfidenceName
from quantdrift.errors import RunError, SpecError
from quantdrift.runs import Run
from quantdrift.spec import parse
from quantdrift.whole_file import refuse_other, write_text

__all__ = ["Origin", "read_router", "refuse_other_origin", "write_router"]

FORMAT = "quantdrift-router"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a threshold was set on; a part that is not known is None.

    Attributes:
        spec: of the pair, in its canonical form where it has one.
        model: name of the reference.
        model_fingerprint: digest of the reference's weights.
        data: name of the data.
        data_fingerprint: digest of the data.
        split: of the data.
        n_inputs: how many inputs the slice had.
    """

    spec: str | None = None
    model: str | None = None
    model_fingerprint: str | None = None
    data: str | None = None
    data_fingerprint: str | None = None
    split: str | None = None
    n_inputs: int | None = None

    @classmethod
    def of(cls, run: Run) -> Origin:
        """The origin of a threshold that is set on all inputs of a run."""
        model, data = run.record.get("model") or {}, run.record.get("data") or {}
        return cls(
            spec=_canonical(run.record.get("spec")),
            model=model.get("name"),
            model_fingerprint=model.get("fingerprint"),
            data=data.get("name"),
            data_fingerprint=data.get("fingerprint"),
            split=data.get("split"),
            n_inputs=run.evidence().n_inputs,
        )


def write_router(
    path: Path, *, threshold: float, score: ConfidenceName, origin: Origin | None
) -> None:
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
        "set_on": None if origin is None else asdict(origin),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_text(path, text, what="the router")


def read_router(path: Path) -> tuple[float, ConfidenceName, Origin | None]:
    """Threshold, confidence and origin of a router's file.

    Raises:
        RunError: no such file, or it cannot be read.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(
            f"expected a router's file; {path} cannot be read ({error.strerror}). "
            "Routers are written by: quantdrift route RUN --save FILE"
        ) from error
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(f"{path} is not a router's file")
    if content.get("format_version") != FORMAT_VERSION:
        raise RunError(
            f"{path} is of format version {content.get('format_version')}; this quantdrift reads "
            f"version {FORMAT_VERSION}"
        )
    threshold: Any = content.get("threshold")
    score: Any = content.get("score")
    set_on: Any = content.get("set_on")
    known = {field.name for field in fields(Origin)}
    sound = (
        isinstance(threshold, int | float)
        and not isinstance(threshold, bool)
        and math.isfinite(threshold)
        and score in CONFIDENCES
        and (set_on is None or (isinstance(set_on, dict) and set_on.keys() <= known))
    )
    if not sound:
        raise RunError(
            f"{path} is damaged: expected a finite threshold, a score of {', '.join(CONFIDENCES)}, "
            f"and set_on with {', '.join(sorted(known))}; got {threshold!r}, {score!r}, {set_on!r}"
        )
    return float(threshold), score, None if set_on is None else Origin(**set_on)


def refuse_other_origin(
    path: Path, origin: Origin | None, *, spec: str | None, model_fingerprint: str | None
) -> None:
    """Refuse a threshold that was set on another pair: gaps of different pairs do not compare.

    Args:
        path: of the file, for the message.
        origin: what it was set on.
        spec: what it is to be used with; not asked about if None.
        model_fingerprint: digest of the reference's weights, likewise.

    Raises:
        RunError: they differ, or the file does not tell.
    """
    wanted = {"spec": _canonical(spec), "model_fingerprint": model_fingerprint}
    for name, value in wanted.items():
        if value is None:
            continue
        found = None if origin is None else getattr(origin, name)
        if found != value:
            told = "does not say what it was set on" if found is None else f"was set on {found}"
            raise RunError(
                f"{path} {told}; expected {name} {value}. A threshold is worth nothing for another "
                "pair: set one with quantdrift route RUN --save FILE"
            )


def _canonical(spec: str | None) -> str | None:
    if spec is None:
        return None
    try:
        return str(parse(spec))
    except SpecError:  # two models side by side, or a name of the user's own
        return spec
