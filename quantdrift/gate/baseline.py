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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from quantdrift.errors import QuantDriftError, RunError
from quantdrift.metrics import Metric, parse_metric
from quantdrift.records import DIGEST, check_writable, is_number, read_object, refuse_other, sealed, write_text

# --- what is held on to -----------------------------------------------------------------------

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

    def differences(self, before: Identity) -> list[str]:
        """What keeps a run of this identity from being compared with one of another, a line each.

        Args:
            before: of the baseline.
        """
        versions = [{"": f"version {each.definitions}"} for each in (before, self)]
        found = _unlike("definitions of the metrics:", *versions)
        for what, hint in (("reference", ""), ("data", ": ids, texts or labels are others, or their order")):
            names = [getattr(each, what) for each in (before, self)]
            one, other = (getattr(each, f"{what}_digest") for each in (before, self))
            if one is not None and other is not None:
                if one != other:
                    title = "reference model" if what == "reference" else what
                    found.append(
                        f"{title}: {', now '.join(dict.fromkeys(names))} (digest {one[:12]} in "
                        f"the baseline, {other[:12]} now){hint}"
                    )
            elif what == "data":  # what a harness has no digest of is known by its name
                found += _unlike("data:", *({"": name} for name in names))
        return found + _unlike("setting {}:", before.settings, self.settings)

    def cautions(self, before: Identity) -> list[str]:
        """What is different and may change scores by rounding, a sentence each.

        Args:
            before: of the baseline.
        """
        return _unlike("{} differs:", before.software, self.software)

    def same_candidate(self, before: Identity) -> bool:
        """Whether the candidate's weights are known to be those of the baseline.

        Args:
            before: of the baseline.
        """
        known = self.candidate_digest is not None and self.spec == before.spec
        return known and self.candidate_digest == before.candidate_digest


def _unlike(title: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The entries in which two mappings differ, a line each."""
    return [
        f"{title.format(name)} {_told(before.get(name))} in the baseline, {_told(now.get(name))} now"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]


def _told(value: Any) -> str:
    if isinstance(value, Mapping) and "digest" in value:
        return f"digest {str(value['digest'])[:12]}"
    return "nothing" if value is None else str(value)


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
    before, after = _short_digest(reference), _short_digest(candidate)
    return before if before == after else f"{before}>{after}"


def _short_digest(name: str | None) -> str:
    if name is None:
        return "-"
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_HEX]


ANSWER = re.compile(r"(?P<reference>-|[0-9a-f]{6})(?:>(?P<candidate>-|[0-9a-f]{6}))?")
"""What `answer_of` returns."""

# --- the file ---------------------------------------------------------------------------------

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
    who = snapshot.identity
    head = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "definitions": who.definitions,
        "spec": who.spec,
        "reference": {"name": who.reference, "digest": who.reference_digest},
        "candidate": {"digest": who.candidate_digest},
        "data": {"name": who.data, "digest": who.data_digest},
        "settings": who.settings,
        "software": who.software,
        "n_inputs": snapshot.n_inputs,
        # for who reads the change of this file; nothing is computed from it
        "means": {name: _mean(values) for name, values in snapshot.values.items()},
    }
    columns = [snapshot.values[name].tolist() for name in snapshot.values]
    rows = {
        snapshot.input_ids[row]: [snapshot.answers[row], *(_number(each[row]) for each in columns)]
        for row in sorted(range(snapshot.n_inputs), key=snapshot.input_ids.__getitem__)
    }
    names = ["answers", *snapshot.values]
    digest = sealed({**head, "columns": names, "inputs": rows})[DIGEST]
    lines = ",\n".join(f"    {_quoted(name)}: {json.dumps(row)}" for name, row in rows.items())
    text = json.dumps(head, indent=2, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
    return (
        f'{text},\n  "columns": {json.dumps(names, ensure_ascii=False)},\n  "inputs": '
        f'{{\n{lines}\n  }},\n  "{DIGEST}": "{digest}"\n}}\n'
    )


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
        content = read_object(path, FORMAT, FORMAT_VERSION, what="a baseline", make=_MAKE, error=RunError)
    except RunError:
        _refuse_conflict(path)
        raise
    try:
        return _File.model_validate(content).snapshot()
    except (ValidationError, ValueError, QuantDriftError) as error:
        what = problem_of(error) if isinstance(error, ValidationError) else error
        raise RunError(
            f"{path} is damaged, expected a baseline: {what}. Take it back from version control, "
            f"or delete it and write it anew with: {_MAKE}"
        ) from error


def _refuse_conflict(path: Path) -> None:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return  # what is wrong has been said
    place = next((n for n, line in enumerate(lines, 1) if line.startswith("<<<<<<< ")), None)
    if place is not None:
        raise RunError(
            f"{path} holds the marks of a merge conflict (line {place}). Take the whole file of "
            f"one side, or delete it and write it anew with: {_MAKE}"
        )


class _Named(BaseModel, strict=True):
    name: str
    digest: str | None


class _Candidate(BaseModel, strict=True):
    digest: str | None


class _File(BaseModel, strict=True):
    """What stands in a baseline, as it is read."""

    definitions: int
    spec: str
    reference: _Named
    candidate: _Candidate
    data: _Named
    settings: dict[str, Any]
    software: dict[str, Any]
    n_inputs: int
    columns: list[str]
    inputs: dict[str, list[Any]]

    def snapshot(self) -> Snapshot:
        """It, checked as a whole.

        Raises:
            ValueError: parts of it do not go together, or a metric cannot have such a value.
            QuantDriftError: there is no such metric.
        """
        first, *names = self.columns or [""]
        if first != "answers" or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns are 'answers' and metrics that differ; got {self.columns}")
        if len(self.inputs) != self.n_inputs:
            raise ValueError(f"n_inputs is {self.n_inputs}, and there are {len(self.inputs):,}")
        for name, row in self.inputs.items():
            if len(row) != 1 + len(names):
                raise ValueError(f"input {name!r} has not one entry per column ({1 + len(names)})")
            if not isinstance(row[0], str) or not ANSWER.fullmatch(row[0]):
                raise ValueError(f"input {name!r} has {row[0]!r:.40} for its answers")
        rows = [row[1:] for row in self.inputs.values()]
        ids = tuple(self.inputs)
        return Snapshot(
            identity=Identity(
                spec=self.spec,
                reference=self.reference.name,
                reference_digest=self.reference.digest,
                candidate_digest=self.candidate.digest,
                data=self.data.name,
                data_digest=self.data.digest,
                settings=self.settings,
                software=self.software,
                definitions=self.definitions,
            ),
            input_ids=ids,
            answers=tuple(row[0] for row in self.inputs.values()),
            values={
                name: _column(parse_metric(name), [row[place] for row in rows], ids) for place, name in enumerate(names)
            },
        )


def _column(metric: Metric, held: Sequence[Any], ids: Sequence[str]) -> NDArray[np.float64]:
    """The outcomes of a metric: in its range, and 0 or 1 for a rate."""
    rate = metric.uncertainty == "wilson"
    for name, value in zip(ids, held, strict=True):
        if value is not None and not (
            is_number(value) and (value in {0, 1} if rate else metric.low <= value <= metric.high)
        ):
            raise ValueError(f"input {name!r} has {value!r:.40} for {metric}")
    return np.array([math.nan if value is None else value for value in held], dtype=np.float64)


def problem_of(error: ValidationError) -> str:
    """The first thing that is wrong with a file, and where, in one line.

    Args:
        error: of the model that describes the file.
    """
    first = error.errors()[0]
    place = ".".join(str(each) for each in first["loc"])
    if first["type"] == "missing":
        return f"{place} is missing"
    what = first["msg"].lower().partition(" or instance")[0]
    return f"{place}: {what}; got {first['input']!r:.40}"


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value


def _mean(values: NDArray[np.float64]) -> float | None:
    values = values[np.isfinite(values)]
    # the exact sum, which does not depend on the order of the inputs
    return _number(round(math.fsum(values) / len(values), DIGITS)) if len(values) else None
