"""What the files of a finished run hold, whoever wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from quantdrift.finished.rankings import Qrels, Rankings

__all__ = [
    "ARMS",
    "FORMATS",
    "Arm",
    "FinishedRun",
    "Format",
    "Labelled",
    "Part",
    "Ranked",
    "Sampled",
]

Format = Literal["trec", "json", "mteb", "lm-eval", "run"]

FORMATS: dict[str, str] = {
    "trec": "a TREC run file (query Q0 document rank score tag)",
    "json": "rankings as JSON, query to document to score (what beir's search returns)",
    "mteb": "predictions of mteb (TASK_predictions.json, or a folder of them)",
    "lm-eval": "samples of lm-eval (samples_TASK_DATE.jsonl, or the folder --log_samples filled)",
    "run": "a run folder of quantdrift",
}
"""Format to what it is."""

Arm = Literal["candidate", "reference"]
ARMS: tuple[str, ...] = get_args(Arm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Rankings of inputs.

    Attributes:
        rankings: input to item to score.
        depth: how many of the first ranks are surely the first; None for all of them. Below it,
            items are missing between those that are there.
        complete: whether every input's list holds all its items.
        qrels: relevance labels, where the run has them.
        numbered: whether inputs have no names and are counted from 0.
    """

    rankings: Rankings
    depth: int | None = None
    complete: bool = False
    qrels: Qrels | None = None
    numbered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One answer per input, without a score.

    Attributes:
        answers: input to answer.
        qrels: input to answer to grade, right if greater than 0, where the run has it.
        numbered: whether inputs have no names and are counted from 0.
    """

    answers: Mapping[str, str]
    qrels: Qrels | None = None
    numbered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Samples of one task of lm-eval.

    Attributes:
        task: its name.
        samples: as they were logged, one per document and filter.
    """

    task: str
    samples: Sequence[Mapping[str, Any]]


Part = Ranked | Labelled | Sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished run.

    Attributes:
        path: what was read.
        format: what wrote it.
        name: of the model, or else of the file.
        digest: of the content.
        parts: what is compared apart from the rest, by name: a subset and split, a task. One part
            of no name where there is only one.
        settings: what must be the same in the other run, if it has the format of this one: by name
            of the part, and of no name for all of them.
        data: what it is a run on, where that is known.
        data_by: of a run folder, the program whose queries and documents these are.
        reference: digest of the reference model of a run folder.
        notes: what to know; one sentence each, without a full stop.
    """

    path: Path
    format: Format
    name: str
    digest: str
    parts: Mapping[str, Part]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: str | None = None
    data_by: str | None = None
    reference: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The name as a pair can hold it: on one line, without the word between two models."""
        return " ".join(self.name.split()).replace(" vs ", "-vs-") or self.format
