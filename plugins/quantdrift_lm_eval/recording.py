"""What an evaluation learns of the reference while lm-eval asks the candidate."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class Recording:
    """One evaluation of a pair.

    Attributes:
        tasks: lm-eval's, by name.
        cache: the answers that --use_cache keeps; None keeps none.
        needs_digest: whether the digest of the candidate is to be taken.
        answers: id of a request to the reference's answers, in order; requests live as long as
            their tasks.
        again: the same, run again for the noise floor; without requests whose answers are drawn.
        seconds: time by stage.
        candidate_fingerprint: digest of the candidate, where it was taken.
        prepared: whether the candidate is calibrated.
    """

    tasks: Mapping[str, Any]
    cache: MutableMapping[str, Any] | None = None
    needs_digest: bool = False
    answers: dict[int, list[Any]] = field(default_factory=dict)
    again: dict[int, list[Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    candidate_fingerprint: str | None = None
    prepared: bool = False

    @property
    def requests(self) -> list[Any]:
        """All requests of all tasks on this rank."""
        return [request for task in self.tasks.values() for request in task.instances]

    def note(self, requests: Sequence[Any], answers: Sequence[Any]) -> None:
        """Remember the reference's answers."""
        for request, answer in zip(requests, answers, strict=True):
            self.answers.setdefault(id(request), []).append(answer)

    def note_again(self, requests: Sequence[Any], answers: Sequence[Any]) -> None:
        """Remember what it answered when it was run again."""
        for request, answer in zip(requests, answers, strict=True):
            self.again.setdefault(id(request), []).append(answer)
