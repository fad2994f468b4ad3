"""The recording of the reference while lm-eval evaluates the candidate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class Recording:
    """The reference's answers and the times of stages, while lm-eval evaluates the candidate.

    Attributes:
        tasks: lm-eval's tasks by name.
        needs_digest: whether the candidate's digest is needed.
        answers: id of a request to the reference's answers, in order; requests live as long as their tasks.
        seconds: time by stage.
        candidate_fingerprint: the candidate's digest, once it is taken.
        prepared: whether the candidate is calibrated.
    """

    tasks: Mapping[str, Any]
    needs_digest: bool = False
    answers: dict[int, list[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    candidate_fingerprint: str | None = None
    prepared: bool = False
