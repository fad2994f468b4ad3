"""The result of a gate, and what the JSON file of it holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quantdrift.gate.rules import Rule
from quantdrift.runs.changes import Changed
from quantdrift.statistics.estimates import Estimate, as_json

ALPHA = 0.05

Verdict = Literal["pass", "fail", "underpowered", "incomparable", "error"]
"""Of a run and of a rule; "error" is one that asks for what is undefined in this run."""

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "fail": 1, "error": 2, "incomparable": 3, "underpowered": 4}
"""What the command ends with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The outcome of one rule.

    Attributes:
        rule: what was asked.
        outcome: the answer.
        reason: why, a sentence without a full stop.
        n: inputs it rests on.
        now: value in the run, with its 95 % interval; of inputs set aside, that in the baseline.
        before: value in the baseline, on the same inputs; like all that follows None or 0 for a limit.
        difference: now minus before, with its 95 % interval.
        worse: inputs that are worse than in the baseline.
        better: inputs that are better.
        set_aside: inputs left out of the tests, as noise alone changes their first answer.
        p_worse: one-sided, of "no worse than the baseline"; small speaks for a failure.
        p_worse_holm: the same, adjusted for the number of rules.
        p_no_worse: of "worse by the margin or more"; small speaks for passing. Not adjusted: all rules must pass.
        needed: inputs with which passing is shown: with probability 0.8 if neither is better and as many go on to
            differ; if none differs, the least that show it.
        inputs: some that are worse than in the baseline, the worst first.
    """

    rule: Rule
    outcome: Verdict
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
        """As JSON values."""
        return {**as_json(self), "rule": str(self.rule)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst(Changed):
    """An input whose top-1 changed, as `Changed` has it.

    Attributes:
        part: name of the task or subset; empty where there is only one.
        new: whether it had not changed in the baseline; None without one.
    """

    part: str = ""
    new: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The run that a baseline was written of, by its spec."""

    spec: str | None


def slices_of_failed(judgements: Sequence[Judgement]) -> list[str]:
    """The slices of the rules that failed; none where one of them is on all inputs, or none failed."""
    failed = dict.fromkeys(judgement.rule.on for judgement in judgements if judgement.outcome == "fail")
    return [] if None in failed else [name for name in failed if name is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """A run judged.

    Attributes:
        verdict: the gravest of the outcomes.
        spec: who was judged.
        data: on what, with its split.
        baseline: what the baseline is of; None without one.
        n_inputs: inputs of the run.
        alpha: level of the tests.
        path: the folder of the run that was judged, where texts and rankings are; None of two that were compared.
        differs: what makes run and baseline incomparable.
        notes: what to know, one sentence each, without a full stop.
        n_changed: inputs whose first answer is not the reference's.
        n_new: of these, how many had not changed in the baseline; None without one.
        n_answers_changed: inputs to which the candidate gives another answer than in the baseline; None without one.
        rules: what every rule came to, in order.
        worst: changed inputs, the worst first; where all rules that failed are on slices, those in them.
        accept_underpowered: whether too few inputs end in success.
    """

    verdict: Verdict
    spec: str | None
    data: str
    baseline: Earlier | None = None
    n_inputs: int
    alpha: float = ALPHA
    path: str | None = None
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    n_changed: int
    n_new: int | None = None
    n_answers_changed: int | None = None
    rules: tuple[Judgement, ...]
    worst: tuple[Worst, ...] = ()
    accept_underpowered: bool = False

    @property
    def accepted(self) -> bool:
        """Whether there are too few inputs, and that is taken for success."""
        return self.accept_underpowered and self.verdict == "underpowered"

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return EXIT_CODES["pass" if self.accepted else self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, in which the exit code says whether too few inputs are accepted."""
        content = {name: value for name, value in as_json(self).items() if name != "accept_underpowered"}
        return {"verdict": self.verdict, "exit_code": self.exit_code, **content}
