"""The committed baseline: a JSON file with the outcome of every input on a line of its own.

It holds what a paired test needs, and no text of the corpus: ids of inputs, digests of the first
answers, and one number per metric. The same run always gives the same file, to the byte, and an
input whose outcome changed is one changed line.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quantdrift.errors import QuantDriftError, RunError
from quantdrift.gate.snapshot import ANSWER, DIGITS, Identity, Snapshot
from quantdrift.metrics import Metric, parse_metric
from quantdrift.records import DIGEST, check_writable, read_object, refuse_other, sealed, write_text

__all__ = ["NAME", "baseline_text", "check_baseline_place", "read_baseline", "write_baseline"]

NAME = Path("drift-baseline.json")
"""Where it lies if nobody says otherwise."""

FORMAT = "quantdrift-baseline"
FORMAT_VERSION = 2

_MAKE = "quantdrift gate ... --update"


def baseline_text(snapshot: Snapshot) -> str:
    """A snapshot as it is written down.

    Args:
        snapshot: of the run that later ones are compared with.

    Returns:
        JSON; inputs in the order of their ids, each on one line: both first answers, and the
        outcomes in the order of `metrics`; null where one is undefined. A digest of it all is last.
    """
    identity = snapshot.identity
    names = list(snapshot.values)
    head = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "definitions": identity.definitions,
        "spec": identity.spec,
        "reference": {"name": identity.reference, "digest": identity.reference_digest},
        "candidate": {"digest": identity.candidate_digest},
        "data": {"name": identity.data, "digest": identity.data_digest},
        "settings": identity.settings,
        "software": identity.software,
        "n_inputs": snapshot.n_inputs,
        # for who reads the change of this file; nothing is computed from it
        "means": {name: _mean(snapshot, name) for name in names},
    }
    # not splitlines, which splits at characters that a prompt may hold
    lines = json.dumps(head, indent=2, ensure_ascii=False, allow_nan=False).split("\n")[:-1]
    columns = [snapshot.values[name].tolist() for name in names]
    order = sorted(range(snapshot.n_inputs), key=snapshot.input_ids.__getitem__)
    rows = []
    for row in order:
        outcome = [snapshot.answers[row], *(_number(column[row]) for column in columns)]
        name = _quoted(snapshot.input_ids[row])
        rows.append(f"    {name}: {json.dumps(outcome, allow_nan=False)}")
    head_text = "\n".join(lines)
    metrics = json.dumps(["answers", *names], ensure_ascii=False)
    inputs = ",\n".join(rows)
    text = f'{head_text},\n  "columns": {metrics},\n  "inputs": {{\n{inputs}\n  }}'
    digest = sealed(json.loads(f"{text}}}"))[DIGEST]
    return f'{text},\n  "{DIGEST}": "{digest}"\n}}\n'


def _quoted(name: str) -> str:
    # half a surrogate pair has no UTF-8
    return json.dumps(name, ensure_ascii=any("\ud800" <= letter <= "\udfff" for letter in name))


def check_baseline_place(path: Path) -> None:
    """Refuse a place that holds another kind of file, before hours go into a run.

    A damaged baseline, with both sides of a merge say, is one and may be replaced.

    Raises:
        RunError: it is a folder, or another kind of file.
    """
    check_writable(path, what="the baseline")
    if path.is_file():
        held = path.read_bytes().lstrip()
        if held.startswith((b"{", b"<<<<<<<")) and f'"format": "{FORMAT}"'.encode() in held:
            return
    refuse_other(path, FORMAT, "a baseline")


def write_baseline(snapshot: Snapshot, path: Path) -> None:
    """Write a baseline, replacing an earlier one.

    Args:
        snapshot: what to hold on to.
        path: the file.

    Raises:
        RunError: the place holds something else, or cannot be written.
    """
    check_baseline_place(path)
    write_text(path, baseline_text(snapshot), what="the baseline")


def read_baseline(path: Path) -> Snapshot:
    """The snapshot in a file that `write_baseline` wrote.

    Args:
        path: the file.

    Raises:
        RunError: it is missing, damaged (says where), something else, or of another version.
    """
    try:
        _refuse_conflict(path)
        content = read_object(
            path, FORMAT, FORMAT_VERSION, what="a baseline", make=_MAKE, error=RunError
        )
        return _snapshot(content)
    except RunError:
        raise
    except (KeyError, TypeError, ValueError, QuantDriftError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(
            f"{path} is damaged, expected a baseline: {what}. Take it back from version control, "
            f"or delete it and write it anew with: {_MAKE}"
        ) from error


def _refuse_conflict(path: Path) -> None:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return  # `read_object` says what is wrong
    place = next((n for n, line in enumerate(lines, 1) if line.startswith("<<<<<<< ")), None)
    if place is not None:
        raise RunError(
            f"{path} holds the marks of a merge conflict (line {place}). Take the whole file of "
            f"one side, or delete it and write it anew with: {_MAKE}"
        )


def _snapshot(content: Mapping[str, Any]) -> Snapshot:
    names = _columns(content["columns"])
    inputs = _object(content["inputs"], "inputs")
    if len(inputs) != content["n_inputs"]:
        raise ValueError(f"n_inputs is {content['n_inputs']!r}, and there are {len(inputs):,}")
    metrics = [parse_metric(name) for name in names]
    for name, row in inputs.items():
        if not isinstance(row, list) or len(row) != 1 + len(names):
            raise ValueError(f"input {name!r} has not one entry per column ({1 + len(names)})")
        if not isinstance(row[0], str) or not ANSWER.fullmatch(row[0]):
            raise ValueError(f"input {name!r} has {row[0]!r} for its answers")
        for metric, value in zip(metrics, row[1:], strict=True):
            if value is not None and not _is_outcome(metric, value):
                raise ValueError(f"input {name!r} has {_short(value)} for {metric}")
    table = np.array(
        [[math.nan if value is None else value for value in row[1:]] for row in inputs.values()],
        dtype=np.float64,
    ).reshape(len(inputs), len(names))
    return Snapshot(
        identity=_identity(content),
        input_ids=tuple(inputs),
        answers=tuple(row[0] for row in inputs.values()),
        values={name: table[:, place].copy() for place, name in enumerate(names)},
    )


def _columns(held: Any) -> list[str]:
    names = list(map(str, held)) if isinstance(held, list) else []
    if names[:1] != ["answers"] or len(set(names)) < len(names):
        raise ValueError(f"columns are 'answers' and metrics that differ; got {held!r}")
    return names[1:]


def _identity(content: Mapping[str, Any]) -> Identity:
    definitions = content["definitions"]
    if not isinstance(definitions, int):
        raise TypeError(f"definitions is {definitions!r}, and no number")
    reference, candidate, data, settings, software = (
        _object(content[name], name)
        for name in ("reference", "candidate", "data", "settings", "software")
    )
    return Identity(
        spec=str(content["spec"]),
        reference=str(reference["name"]),
        reference_digest=_digest(reference["digest"]),
        candidate_digest=_digest(candidate["digest"]),
        data=str(data["name"]),
        data_digest=_digest(data["digest"]),
        settings=dict(settings),
        software=dict(software),
        definitions=definitions,
    )


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {_short(value)}, and no object")
    return value


def _digest(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"a digest is {_short(value)}, and no text")
    return value


def _short(value: Any) -> str:
    return f"{value!r:.40}" if isinstance(value, str | float | bool) else f"{json.dumps(value):.40}"


def _is_outcome(metric: Metric, value: Any) -> bool:
    """Whether a metric can have this value for an input: of its range, and 0 or 1 for a rate."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if metric.uncertainty == "wilson":
        return value in {0, 1}
    # compared, not converted: an int may be larger than any float; and no comparison is true of NaN
    return metric.low <= value <= min(metric.high, sys.float_info.max)


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value


def _mean(snapshot: Snapshot, name: str) -> float | None:
    values = snapshot.values[name]
    values = values[np.isfinite(values)]
    # the exact sum, which does not depend on the order of the inputs
    return _number(round(math.fsum(values) / len(values), DIGITS)) if len(values) else None
