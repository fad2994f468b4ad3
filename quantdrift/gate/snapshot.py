"""What a baseline holds of a run: who was measured on what, and the outcome of every input."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import RunError

__all__ = ["DEFINITIONS", "DIGITS", "Identity", "Snapshot", "answer_of", "rounded"]

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
    before, after = _digest(reference), _digest(candidate)
    return before if before == after else f"{before}>{after}"


def _digest(name: str | None) -> str:
    if name is None:
        return "-"
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_HEX]


ANSWER = re.compile(r"(?P<reference>-|[0-9a-f]{6})(?:>(?P<candidate>-|[0-9a-f]{6}))?")
"""What `answer_of` returns."""
