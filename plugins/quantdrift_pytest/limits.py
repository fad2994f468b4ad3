"""Limits given as keywords, as the rules they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from numbers import Real

from quantdrift.errors import UnknownNameError
from quantdrift.gate.rules import Rule, RuleError, Test
from quantdrift.metrics import FAMILIES, Family, Metric
from quantdrift.metrics.base import Arm
from quantdrift_pytest.settings import SETTINGS

__all__ = ["limit_rule", "limit_rules"]

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
    family, arm, cutoff = _read(name)
    metric = Metric(family=family, cutoff=cutoff, arm=arm)
    if metric.direction == "none":
        raise RuleError(
            f"neither way is better for {metric}, so {name}={value} could be a maximum or a "
            f"minimum; write it as a rule: rules=['{metric} <= {value}']"
        )
    test: Test = "<=" if metric.direction == "lower" else ">="
    return Rule(metric=metric, test=test, number=float(value))


def _read(name: str) -> tuple[Family, Arm, float]:
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
        raise RuleError(
            f"the limit {name} needs a cut-off, such as {name}_at_{family.cutoffs[0]:.0f}=..."
        )
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
