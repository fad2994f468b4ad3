"""What is gathered of the reference while lm-eval asks the candidate."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class Recording:
    """The answers and times of the reference that are gathered while lm-eval asks the candidate.

    Attributes:
        tasks: lm-eval's, by name.
        needs_digest: whether the digest of the candidate is to be taken.
        answers: id of a request to the reference's answers, in order; requests live as long as their tasks.
        seconds: time by stage.
        candidate_fingerprint: digest of the candidate, where it was taken.
        prepared: whether the candidate is calibrated.
    """

    tasks: Mapping[str, Any]
    needs_digest: bool = False
    answers: dict[int, list[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    candidate_fingerprint: str | None = None
    prepared: bool = False

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time inside for a stage."""
        start = time.perf_counter()
        yield
        self.seconds[stage] = round(self.seconds.get(stage, 0) + time.perf_counter() - start, 3)
