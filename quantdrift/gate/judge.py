"""Rules, a run and its baseline brought together; p-values adjusted over the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError
from quantdrift.gate.change import judge_change
from quantdrift.gate.comparable import Matched, match
from quantdrift.gate.defaults import stored_metrics
from quantdrift.gate.limit import judge_limit, undefined_now
from quantdrift.gate.outcome import decide
from quantdrift.gate.result import GateResult, Judgement, verdict_of
from quantdrift.gate.rule import NOISE, Rule, RuleError
from quantdrift.gate.slices import Slices, in_slice
from quantdrift.gate.snapshot import Snapshot
from quantdrift.gate.target import Target
from quantdrift.gate.worst import worst_inputs
from quantdrift.metrics import Metric, MetricError, parse_metric
from quantdrift.statistics import holm

__all__ = ["ALPHA", "check_alpha", "gate", "judge_changes", "metrics_of", "snapshot_for"]

ALPHA = 0.05
WORST = 10

_LEAST_ALPHA = 1e-9
_MOST_ALPHA = 0.5


def metrics_of(rules: Sequence[Rule]) -> list[Metric]:
    """The metrics whose outcomes rules are judged by, each once."""
    asked = [rule.metric for rule in rules if rule.metric.arm != "relative"]
    return list(dict.fromkeys([*asked, parse_metric("flip@1"), NOISE]))


def snapshot_for(
    target: Target, rules: Sequence[Rule], earlier: Snapshot | None = None
) -> Snapshot:
    """What a baseline holds of a run: the stored metrics, and those that rules compare.

    Args:
        target: the run.
        rules: what later runs are asked.
        earlier: the baseline that it takes the place of; what that one holds others may compare.
    """
    compared = [rule.metric for rule in rules if rule.compares]
    held = [] if earlier is None else [parse_metric(name) for name in earlier.values]
    known = []
    for metric in held:
        with suppress(MetricError):  # a run of fewer ranks
            target.values(metric)
            known.append(metric)
    whole = target.snapshot([*stored_metrics(target), *compared, *known])
    # a column without a value, say of labels that are not there, is noise in the file
    kept = {name: values for name, values in whole.values.items() if not np.isnan(values).all()}
    return replace(whole, values=kept)


def check_alpha(alpha: float) -> None:
    """Refuse a level that nobody can mean.

    Raises:
        QuantDriftError: it is out of its range.
    """
    if not _LEAST_ALPHA <= alpha <= _MOST_ALPHA:
        raise QuantDriftError(
            f"alpha is a probability from {_LEAST_ALPHA:g} to {_MOST_ALPHA}, say 0.05; "
            f"got {alpha:g}"
        )


def gate(
    target: Target,
    rules: Sequence[Rule],
    baseline: Snapshot | None = None,
    *,
    slices: Slices | None = None,
    alpha: float = ALPHA,
    seed: int = 0,
    n_worst: int = WORST,
) -> GateResult:
    """Judge a run by rules.

    A rule that compares fails where the run is shown to be worse, and no less than by its margin;
    the p-values of that are adjusted by Holm's method over all rules, so that the chance of any
    false alarm stays below alpha. It passes where the run is shown to be worse by less than the
    margin; that is not adjusted, as the verdict is "pass" only if every rule passes (R. L. Berger,
    Multiparameter hypothesis testing and acceptance sampling, Technometrics 24 (1982), 295-300).

    Args:
        target: what is judged.
        rules: what is asked.
        baseline: what it is compared with; needed if a rule compares.
        slices: by name, for rules that look at one.
        alpha: level of the tests.
        seed: of resampling and permutations.
        n_worst: how many changed inputs to list.

    Raises:
        RuleError: there is no rule, or one compares and there is no baseline.
        MetricError: a metric looks deeper than the run stored.
        QuantDriftError: alpha is out of its range, or a slice is not known or holds no input.
    """
    check_alpha(alpha)
    if not rules:
        raise RuleError("there is nothing to judge by: expected a rule, such as flip@1 <= 0.25")
    comparing = [rule for rule in rules if rule.compares]
    if comparing and baseline is None:
        raise RuleError(f"the rule '{comparing[0]}' needs a baseline, and there is none")
    rules = list(dict.fromkeys(rules))
    now = target.snapshot(metrics_of(rules))
    rows = {rule.on: in_slice(rule.on, slices or {}, now.input_ids) for rule in rules if rule.on}
    # limits stand whatever the baseline; what it differs in would only distract
    baseline = baseline if comparing else None
    matched = None if baseline is None else match(now, baseline)
    found = _judged(rules, target, now, matched, rows, alpha=alpha, seed=seed)
    comparable = matched is not None and not matched.differs
    worst, n_changed, n_new = worst_inputs(target, baseline if comparable else None, n=n_worst)
    return GateResult(
        verdict=verdict_of([judgement.outcome for judgement in found]),
        judgements=tuple(found),
        identity=target.identity,
        n_inputs=now.n_inputs,
        baseline=None if baseline is None else baseline.identity,
        differs=() if matched is None else matched.differs,
        notes=(*target.notes, *(() if matched is None else matched.notes)),
        n_changed=n_changed,
        n_new=n_new,
        n_answers_changed=matched.n_answers_changed if matched and comparable else None,
        worst=worst,
        alpha=alpha,
    )


def _judged(
    rules: Sequence[Rule],
    target: Target,
    now: Snapshot,
    matched: Matched | None,
    rows: Mapping[str, NDArray[np.bool_]],
    *,
    alpha: float,
    seed: int,
) -> list[Judgement]:
    limits = {
        rule: judge_limit(rule, target, rows[rule.on] if rule.on else None)
        for rule in rules
        if not rule.compares
    }
    comparing = [rule for rule in rules if rule.compares]
    changes: dict[Rule, Judgement] = {}
    if matched is not None and matched.differs:
        reason = "the run and the baseline are not of the same, see below"
        changes = {
            rule: Judgement(rule=rule, outcome="incomparable", reason=reason) for rule in comparing
        }
    elif matched is not None:
        places = {name: row for row, name in enumerate(now.input_ids)}
        order = [places[name] for name in matched.now.input_ids]
        parts = {name: inside[order] for name, inside in rows.items()}
        changes = {
            rule: undefined_now(rule, target)
            or judge_change(
                rule, matched, parts[rule.on] if rule.on else None, alpha=alpha, seed=seed
            )
            for rule in comparing
        }
    return _decided([{**limits, **changes}[rule] for rule in rules], alpha=alpha)


def judge_changes(
    rules: Sequence[Rule], matched: Matched, *, alpha: float = ALPHA, seed: int = 0
) -> list[Judgement]:
    """What comparisons come to on inputs that are paired already, adjusted over the rules.

    Args:
        rules: all of them compare; none looks at a named slice.
        matched: the run and the baseline.
        alpha: level of the tests.
        seed: of resampling and permutations.
    """
    return _decided(
        [judge_change(rule, matched, None, alpha=alpha, seed=seed) for rule in rules], alpha=alpha
    )


def _decided(found: Sequence[Judgement], *, alpha: float) -> list[Judgement]:
    adjusted = holm([each.p_worse for each in found])
    # what is decided without a test is decided already
    return [
        decide(each, p_worse_holm=p, alpha=alpha)
        if each.outcome == "underpowered" and each.n
        else each
        for each, p in zip(found, adjusted, strict=True)
    ]
