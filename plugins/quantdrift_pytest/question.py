"""What a test asks of a run, checked before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import pytest

from quantdrift.errors import RunError, UnknownNameError
from quantdrift.gate.baseline import Snapshot, check_baseline_place, read_baseline
from quantdrift.gate.rules import Rule, RuleError, Slices, default_rules, parse_rule
from quantdrift.gate.target import Target
from quantdrift_pytest.limits import limit_rules
from quantdrift_pytest.session import Session

__all__ = ["Question", "asked"]

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
    groups = {
        name: (held,) if isinstance(held, str) else tuple(held)
        for name, held in (slices or {}).items()
    }
    for rule in given:
        if rule.on is not None and rule.on not in groups:
            hint = f"(give it with slices={{{rule.on!r}: 'PATTERN*'}}, a pattern on input ids)"
            raise UnknownNameError("slice", rule.on, groups, hint=hint)
        if rule.compares and baseline is None:
            raise RuleError(
                f"the rule '{rule}' compares with a baseline; expected one too: "
                'baseline="drift-baseline.json"'
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
