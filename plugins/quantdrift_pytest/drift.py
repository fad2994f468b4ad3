"""A measured pair, as a test sees it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

import pytest

from quantdrift.display import clean, shown
from quantdrift.errors import QuantDriftError, RunError, UnknownNameError
from quantdrift.finished.diff import Changed, changed_inputs
from quantdrift.gate.baseline import Snapshot, check_baseline_place, read_baseline, write_baseline
from quantdrift.gate.judge import GateResult, gate, snapshot_for, worst_inputs
from quantdrift.gate.output import headline, rows, sentences, subject, worst_rows, worst_title
from quantdrift.gate.rules import Rule, RuleError, Slices, Test, default_rules, parse_rule
from quantdrift.gate.target import Target, target_of_run
from quantdrift.metrics import FAMILIES, Family, Metric, parse_metric
from quantdrift.metrics.base import Arm
from quantdrift.runs import Run, read_run
from quantdrift.statistics import Estimate
from quantdrift_pytest.session import ASSERTED, OURS, SETTINGS, Session, in_short

# --- A measured pair, as a test sees it -----------------------------------------------------------

Rules = str | Rule | Iterable[str | Rule]


class UnderpoweredWarning(UserWarning):
    """There are too few inputs to tell whether a rule holds, which the test accepts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drift:
    """A measured pair.

    Attributes:
        run: the run folder.
        target: its evidence, as the gate takes it.
        kept: whether it was measured before, and not for this test.
        session: that it belongs to.
    """

    run: Run
    target: Target = field(repr=False)
    kept: bool
    session: Session = field(repr=False)

    @property
    def spec(self) -> str:
        """The pair."""
        return self.target.identity.spec or "unknown spec"

    @property
    def data(self) -> str:
        """Name of the data, with its split."""
        return self.target.identity.data_name

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return sum(evidence.n_inputs for evidence in self.target.evidence)

    @property
    def changed(self) -> list[Changed]:
        """The inputs whose first answer changed: right ones that became wrong first."""
        return [each for evidence in self.target.evidence for each in changed_inputs(evidence)]

    def estimate(self, metric: str) -> Estimate:
        """A metric with its 95 % interval; undefined with a reason.

        Args:
            metric: for example `gold_lost@10`.

        Raises:
            UnknownNameError: there is no such metric; carries the nearest names.
            MetricError: it cannot be computed as asked for.
        """
        __tracebackhide__ = True
        try:
            return parse_metric(metric).over(self.target.evidence)
        except OURS as error:
            raise in_short(error) from None

    def value(self, metric: str) -> float | None:
        """A metric; None where it is undefined.

        Args:
            metric: for example `flip@1`.

        Raises:
            As `estimate`.
        """
        __tracebackhide__ = True
        return self.estimate(metric).value

    def check(
        self,
        *,
        rules: Rules = (),
        baseline: str | PathLike[str] | None = None,
        slices: Mapping[str, str | Sequence[str]] | None = None,
        alpha: float = 0.05,
        **limits: float,
    ) -> GateResult:
        """What the run comes to; nothing fails.

        Args:
            rules: as for `assert_drift`, and so are the others.
            baseline: likewise.
            slices: likewise.
            alpha: likewise.
            limits: likewise.

        Raises:
            pytest.UsageError: nothing is asked.
            QuantDriftError: a rule or the baseline cannot be used.
        """
        __tracebackhide__ = True

        try:
            return judged(self, self._asked(rules, baseline, slices, alpha, limits))
        except OURS as error:
            raise in_short(error) from None

    def require(
        self,
        *,
        rules: Rules = (),
        baseline: str | PathLike[str] | None = None,
        slices: Mapping[str, str | Sequence[str]] | None = None,
        alpha: float = 0.05,
        accept_underpowered: bool = False,
        **limits: float,
    ) -> GateResult:
        """Assert that the run keeps to some rules.

        Args:
            rules: as for `assert_drift`, and so are the others.
            baseline: likewise.
            slices: likewise.
            alpha: likewise.
            accept_underpowered: likewise.
            limits: likewise.

        Raises:
            AssertionError: a rule does not hold, or cannot be judged.
            pytest.UsageError: nothing is asked.
            QuantDriftError: a rule or the baseline cannot be used.
        """
        __tracebackhide__ = True

        try:
            question = self._asked(rules, baseline, slices, alpha, limits)
            return settle(self, question, accept_underpowered=accept_underpowered)
        except OURS as error:
            raise in_short(error) from None

    def _asked(
        self,
        rules: Rules,
        baseline: str | PathLike[str] | None,
        slices: Mapping[str, str | Sequence[str]] | None,
        alpha: float,
        limits: Mapping[str, object],
    ) -> Question:

        return asked(self.session, rules=rules, baseline=baseline, slices=slices, alpha=alpha, limits=limits)


# --- Limits given as keywords, as the rules they stand for ----------------------------------------

_AT = re.compile(r"(?P<name>\w+?)(?:_at_(?P<k>[1-9][0-9]*))?")
_ARMS: tuple[Arm, ...] = ("candidate", "reference", "change", "relative")
_FIRST = 1
"""The cut-off of a limit that names none, of metrics that are listed at it."""


def limit_rules(limits: Mapping[str, object]) -> tuple[Rule, ...]:
    """The rules that keywords stand for, in order.

    Args:
        limits: name of a metric to its limit.

    Raises:
        As `limit_rule`.
    """
    return tuple(limit_rule(name, value) for name, value in limits.items())


def limit_rule(name: str, value: object) -> Rule:
    """The rule that a keyword stands for: a maximum where lower is better, else a minimum.

    >>> str(limit_rule("flip", 0.25)), str(limit_rule("ndcg_at_10", 0.6))
    ('flip@1 <= 0.25', 'ndcg@10 >= 0.6')

    Args:
        name: a metric with `_at_` for `@`; `change_` and the like before it mean that arm.
        value: the limit, in the metric's own unit.

    Raises:
        UnknownNameError: there is no such metric; carries the nearest names.
        MetricError: the metric has no such cut-off or arm.
        RuleError: it needs a cut-off, has no better side, or the value is no finite number.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RuleError(f"expected a number for the limit {name}, such as 0.25; got {value!r}")
    family, arm, cutoff = _limits_read(name)
    metric = Metric(family=family, cutoff=cutoff, arm=arm)
    if metric.direction == "none":
        raise RuleError(
            f"neither way is better for {metric}, so {name}={value} could be a maximum or a "
            f"minimum; write it as a rule: rules=['{metric} <= {value}']"
        )
    test: Test = "<=" if metric.direction == "lower" else ">="
    return Rule(metric=metric, test=test, number=float(value))


def _limits_read(name: str) -> tuple[Family, Arm, float]:
    match = _AT.fullmatch(name)
    assert match is not None  # a keyword is a word
    arm, family = _family(match["name"])
    if family is None:
        hint = "(quantdrift list metrics shows all)"
        if name in SETTINGS:
            hint = f"({name} is a setting: settings={{'{name}': ...}})"
        raise UnknownNameError("limit", name, _names(), hint=hint)
    if match["k"] is not None:
        return family, arm, int(match["k"])
    if family.cutoffs and _FIRST not in family.cutoffs:
        if family.cutoff_is == "level":
            rule = f"{family.name}@{family.cutoffs[0]:.2f} >= 0.9"
            raise RuleError(f"{name} needs a level; write it as a rule: rules=['{rule}']")
        raise RuleError(f"the limit {name} needs a cut-off, such as {name}_at_{family.cutoffs[0]:.0f}=...")
    return family, arm, _FIRST if family.cutoffs else 0


def _family(name: str) -> tuple[Arm, Family | None]:
    """The family of that name, or of what stands behind an arm."""
    if name in FAMILIES:  # candidate_gap is one
        return "candidate", FAMILIES[name]
    for arm in _ARMS:
        if name.startswith(f"{arm}_"):
            return arm, FAMILIES.get(name.removeprefix(f"{arm}_"))
    return "candidate", None


def _names() -> Iterator[str]:
    for family in FAMILIES.values():
        yield family.name
        if family.cutoff_is != "level":
            yield from (f"{family.name}_at_{cutoff:.0f}" for cutoff in family.cutoffs)


# --- What a test asks of a run, checked before anything is measured -------------------------------

_EXAMPLE = (
    'assert_drift("minilm@W4-rtn", data="data/faq", flip=0.25), with '
    'baseline="drift-baseline.json", or with rules=["ndcg@10 >= 0.6"]'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        given: limits and rules, as they were given.
        by_default: whether the rules that a baseline has by itself are asked too.
        path: of the baseline; None without one.
        baseline: what it holds; None without one, and where it is to be written.
        slices: of inputs, by name.
        alpha: level of the tests.
    """

    given: tuple[Rule, ...]
    by_default: bool
    path: Path | None
    baseline: Snapshot | None
    slices: Slices
    alpha: float

    def rules(self, target: Target) -> tuple[Rule, ...]:
        """All rules, for a run.

        Args:
            target: what is judged.
        """
        return (*self.given, *(default_rules(target) if self.by_default else ()))

    @property
    def writes(self) -> bool:
        """Whether its baseline is to be written instead of compared with."""
        return self.path is not None and self.baseline is None


def asked(
    session: Session,
    *,
    rules: str | Rule | Iterable[str | Rule],
    baseline: str | PathLike[str] | None,
    slices: Mapping[str, str | Sequence[str]] | None,
    alpha: float,
    limits: Mapping[str, object],
) -> Question:
    """What a test asks, read and checked.

    Args:
        session: that knows where paths begin, and whether baselines are written.
        rules: as given.
        baseline: as given.
        slices: as given.
        alpha: as given.
        limits: as given.

    Raises:
        pytest.UsageError: nothing is asked, or outside of a test.
        RuleError: a rule or limit cannot be read, or compares and there is no baseline.
        UnknownNameError: a metric, limit or slice is not known; carries the nearest names.
        RunError: the baseline is missing, damaged or something else.
    """
    if session.item is None:
        raise pytest.UsageError(
            "drift is asserted in tests and fixtures, not where a module is imported; expected the "
            "call inside a test function"
        )
    ruled = _rules(rules)
    if not ruled and not limits and baseline is None:
        raise pytest.UsageError(f"nothing is asked of the run; expected, for example, {_EXAMPLE}")
    given = (*limit_rules(limits), *ruled)
    groups = {name: (held,) if isinstance(held, str) else tuple(held) for name, held in (slices or {}).items()}
    for rule in given:
        if rule.on is not None and rule.on not in groups:
            hint = f"(give it with slices={{{rule.on!r}: 'PATTERN*'}}, a pattern on input ids)"
            raise UnknownNameError("slice", rule.on, groups, hint=hint)
        if rule.compares and baseline is None:
            raise RuleError(
                f"the rule '{rule}' compares with a baseline; expected one too: baseline=\"drift-baseline.json\""
            )
    path = None if baseline is None else session.root / baseline
    return Question(
        given=given,
        by_default=path is not None and not ruled,
        path=path,
        baseline=None if path is None else _read(path, writes=session.updates),
        slices=groups,
        alpha=alpha,
    )


def _rules(given: str | Rule | Iterable[str | Rule]) -> tuple[Rule, ...]:
    several = (given,) if isinstance(given, str | Rule) else tuple(given)
    return tuple(each if isinstance(each, Rule) else parse_rule(each) for each in several)


def _read(path: Path, *, writes: bool) -> Snapshot | None:
    if writes:
        check_baseline_place(path)
        return None
    if not path.exists():
        raise RunError(
            f"expected a baseline; {path} does not exist. Write it with: pytest "
            "--quantdrift-update, look at it, and commit it"
        )
    return read_baseline(path)


# --- What a test that fails says, and the line of each assertion at the end of the session --------

_SAID_HERE = {"--update": "pytest --quantdrift-update", "--accept-underpowered": "accept_underpowered=True"}
"""Options of `quantdrift gate` in its sentences, and what stands for them in pytest."""


def failure_text(result: GateResult) -> str:
    """The verdict, the rules as a table, what to do, and the inputs to look at.

    Args:
        result: a judged run.
    """
    parts = [headline_of(result), subject(result), "", *_table(*rows(result)), ""]
    parts += [_here(line) for line in sentences(result)]
    if result.worst:
        parts += ["", worst_title(result), *_table(*worst_rows(result))]
    return "\n".join(parts)


def headline_of(result: GateResult, *, accept_underpowered: bool = False) -> str:
    """The verdict and why, on one line.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
    """
    return _here(headline(result))


def summary_line(drift: Drift, result: GateResult, item: pytest.Item | None) -> str:
    """One assertion on one line.

    Args:
        drift: what was measured.
        result: what it came to.
        item: the test.
    """
    where = "" if item is None else f"{item.nodeid}: "
    how = "measured before" if drift.kept else "measured now"
    return (
        f"{where}{shown(drift.spec)} on {shown(drift.data)} ({how}): {result.n_changed:,} of "
        f"{result.n_inputs:,} first answers changed; {result.verdict}"
    )


def _here(line: str) -> str:
    for option, meant in _SAID_HERE.items():
        line = line.replace(option, meant)
    return line


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Columns of plain text, two spaces between them."""
    lines = [head, *body]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]


# --- A question put to a measured pair: the verdict, what is recorded of it, and the failure ------

_WORST = 10
_RECORDED = ("flip@1", "noise_floor", "gold_lost@10", "ndcg@10", "accuracy")


def judged(drift: Drift, question: Question) -> GateResult:
    """What a run comes to; where its baseline is to be written, only limits are judged.

    Args:
        drift: what was measured.
        question: what is asked of it.

    Raises:
        QuantDriftError: a rule cannot be judged on such a run.
    """
    rules = question.rules(drift.target)
    if question.writes:
        _note(drift, passed=True, line="", update=_update(drift, question))
        rules = tuple(rule for rule in rules if not rule.compares)
        if not rules:
            return _nothing_to_judge(drift, question)
    return gate(drift.target, rules, question.baseline, slices=question.slices, alpha=question.alpha, n_worst=_WORST)


def settle(drift: Drift, question: Question, *, accept_underpowered: bool) -> GateResult:
    """Judge, record, and fail unless the verdict is "pass".

    Args:
        drift: what was measured.
        question: what is asked of it.
        accept_underpowered: whether too few inputs end in a warning.

    Raises:
        AssertionError: with the numbers, the reasons and the inputs to look at.
        QuantDriftError: a rule cannot be judged on such a run.
    """
    __tracebackhide__ = True
    result = judged(drift, question)
    item = drift.session.item
    accepted = accept_underpowered and result.verdict == "underpowered"
    passed = accepted or result.verdict == "pass"
    _note(drift, passed=passed, line=summary_line(drift, result, item))
    if item is not None:
        item.user_properties += _properties(drift, result)
    if result.verdict == "pass":
        return result
    if accepted:
        told = headline_of(result, accept_underpowered=True)
        warnings.warn(clean(f"{drift.spec} on {drift.data}: {told}"), UnderpoweredWarning, stacklevel=3)
        return result
    raise AssertionError(failure_text(result))


def _nothing_to_judge(drift: Drift, question: Question) -> GateResult:
    worst, n_changed, _ = worst_inputs(drift.target, None, n=_WORST)
    return GateResult(
        verdict="pass",
        judgements=(),
        identity=drift.target.identity,
        n_inputs=drift.n_inputs,
        baseline=None,
        differs=(),
        notes=drift.target.notes,
        n_changed=n_changed,
        n_new=None,
        n_answers_changed=None,
        worst=worst,
        alpha=question.alpha,
    )


def _update(drift: Drift, question: Question) -> dict[str, Any]:
    """What the process that writes baselines has to know, as plain values."""
    return {
        "path": str(question.path),
        "run": str(drift.run.path),
        "rules": [str(rule) for rule in question.rules(drift.target)],
    }


def _note(drift: Drift, **told: Any) -> None:
    item = drift.session.item
    assert item is not None  # else the question had been refused
    item.stash[ASSERTED].append({"update": None, **told})


def _properties(drift: Drift, result: GateResult) -> list[tuple[str, object]]:
    """For JUnit: who, on what, the verdict, and the metrics that are read first."""
    metrics = drift.run.record.get("metrics", {})
    values = {name: metrics[name].get("value") for name in _RECORDED if name in metrics}
    found = {
        "spec": drift.spec,
        "data": drift.data,
        "verdict": result.verdict,
        "n_inputs": drift.n_inputs,
        **{name: value for name, value in values.items() if value is not None},
    }
    return [(f"quantdrift.{name}", value) for name, value in found.items()]


# --- Baselines that tests name, written at the end of a session by one process --------------------


def write_asked(session: Session, *, broken_off: bool) -> tuple[list[str], bool]:
    """Write every baseline that a test has named.

    Args:
        session: that has collected which.
        broken_off: whether it ended before all its tests had run, and so knows too little.

    Returns:
        What was done, one line each; and whether all of them were written.
    """
    asked: dict[str, list[dict[str, Any]]] = {}
    for told in session.told:
        if update := told["update"]:
            asked.setdefault(update["path"], []).append(update)
    if broken_off and asked:
        return ["no baseline was written: the session was broken off"], False
    done = [_write(session, Path(path), asked[path]) for path in sorted(asked)]
    return [line for line, _ in done], all(written for _, written in done)


def _write(session: Session, path: Path, updates: Sequence[dict[str, Any]]) -> tuple[str, bool]:
    """Write one; it holds what all tests that name it compare."""
    name = _seen_from(session.root, path)
    runs = sorted({update["run"] for update in updates})
    try:
        targets = [target_of_run(read_run(Path(run))) for run in runs]
        if len(targets) > 1:
            whose = " and ".join(f"{t.identity.spec} on {t.identity.data_name}" for t in targets)
            return (
                f"{name} was not written: tests name it for more than one run ({whose}); give each "
                "run a file of its own"
            ), False
        rules = dict.fromkeys(rule for update in updates for rule in update["rules"])
        earlier = None
        with suppress(RunError):  # none, or a damaged one
            earlier = read_baseline(path)
        snapshot = snapshot_for(targets[0], [parse_rule(rule) for rule in rules], earlier)
        write_baseline(snapshot, path)
    except QuantDriftError as error:
        return f"{name} was not written: {error}", False
    identity = snapshot.identity
    inputs = "1 input" if snapshot.n_inputs == 1 else f"{snapshot.n_inputs:,} inputs"
    return f"wrote {name}: {identity.spec} on {identity.data_name}, {inputs}; commit it", True


def _seen_from(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
