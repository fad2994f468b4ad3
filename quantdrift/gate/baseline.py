"""The committed baseline: a JSON file with the outcome of every input on a line of its own.

It holds what a paired test needs, and no text of the corpus: ids of inputs, digests of the first
answers, and one number per metric. The same run always gives the same file, to the byte, and an
input whose outcome changed is one changed line.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.comparison.matching import HARMLESS, SOFTWARE
from quantdrift.errors import QuantDriftError, RunError
from quantdrift.evidence import Evidence
from quantdrift.finished.diff import Diff
from quantdrift.finished.readers.files import digest
from quantdrift.finished.record import data_digest
from quantdrift.metrics import Metric, parse_metric
from quantdrift.records import DIGEST, check_writable, read_object, refuse_other, sealed, write_text
from quantdrift.runs import classifies

__all__ = [
    "DEFINITIONS",
    "DIGITS",
    "NAME",
    "Identity",
    "Snapshot",
    "answer_of",
    "baseline_text",
    "check_baseline_place",
    "identity_of_diff",
    "identity_of_run",
    "of",
    "one_right_answer",
    "read_baseline",
    "rounded",
    "write_baseline",
]

# --- What a baseline holds of a run: who was measured on what, and the outcome of every input -----

DEFINITIONS = 1
"""Of the metrics; another number where one of them means something else than before."""

DIGITS = 6
"""Decimals of an outcome. Both sides of a comparison are rounded to these."""

_HEX = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who was measured, on what, and how.

    Attributes:
        spec: the pair, for people; may differ between two runs that are compared.
        reference: name of the reference model.
        reference_digest: of its weights; None where they were not seen (rankings of a server).
        candidate_digest: of the candidate's weights; None likewise.
        data: name of the data, with its split.
        data_digest: of ids, texts and labels.
        settings: what changes scores beyond rounding: similarity, prompts, shortlist, ...
        software: what changes them by rounding: device, library versions.
        definitions: of the metrics, see `DEFINITIONS`.
    """

    spec: str
    reference: str
    reference_digest: str | None
    candidate_digest: str | None
    data: str
    data_digest: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    software: Mapping[str, Any] = field(default_factory=dict)
    definitions: int = DEFINITIONS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """The outcomes of one run, input by input.

    Attributes:
        identity: who, on what, how.
        input_ids: of the rows, all different.
        answers: of every input, digests of both first answers (`answer_of`).
        values: metric string to float64 [n_inputs], rounded to `DIGITS`; NaN where it is undefined.

    Raises:
        RunError: lengths differ, or an input occurs twice.
    """

    identity: Identity
    input_ids: tuple[str, ...]
    answers: tuple[str, ...]
    values: Mapping[str, NDArray[np.float64]]

    def __post_init__(self) -> None:
        n = len(self.input_ids)
        if len(self.answers) != n or any(len(column) != n for column in self.values.values()):
            raise RunError(f"a snapshot needs one answer and one value per input ({n:,})")
        if len(set(self.input_ids)) != n:
            raise RunError("a snapshot needs input ids that differ, to pair runs by")

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return len(self.input_ids)

    def part(self, rows: Sequence[int] | NDArray[np.int64]) -> Snapshot:
        """The rows of some inputs, in the order given.

        Args:
            rows: positions, each at most once.
        """
        places = np.asarray(rows, dtype=np.int64)
        return Snapshot(
            identity=self.identity,
            input_ids=tuple(self.input_ids[row] for row in places),
            answers=tuple(self.answers[row] for row in places),
            values={name: column[places] for name, column in self.values.items()},
        )


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values as a baseline holds them, float64 [n_inputs]; no minus before a zero."""
    return np.round(values, DIGITS) + 0.0


def answer_of(reference: str | None, candidate: str | None) -> str:
    """Both first answers, as text that tells whether they changed and not what they are.

    Args:
        reference: name of the reference's first item; None where there is none.
        candidate: of the candidate's.

    >>> answer_of("doc7", "doc7"), answer_of("doc7", "doc9"), answer_of(None, None)
    ('d0b365', 'd0b365>dc3ed9', '-')
    """
    before, after = _snapshot_digest(reference), _snapshot_digest(candidate)
    return before if before == after else f"{before}>{after}"


def _snapshot_digest(name: str | None) -> str:
    if name is None:
        return "-"
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_HEX]


ANSWER = re.compile(r"(?P<reference>-|[0-9a-f]{6})(?:>(?P<candidate>-|[0-9a-f]{6}))?")
"""What `answer_of` returns."""

# --- The committed baseline: a JSON file with the outcome of every input on a line of its own -----

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


# --- Who was measured, on what and how, from what a run or a comparison of two tells --------------

_OF_DATA = ("subset", "revision", "n_fewshot")
"""What a harness tells of data that it has no digest of, beside name and split."""

_RANKED = frozenset({None, "reranking", "self-retrieval"})
"""Readings of scores that rank documents; by the others an input has one right answer."""


def identity_of_run(record: Mapping[str, Any]) -> Identity:
    """Of a run folder.

    Args:
        record: the content of its run.json.
    """
    # what a comparison of two finished runs wrote knows no weights
    compared = "diff" in record
    model, data, settings = (of(record, name) for name in ("model", "data", "settings"))
    told = {} if data.get("fingerprint") else {f"data {name}": data.get(name) for name in _OF_DATA}
    plain = _plain({**settings, **{name: held for name, held in told.items() if held is not None}})
    return Identity(
        spec=str(record.get("spec", "unknown spec")),
        reference=str(model.get("name", "unknown model")),
        reference_digest=None if compared else _text(model.get("fingerprint")),
        candidate_digest=None if compared else _text(model.get("candidate_fingerprint")),
        data=_data_name(data),
        data_digest=_text(data.get("fingerprint")),
        settings={k: held for k, held in plain.items() if k not in HARMLESS | SOFTWARE},
        software={k: held for k, held in plain.items() if k in SOFTWARE},
    )


def identity_of_diff(
    diff: Diff, parts: Mapping[str, Evidence], asked: Mapping[str, str]
) -> Identity:
    """Of a comparison of two finished runs.

    Args:
        diff: A is the reference, B the candidate.
        parts: evidence by name; the name is empty where there is only one.
        asked: digest of what its inputs were asked, by the same names.
    """
    n = sum(evidence.n_inputs for evidence in parts.values())
    return Identity(
        spec=f"{diff.a.model} vs {diff.b.model}",
        reference=diff.a.model,
        reference_digest=None,
        candidate_digest=None,
        data=diff.a.data or diff.b.data or f"{n:,} inputs",
        data_digest=_identity_digest(parts, asked),
        settings={k: held for name in parts for k, held in _settings(name, parts[name]).items()},
    )


def one_right_answer(record: Mapping[str, Any]) -> bool:
    """Whether the inputs of a run have one right answer: a class, a choice, a text.

    Args:
        record: the content of its run.json.
    """
    asked = of(of(record, "diff"), "reference").get("format") == "lm-eval"
    return asked or classifies(record) or of(record, "settings").get("reading") not in _RANKED


def of(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a record; empty if it has none of that name."""
    held = record.get(name)
    return held if isinstance(held, Mapping) else {}


def _identity_digest(parts: Mapping[str, Evidence], asked: Mapping[str, str]) -> str:
    """Of one part that of its data, so that a comparison that was written down has it too."""
    own = {name: data_digest(evidence, asked[name]) for name, evidence in parts.items()}
    if len(own) == 1:
        return next(iter(own.values()))
    return digest(*(f"{name}\n{each}" for name, each in own.items()))


def _settings(name: str, evidence: Evidence) -> dict[str, Any]:
    """Those of a comparison that was written down, so that either can be the baseline's."""
    of_part = f" of {name}" if name else ""
    # what a bound is worth depends on how deep the lists were
    depth = {} if evidence.exact else {f"ranks_compared{of_part}": evidence.depth}
    return {f"deltas{of_part}": evidence.deltas, **depth}


def _data_name(data: Mapping[str, Any]) -> str:
    split = data.get("split")
    return f"{data.get('name', 'unnamed data')}" + (f" ({split})" if split else "")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by sorted name, as JSON gives them back."""
    return dict(json.loads(json.dumps(settings, sort_keys=True)))
