"""The result of a gate, and the JSON file that holds it: one shape, which is written and read back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf, PlainSerializer, TypeAdapter, ValidationError

from quantdrift.base.errors import QuantDriftError, RunError
from quantdrift.base.records import Real, Share, Whole, problem_of, read_json
from quantdrift.gate.rules import Rule, parse_rule
from quantdrift.runs.changes import Changed
from quantdrift.statistics.estimates import Estimate

ALPHA = 0.05

Verdict = Literal["pass", "fail", "underpowered", "incomparable", "error"]
"""Of a run and of a rule; "error" is one that asks for what is undefined in this run."""

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "fail": 1, "error": 2, "incomparable": 3, "underpowered": 4}
"""What the command ends with."""

_Rule = Annotated[InstanceOf[Rule], BeforeValidator(lambda text: parse_rule(str(text))), PlainSerializer(str)]
_Estimate = Annotated[Estimate, PlainSerializer(Estimate.to_json)]
_Text = Annotated[str, Field(max_length=10_000)]


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

    rule: _Rule
    outcome: Verdict
    reason: _Text
    n: Whole = 0
    now: _Estimate | None = None
    before: Real | None = None
    difference: _Estimate | None = None
    worse: Whole | None = None
    better: Whole | None = None
    set_aside: Whole = 0
    p_worse: Share | None = None
    p_worse_holm: Share | None = None
    p_no_worse: Share | None = None
    needed: Whole | None = None
    inputs: tuple[str, ...] = ()


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

    spec: _Text | None


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

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)

    verdict: Verdict
    spec: _Text | None
    data: _Text
    baseline: Earlier | None = None
    n_inputs: Whole
    alpha: Share = ALPHA
    path: _Text | None = None
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    n_changed: Whole
    n_new: Whole | None = None
    n_answers_changed: Whole | None = None
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
        content = _shape().dump_python(self, exclude={"accept_underpowered"})
        return {"verdict": self.verdict, "exit_code": self.exit_code, **content}


@cache
def _shape() -> TypeAdapter[GateResult]:
    return TypeAdapter(GateResult)


def read_result(path: Path) -> GateResult:
    """Read what `quantdrift gate --report FILE.json` wrote.

    Raises:
        RunError: it holds something else.
    """
    expected = f"expected a run folder, or the result of a gate (quantdrift gate ... --report FILE.json); {path}"
    try:
        content = read_json(path, strict=True)
        result = _shape().validate_python(content)
    except ValidationError as problem:
        raise RunError(f"{expected} holds something else: {problem_of(problem)}") from problem
    except OSError as problem:
        raise RunError(f"{expected} cannot be read ({problem.strerror})") from problem
    except (ValueError, QuantDriftError) as problem:
        raise RunError(f"{expected} holds something else: {problem}") from problem
    return replace(result, accept_underpowered=content.get("exit_code") == EXIT_CODES["pass"])
