"""The result of a gate, and its JSON."""

from dataclasses import dataclass
from typing import Any, Literal

from quantdrift.gate.rules import Rule
from quantdrift.gate.target import Drawn
from quantdrift.runs.changes import Changed
from quantdrift.statistics.estimates import Estimate, as_json

ALPHA = 0.05

Verdict = Literal["pass", "fail", "underpowered", "incomparable", "error"]
"""Verdict on a run, or outcome of a rule; "error" means that the metric of a rule is undefined in this run."""

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "fail": 1, "error": 2, "incomparable": 3, "underpowered": 4}
"""Exit code of the command by verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The outcome of one rule.

    Attributes:
        rule: the rule.
        outcome: its outcome.
        reason: why, without a full stop.
        n: inputs with a value that are not set aside.
        now: value in the run, with its 95 % interval; of a run that stopped when its rules were settled, the ends are
            bounds that hold at such a time, each at the level of the tests.
        before: value in the baseline, on the same inputs; this and the fields below are None, 0 or empty for a limit.
        difference: now minus before, with its 95 % interval.
        worse: inputs that are worse than in the baseline.
        better: inputs that are better.
        set_aside: inputs left out of the tests, as noise alone changes their first answer.
        p_worse: one-sided p-value of "no worse than the baseline" (or, where inputs were answered until rules were
            settled, of "within the limit"); a small one shows a failure.
        p_worse_holm: the same, adjusted for the number of rules.
        p_no_worse: p-value of "worse by the margin or more" (or of "beyond the limit"); a small one shows a pass. It is
            not adjusted.
        needed: inputs that show a pass with probability 0.8 if neither is better and the share that differs stays; if
            no input differs, the fewest that show it.
        inputs: names of the worst of the inputs that are worse than in the baseline.
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
    """An input whose top-1 changed.

    Attributes:
        part: name of the task or subset; empty where there is only one.
        new: whether its top-1 had not changed in the baseline; None without a baseline.
    """

    part: str = ""
    new: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The run that the baseline was written from."""

    spec: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The result of judging a run.

    Attributes:
        verdict: the gravest of the outcomes.
        spec: the pair that was judged.
        data: name of its data, with the split.
        baseline: the run of the baseline; None without one.
        n_inputs: inputs of the run.
        alpha: level of the tests.
        path: folder of the run; None of two finished runs that were compared.
        differs: differences that make run and baseline incomparable.
        notes: remarks, one sentence each, without a full stop.
        n_changed: inputs with a top-1 change.
        n_new: those among them that had none in the baseline; None without a baseline.
        n_answers_changed: inputs to which the candidate gives another answer than in the baseline; None without one.
        rules: the judgement of each rule, in order.
        worst: inputs with a top-1 change, the worst first.
        accept_underpowered: whether "underpowered" counts as success.
        sequential: the inputs that were drawn until the rules were settled; None if their number was fixed.
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
    sequential: Drawn | None = None

    @property
    def accepted(self) -> bool:
        """Whether the verdict is "underpowered" and counts as success."""
        return self.accept_underpowered and self.verdict == "underpowered"

    @property
    def exit_code(self) -> int:
        """Exit code of the command."""
        return EXIT_CODES["pass" if self.accepted else self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; its exit code shows whether "underpowered" is accepted."""
        content = {name: value for name, value in as_json(self).items() if name != "accept_underpowered"}
        return {"verdict": self.verdict, "exit_code": self.exit_code, **content}
