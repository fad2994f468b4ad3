"""The committed baseline: a JSON file with the outcome of every input on a line of its own.

It holds what a paired test needs, and no text of the corpus: ids of inputs, digests of the first answers, and one
number per metric. The same run always gives the same file, to the byte, and an input whose outcome changed is one
changed line.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from quantdrift.base.errors import RunError
from quantdrift.base.records import DIGEST, Real, Record, Whole
from quantdrift.metrics import parse_metric
from quantdrift.runs.identity import Identity

DIGITS = 6
"""Decimals of an outcome. Both sides of a comparison are rounded to these."""

NAME = Path("drift-baseline.json")
"""File of the baseline by default."""

ANSWER = re.compile(r"(-|[0-9a-f]{6})(>(-|[0-9a-f]{6}))?")
"""Form of the texts that `answer_of` returns."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """The outcomes of one run, input by input.

    Attributes:
        identity: the pair, its data and its settings.
        input_ids: names of the inputs, all different.
        answers: digests of the first answers of reference and candidate, by input (`answer_of`).
        values: metric string to float64 [n_inputs], rounded to `DIGITS`; NaN where it is undefined.

    Raises:
        RunError: an input occurs twice.
    """

    identity: Identity
    input_ids: tuple[str, ...]
    answers: tuple[str, ...]
    values: Mapping[str, NDArray[np.float64]]

    def __post_init__(self) -> None:
        if len(set(self.input_ids)) != len(self.input_ids):
            raise RunError("a snapshot needs input ids that differ, to pair runs by")

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return len(self.input_ids)

    def part(self, rows: Sequence[int] | NDArray[np.int64]) -> "Snapshot":
        """The snapshot of some inputs, each at most once, in the order of `rows`."""
        places = np.asarray(rows, dtype=np.int64)
        return Snapshot(
            identity=self.identity,
            input_ids=tuple(self.input_ids[row] for row in places),
            answers=tuple(self.answers[row] for row in places),
            values={name: column[places] for name, column in self.values.items()},
        )


def answer_of(reference: str | None, candidate: str | None) -> str:
    """Digests of the first answers of both arms, which show a change without the names of the answers.

    >>> answer_of("doc7", "doc7"), answer_of("doc7", "doc9"), answer_of(None, None)
    ('d0b365', 'd0b365>dc3ed9', '-')
    """
    before, after = (
        "-" if name is None else hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:6]
        for name in (reference, candidate)
    )
    return before if before == after else f"{before}>{after}"


_Number = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)] | Real | None
_Cell = str | _Number


class _Named(BaseModel, strict=True, frozen=True):
    name: str
    digest: str | None


class _Candidate(BaseModel, strict=True, frozen=True):
    digest: str | None


class Baseline(Record):
    """A snapshot as it stands in the file; inputs in the order of their ids, each on one line."""

    FORMAT, VERSION = "quantdrift-baseline", 2
    WHAT, MAKE = "a baseline", "quantdrift gate ... --update"

    definitions: Literal[1] = 1
    """Version of the metrics' definitions; it rises when the meaning of a metric changes."""
    spec: str
    reference: _Named
    candidate: _Candidate
    data: _Named
    settings: dict[str, Any]
    software: dict[str, Any]
    n_inputs: Whole
    means: dict[str, _Number]
    """For people who read a diff of the file; nothing is computed from it."""
    columns: list[str]
    inputs: dict[str, list[_Cell]]
    """Digests of the first answers, then the outcomes in the order of `columns`; null where one is undefined."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Self:
        """Make the file of a snapshot."""
        identity = snapshot.identity
        model = "unknown model" if identity.model is None else identity.model
        columns = [values.tolist() for values in snapshot.values.values()]
        return cls(
            spec="unknown spec" if identity.spec is None else identity.spec,
            reference=_Named(name=model, digest=identity.model_fingerprint),
            candidate=_Candidate(digest=identity.candidate_fingerprint),
            data=_Named(name=identity.data_name, digest=identity.data_fingerprint),
            settings=identity.meaning,
            software=identity.software,
            n_inputs=snapshot.n_inputs,
            means={name: _mean(values) for name, values in snapshot.values.items()},
            columns=["answers", *snapshot.values],
            inputs={
                snapshot.input_ids[row]: [snapshot.answers[row], *(_number(column[row]) for column in columns)]
                for row in sorted(range(snapshot.n_inputs), key=snapshot.input_ids.__getitem__)
            },
        )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.columns[:1] != ["answers"] or len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns are 'answers' and metrics that differ; got {self.columns}")
        if len(self.inputs) != self.n_inputs:
            raise ValueError(f"n_inputs is {self.n_inputs}, and there are {len(self.inputs):,}")
        for name, (answers, *values) in ((name, row or [None]) for name, row in self.inputs.items()):
            numbers = len(values) == len(self.columns) - 1 and not any(isinstance(value, str) for value in values)
            if not (numbers and ANSWER.fullmatch(str(answers))):
                raise ValueError(f"input {name!r} needs its answers and a number for each of the other columns")
        for name, column in self.snapshot().values.items():
            metric, defined = parse_metric(name), column[~np.isnan(column)]
            in_range = (metric.low <= defined) & (defined <= metric.high)
            if not (in_range & (metric.uncertainty != "wilson" or defined % 1 == 0)).all():
                raise ValueError(f"an input has a value for {name} that it cannot have")
        return self

    def snapshot(self) -> Snapshot:
        """The outcomes that the file holds."""
        table = [[math.nan if value is None else value for value in row[1:]] for row in self.inputs.values()]
        values = np.array(table, dtype=np.float64).reshape(self.n_inputs, len(self.columns) - 1)
        return Snapshot(
            identity=Identity(
                spec=self.spec,
                model=self.reference.name,
                model_fingerprint=self.reference.digest,
                candidate_fingerprint=self.candidate.digest,
                data=self.data.name,
                data_fingerprint=self.data.digest,
                settings={**self.settings, **self.software},
            ),
            input_ids=tuple(self.inputs),
            answers=tuple(str(row[0]) for row in self.inputs.values()),
            values={str(parse_metric(name)): values[:, place] for place, name in enumerate(self.columns[1:])},
        )

    def text(self) -> str:
        """The content of the file, one line for each input."""
        content = self.content()
        digest, inputs, columns = (content.pop(name) for name in (DIGEST, "inputs", "columns"))
        lines = ",\n".join(
            f"    {json.dumps(name, ensure_ascii=False)}: {json.dumps(row)}" for name, row in inputs.items()
        )
        head = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).removesuffix("\n}")
        named = json.dumps(columns, ensure_ascii=False)
        text = f'{head},\n  "columns": {named},\n  "inputs": {{\n{lines}\n  }},\n  "{DIGEST}": "{digest}"\n}}\n'
        # half a surrogate pair has no UTF-8
        return re.sub("[\ud800-\udfff]", lambda half: json.dumps(half[0])[1:-1], text)


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value


def _mean(values: NDArray[np.float64]) -> float | None:
    values = values[np.isfinite(values)]
    # the exact sum, which does not depend on the order of the inputs
    return _number(round(math.fsum(values) / len(values), DIGITS)) if len(values) else None
