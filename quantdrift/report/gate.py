"""The page of a gate: the verdict, what each rule came to, and the inputs to look at, from the JSON that it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, InstanceOf, ValidationError

from quantdrift.base.errors import RunError
from quantdrift.base.records import problem_of, read_json
from quantdrift.gate import output
from quantdrift.gate.judge import GateResult, Judgement, Verdict, Worst
from quantdrift.gate.rules import Rule, parse_rule
from quantdrift.report.changes import changes_of
from quantdrift.report.page import Number, Page, Section, Step
from quantdrift.runs.changes import Changed
from quantdrift.runs.identity import Identity
from quantdrift.runs.words import Tone
from quantdrift.show.tables import Grid
from quantdrift.statistics.estimates import Estimate

_TONES: dict[Verdict, Tone] = {
    "pass": "good",
    "fail": "bad",
    "error": "bad",
    "incomparable": "warn",
    "underpowered": "warn",
}
_COME_TO: dict[Verdict, str] = {
    "pass": "pass",
    "fail": "fail",
    "error": "cannot be judged",
    "incomparable": "cannot be compared with the baseline",
    "underpowered": "have too few inputs to tell",
}
_LISTED = 3
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_Text = Annotated[str, Field(max_length=10_000)]


class _Judged(BaseModel):
    """A rule, as `Judgement.to_json` has it."""

    rule: Annotated[InstanceOf[Rule], BeforeValidator(lambda text: parse_rule(str(text)))]
    outcome: Verdict
    reason: _Text
    n: _Count = 0
    now: Estimate | None = None
    before: float | None = None
    difference: Estimate | None = None
    worse: _Count | None = None
    better: _Count | None = None
    set_aside: _Count = 0
    p_worse: float | None = None
    p_worse_holm: float | None = None
    p_no_worse: float | None = None
    needed: _Count | None = None
    inputs: tuple[str, ...] = ()


class _Baseline(BaseModel):
    spec: _Text | None


class _Result(BaseModel, allow_inf_nan=False):
    """What `GateResult.to_json` has."""

    verdict: Verdict
    exit_code: int
    spec: _Text | None
    data: _Text | None
    baseline: _Baseline | None
    n_inputs: _Count
    alpha: float
    differs: tuple[str, ...]
    notes: tuple[str, ...]
    n_changed: _Count
    n_new: _Count | None
    n_answers_changed: _Count | None
    rules: list[_Judged]
    worst: list[dict[str, Any]]


class _Worst(BaseModel):
    part: str
    new: bool | None
    changed: Changed


def read_result(path: Path) -> GateResult:
    """What `quantdrift gate --report FILE.json` wrote.

    Raises:
        RunError: it holds something else.
    """
    expected = f"expected a run folder, or the result of a gate (quantdrift gate ... --report FILE.json); {path}"
    try:
        content = read_json(path, strict=True)
        found = _Result.model_validate(content)
        worst = [
            _Worst(part=each.pop("part", ""), new=each.pop("new", None), changed=each)  # type: ignore[arg-type]
            for each in found.worst
        ]
    except ValidationError as problem:
        raise RunError(f"{expected} holds something else: {problem_of(problem)}") from problem
    except OSError as problem:
        raise RunError(f"{expected} cannot be read ({problem.strerror})") from problem
    except ValueError as problem:
        raise RunError(f"{expected} holds something else: {problem}") from problem
    told = {name: getattr(found, name) for name in ("verdict", "n_inputs", "alpha", "differs", "notes", "n_changed")}
    return GateResult(
        **told,
        n_new=found.n_new,
        n_answers_changed=found.n_answers_changed,
        judgements=tuple(
            Judgement(**{name: getattr(each, name) for name in _Judged.model_fields}) for each in found.rules
        ),
        identity=Identity(spec=found.spec, data=found.data),
        baseline=None if found.baseline is None else Identity(spec=found.baseline.spec),
        worst=tuple(Worst(part=each.part, new=each.new, changed=each.changed) for each in worst),
        accept_underpowered=found.verdict == "underpowered" and found.exit_code == 0,
    )


def page_of(result: GateResult) -> Page:
    """The page of a judged run."""
    sentences, to_do = output.sentences(result), set(output.TO_DO.values())
    named = [line for line in sentences if ", worse on: " in line]
    head, rows = output.rows(result)
    order = [0, len(head) - 1, *range(1, len(head) - 1)]  # the outcome beside its rule
    grid = Grid(
        head=[head[place] for place in order],
        rows=[[row[place] for place in order] for row in rows],
        words={"outcome"},
        lines=named,
    )
    sections = [Section(name="rules", title="Rules", grids=[grid])]
    if result.worst:
        changed = changes_of(
            [each.changed for each in result.worst],
            arms=("reference", "candidate"),
            right="right",
            also=[{"part": each.part, "new": each.new} for each in result.worst],
        )
        sections.append(
            Section(name="changed", title="Changed inputs", about=[f"{output.worst_title(result)}."], changed=changed)
        )
    return Page(
        kind="gate",
        title=output.subject(result),
        word=f"{result.verdict} (accepted)" if result.accepted else result.verdict,
        tone="warn" if result.accepted else _TONES[result.verdict],
        verdict=_sentence(result),
        words=[line for line in sentences if line not in {*to_do, *named}],
        numbers=list(_numbers(result)),
        steps=[Step(text=line) for line in sentences if line in to_do],
        sections=sections,
    )


def _sentence(result: GateResult) -> str:
    """How many rules come to the verdict, and the first of them."""
    told = [output.rule_name(each) for each in result.judgements if each.outcome == result.verdict]
    more = f" and {len(told) - _LISTED:,} more" if len(told) > _LISTED else ""
    names = "" if result.verdict == "pass" or not told else f": {', '.join(told[:_LISTED])}{more}"
    return f"{len(told):,} of {len(result.judgements):,} rules {_COME_TO[result.verdict]}{names}."


def _numbers(result: GateResult) -> Iterator[Number]:
    passed = sum(each.outcome == "pass" for each in result.judgements)
    yield Number(label="rules that pass", value=f"{passed:,} of {len(result.judgements):,}")
    yield Number(label="top-1 changes", value=f"{result.n_changed:,}", note=f"of {result.n_inputs:,} inputs")
    if result.n_new is not None:
        yield Number(label="new changes", value=f"{result.n_new:,}", note="not changed in the baseline")
    if result.n_answers_changed is not None:
        yield Number(
            label="other answers than in the baseline", value=f"{result.n_answers_changed:,}", note="of the candidate"
        )
    yield Number(
        label="level of the tests", value=f"{result.alpha:g}", note="chance of a false alarm, all rules together"
    )
