"""What the gate comes to: a verdict, what every rule came to, and what to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quantdrift.finished.changed import Changed
from quantdrift.gate.rule import Rule
from quantdrift.gate.snapshot import Identity
from quantdrift.statistics import Estimate

__all__ = ["EXIT_CODES", "GateResult", "Judgement", "Outcome", "Verdict", "Worst", "verdict_of"]

Verdict = Literal["pass", "fail", "underpowered", "incomparable", "error"]

EXIT_CODES: dict[Verdict, int] = {
    "pass": 0,
    "fail": 1,
    "error": 2,
    "incomparable": 3,
    "underpowered": 4,
}
"""What the command ends with."""

Outcome = Literal["pass", "fail", "underpowered", "incomparable", "error"]
"""Of one rule. "error": what it asks for is undefined in this run."""

_GRAVEST_FIRST: tuple[Verdict, ...] = ("error", "fail", "incomparable", "underpowered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one rule came to.

    Attributes:
        rule: what was asked.
        outcome: the answer.
        reason: why, a sentence without a full stop.
        n: inputs it rests on.
        now: value in the run, with its 95 % interval; of inputs set aside, that in the baseline.
        before: value in the baseline, on the same inputs; None for a limit.
        difference: now minus before, with its 95 % interval; None for a limit.
        worse: inputs that are worse than in the baseline; None for a limit.
        better: inputs that are better; likewise.
        set_aside: inputs left out of the tests, as noise alone changes their first answer.
        p_worse: one-sided, of "no worse than the baseline"; small speaks for a failure. None for a
            limit.
        p_worse_holm: the same, adjusted for the number of rules.
        p_no_worse: of "worse by the margin or more"; small speaks for passing. Not adjusted: all
            rules must pass.
        needed: inputs with which passing is shown: with probability 0.8 if neither is better and as
            many go on to differ; if none differs, the least that show it.
        inputs: some that are worse than in the baseline, the worst first.
    """

    rule: Rule
    outcome: Outcome
    reason: str
    n: int = 0
    now: Estimate | None = None
    before: float | None = None
    difference: Estimate | None = None
    worse: int | None = None
    better: int | None = None
    set_aside: int = 0
    p_worse: float | None = None
    p_worse_holm: float | None = None
    p_no_worse: float | None = None
    needed: int | None = None
    inputs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the rule is its string."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["rule"] = str(self.rule)
        for name in ("now", "difference"):
            values[name] = None if values[name] is None else values[name].to_json()
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """An input whose first answer changed.

    Attributes:
        changed: what gave way to what.
        part: name of the task or subset; empty where there is only one.
        new: whether it had not changed in the baseline; None without one.
    """

    changed: Changed
    part: str
    new: bool | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"part": self.part, "new": self.new, **self.changed.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """A run judged.

    Attributes:
        verdict: the gravest of the outcomes.
        judgements: one per rule, in order.
        identity: who was judged, on what.
        n_inputs: inputs of the run.
        baseline: who the baseline is of; None without one.
        differs: what makes run and baseline incomparable.
        notes: what to know, one sentence each, without a full stop.
        n_changed: inputs whose first answer is not the reference's.
        n_new: of these, how many had not changed in the baseline; None without one.
        n_answers_changed: inputs to which the candidate gives another answer than in the baseline;
            None without one.
        worst: changed inputs, the worst first.
        alpha: level of the tests.
    """

    verdict: Verdict
    judgements: tuple[Judgement, ...]
    identity: Identity
    n_inputs: int
    baseline: Identity | None
    differs: tuple[str, ...]
    notes: tuple[str, ...]
    n_changed: int
    n_new: int | None
    n_answers_changed: int | None
    worst: tuple[Worst, ...]
    alpha: float

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "spec": self.identity.spec,
            "data": self.identity.data,
            "n_inputs": self.n_inputs,
            "baseline": None if self.baseline is None else {"spec": self.baseline.spec},
            "alpha": self.alpha,
            "rules": [judgement.to_json() for judgement in self.judgements],
            "differs": list(self.differs),
            "notes": list(self.notes),
            "n_changed": self.n_changed,
            "n_new": self.n_new,
            "n_answers_changed": self.n_answers_changed,
            "worst": [each.to_json() for each in self.worst],
        }


def verdict_of(outcomes: Sequence[Outcome]) -> Verdict:
    """The gravest of some outcomes; "pass" if nothing is against it.

    A limit that is broken fails whatever the baseline, so "fail" goes before "incomparable".

    >>> verdict_of(["pass", "underpowered", "pass"]), verdict_of(["incomparable", "fail"])
    ('underpowered', 'fail')
    """
    return next((verdict for verdict in _GRAVEST_FIRST if verdict in outcomes), "pass")
