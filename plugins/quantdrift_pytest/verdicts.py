"""A question put to a measured pair: the verdict, what is recorded of it, and the failure."""

from __future__ import annotations

import warnings
from typing import Any

from quantdrift.display import clean
from quantdrift.gate.judge import GateResult, gate, worst_inputs
from quantdrift_pytest.drift import Drift, UnderpoweredWarning
from quantdrift_pytest.plugin import ASSERTED
from quantdrift_pytest.question import Question
from quantdrift_pytest.text import failure_text, headline_of, summary_line

__all__ = ["judged", "settle"]

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
    return gate(
        drift.target,
        rules,
        question.baseline,
        slices=question.slices,
        alpha=question.alpha,
        n_worst=_WORST,
    )


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
        warnings.warn(
            clean(f"{drift.spec} on {drift.data}: {told}"), UnderpoweredWarning, stacklevel=3
        )
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
