"""Rules, a run and its baseline brought together; p-values adjusted over the rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from quantdrift.errors import QuantDriftError
from quantdrift.finished.diff import Changed, changed_inputs
from quantdrift.gate.baseline import ANSWER, Snapshot
from quantdrift.gate.rules import NOISE, Rule, RuleError, Slices, in_slice, stored_metrics
from quantdrift.gate.target import Target
from quantdrift.identity import Identity
from quantdrift.metrics import Metric, MetricError, parse_metric
from quantdrift.statistics import (
    Estimate,
    holm,
    inputs_for_mean,
    inputs_for_rate,
    mean_no_worse,
    mean_worse,
    paired_mean_difference,
    paired_rate_difference,
    rate_no_worse,
    rate_worse,
    shrunken_spread,
    undefined,
)
from quantdrift.statistics.verdicts import Better

# --- What the gate comes to: a verdict, what every rule came to, and what to look at --------------

Verdict = Literal["pass", "fail", "underpowered", "incomparable", "error"]

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "fail": 1, "error": 2, "incomparable": 3, "underpowered": 4}
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
            "data": self.identity.data_name,
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


# --- A limit: is a value at most, or at least, so much? -------------------------------------------

_ONLY_A_BOUND = "only a bound is known, of lists that were cut short"
_ROUNDING = 1e-12
"""A mean is not beyond a limit by this little: which way it was rounded depends on the order."""


def judge_limit(rule: Rule, target: Target, rows: NDArray[np.bool_] | None) -> Judgement:
    """What a limit comes to.

    Args:
        rule: a limit.
        target: what is judged.
        rows: inputs of the rule's slice, bool [n_inputs]; None for all.
    """
    metric = rule.metric
    now = _estimate(rule, target)
    if now.value is None:
        return _undefined(rule, now.reason)
    if rows is None:
        return _observed(rule, now)
    if now.bound is not None:
        return _undefined(rule, _ONLY_A_BOUND)
    # not those of the snapshot, which are rounded
    values = metric.told_apart(target.values(metric), target.evidence)[rows]
    values = values[~np.isnan(values)]
    if not len(values):
        return _undefined(rule, None)
    return _observed(rule, metric.estimate(values))


def undefined_now(rule: Rule, target: Target) -> Judgement | None:
    """The error that a metric comes to if no input of the run has a value; None if one has.

    Args:
        rule: a comparison.
        target: what is judged.
    """
    if not np.isnan(target.values(rule.metric)).all():
        return None
    now = _estimate(rule, target)
    return _undefined(rule, now.reason if now.bound is None else _ONLY_A_BOUND)


def _estimate(rule: Rule, target: Target) -> Estimate:
    try:
        return rule.metric.over(target.evidence)
    except MetricError as error:
        return undefined(str(error))


def _undefined(rule: Rule, reason: str | None) -> Judgement:
    why = reason or rule.metric.family.undefined_when
    return Judgement(rule=rule, outcome="error", reason=f"undefined: {why}")


def _observed(rule: Rule, now: Estimate) -> Judgement:
    value, limit = now.value, rule.number
    assert value is not None  # undefined ones have been told
    assert limit is not None  # a limit has a number
    if now.bound is not None:
        # a lower bound above an upper limit decides, and so does an upper one below a lower
        broken = value > limit if now.bound == "lower" else value < limit
        if broken and (now.bound == "lower") == (rule.test == "<="):
            return Judgement(rule=rule, outcome="fail", reason=_beyond(rule), n=now.n, now=now)
        return Judgement(rule=rule, outcome="error", reason=f"undefined: {_ONLY_A_BOUND}", n=now.n, now=now)
    kept = value - limit <= _ROUNDING if rule.test == "<=" else limit - value <= _ROUNDING
    return Judgement(
        rule=rule,
        outcome="pass" if kept else "fail",
        reason="within the limit" if kept else _beyond(rule),
        n=now.n,
        now=now,
    )


def _beyond(rule: Rule) -> str:
    return "above the limit" if rule.test == "<=" else "below the limit"


# --- From p-values to the outcome of a rule, and why ----------------------------------------------


def decide(found: Judgement, *, p_worse_holm: float | None, alpha: float) -> Judgement:
    """The outcome of a test, once its p-value is adjusted for the number of rules.

    Args:
        found: with `p_worse`.
        p_worse_holm: that, adjusted.
        alpha: level.
    """
    found = replace(found, p_worse_holm=p_worse_holm)
    rule = found.rule
    harmed = p_worse_holm is not None and p_worse_holm < alpha
    cleared = found.p_no_worse is not None and found.p_no_worse < alpha
    outcome: tuple[Outcome, str]
    if rule.number is None:
        outcome = ("fail", "worse than the baseline") if harmed else ("pass", "not shown to be worse")
    elif cleared:
        less = "worse, but shown to be by less than the margin"
        outcome = ("pass", less if harmed else "shown to be no worse")
    elif harmed:
        outcome = ("fail", f"shown to be worse, and by {rule.number:g} or more cannot be ruled out")
    else:
        outcome = ("underpowered", _undecided(found, alpha=alpha))
    return replace(found, outcome=outcome[0], reason=outcome[1])


def _undecided(found: Judgement, *, alpha: float) -> str:
    if found.p_no_worse is None and found.set_aside:
        return all_noise(found.set_aside)
    if found.p_no_worse is None:
        return "too few inputs differ, and nothing bounds by how much one of them can"
    if not (found.worse or found.better):
        least = least_inputs(found.rule, alpha=alpha)
        few = "1 input is" if found.n == 1 else f"{found.n:,} inputs are"
        return f"nothing differs, but {few} too few to show it; {least:,} would"
    if found.needed is not None and found.n < found.needed:
        return f"too few inputs to tell: {found.n:,}, and it takes about {found.needed:,}"
    return "too few inputs to tell: the difference is about as large as the margin"


def least_inputs(rule: Rule, *, alpha: float) -> int:
    """How many inputs show "no worse" if none of them differs: (1 - margin / span)^n < alpha.

    Args:
        rule: a comparison with a margin.
        alpha: level.
    """
    assert rule.number is not None  # it has a margin
    return math.floor(math.log(alpha) / math.log1p(-rule.number / rule.span)) + 1


def all_noise(aside: int) -> str:
    """Why nothing can be shown where noise changes more inputs than the margin."""
    return f"noise alone changes {aside:,} inputs, more than the margin, so nothing can be shown"


# --- Whether a run and a baseline belong together, and the inputs that both have ------------------

_OTHER_REFERENCE = 0.02
"""Share of first answers of the reference that may be others. Rounding made less than 0.01 wherever
it was measured; a digest of weights does not see prompts, and of finished runs there is none."""

_SHOWN = 3
_SIDES = "in the baseline", "now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """A run and its baseline, row by row.

    Attributes:
        now: the run, of the inputs that both have.
        before: the baseline, in the order of `now`.
        differs: what makes the two incomparable, one line each; empty if nothing does.
        notes: what to know, one sentence each, without a full stop.
        n_answers_changed: inputs to which the candidate now gives another first answer than it did.
        same_candidate: whether its weights are known to be those of the baseline.
    """

    now: Snapshot
    before: Snapshot
    differs: tuple[str, ...]
    notes: tuple[str, ...]
    n_answers_changed: int
    same_candidate: bool = False


def match(now: Snapshot, baseline: Snapshot) -> Matched:
    """Pair the inputs of a run with those of a baseline, and list what else is different.

    Args:
        now: of the run.
        baseline: what it is compared with.
    """
    here, there = now.identity, baseline.identity
    differs, notes = there.differences(here, sides=_SIDES), []
    if now.definitions != baseline.definitions:
        versions = (f"version {each.definitions} {side}" for each, side in zip((baseline, now), _SIDES, strict=True))
        differs.insert(0, f"definitions of the metrics: {', '.join(versions)}")
    order = {name: row for row, name in enumerate(baseline.input_ids)}
    rows = [row for row, name in enumerate(now.input_ids) if name in order]
    known = set(now.input_ids)
    only = {
        "this run": [name for name in now.input_ids if name not in order],
        "the baseline": [name for name in baseline.input_ids if name not in known],
    }
    told = ", ".join(
        f"{len(names):,} only in {where} ({', '.join(map(repr, names[:_SHOWN]))}"
        f"{', ...' if len(names) > _SHOWN else ''})"
        for where, names in only.items()
        if names
    )
    # of the same data, inputs that layers were measured on are left out
    if told and rows and here.data_fingerprint is not None and here.data_fingerprint == there.data_fingerprint:
        notes.append(f"inputs that only one of the two has are left out: {told}")
    elif told:
        differs.append(f"inputs: {told}")
    one, other = now.part(rows), baseline.part([order[now.input_ids[row]] for row in rows])
    moved, answered = _answers(one, other)
    told = f"the reference gives another first answer on {moved:,} of {len(rows):,} inputs"
    if moved > _OTHER_REFERENCE * len(rows):
        seen = None not in (here.model_fingerprint, there.model_fingerprint)
        why = "another prompt, length or pooling" if seen else "or the two runs are swapped"
        differs.append(f"reference: {told}, which is another model ({why})")
    elif moved:
        notes.append(f"{told} than when the baseline was made")
    weighed = here.candidate_fingerprint is not None and here.spec == there.spec
    same = weighed and here.candidate_fingerprint == there.candidate_fingerprint
    if here.spec != there.spec:
        notes.append(f"the baseline is of {there.spec}")
    elif same:
        notes.append("the candidate's weights are those of the baseline, to the bit")
    return Matched(
        now=one,
        before=other,
        differs=tuple(differs),
        notes=(*notes, *there.differences(here, ("software",), sides=_SIDES)),
        n_answers_changed=answered,
        same_candidate=same,
    )


def _answers(one: Snapshot, other: Snapshot) -> tuple[int, int]:
    """Inputs with another first answer of the reference, and of the candidate."""
    moved = answered = 0
    for here, there in zip(one.answers, other.answers, strict=True):
        if here != there:
            (before, after), (was, became) = (_pair(text) for text in (there, here))
            moved += before != was
            answered += after != became
    return moved, answered


def _pair(text: str) -> tuple[str, str]:
    found = ANSWER.fullmatch(text)
    assert found is not None  # written by `answer_of`, or checked when it was read
    return found["reference"], found["candidate"] or found["reference"]


# --- A comparison with the baseline, on the same inputs: is the run no worse? ---------------------

STRAY = 0.01
"""Share of the inputs that may have a value on one side only; more are no accident of rounding."""

LISTED = 10
"""Inputs that a rule names."""

_THE_SAME = "the same candidate as in the baseline, to the bit, and nothing differs"

_FIRST_ANSWER = frozenset({"flip@1", "gold_lost@1"})
"""Metrics of the first answer alone, which is what the noise floor is known of."""

Values = NDArray[np.float64]


def judge_change(rule: Rule, matched: Matched, rows: NDArray[np.bool_] | None, *, alpha: float, seed: int) -> Judgement:
    """What a comparison with the baseline comes to, before p-values are adjusted.

    Args:
        rule: a comparison.
        matched: the run and the baseline.
        rows: inputs of the rule's slice among those matched, bool [n_inputs]; None for all.
        alpha: level, for the number of inputs needed.
        seed: of resampling and permutations.
    """
    name = str(rule.metric)
    if name not in matched.before.values:
        reason = (
            "the baseline has no outcomes of this metric; write it anew with --update, from the "
            "version it is of and not from this run"
        )
        return Judgement(rule=rule, outcome="incomparable", reason=reason)
    before, now = matched.before.values[name], matched.now.values[name]
    noisy = _noisy(rule, matched)
    chosen = np.ones(len(now), dtype=np.bool_) if rows is None else rows
    if not chosen.any():
        reason = "undefined: the run and the baseline have no input of the slice in common"
        return Judgement(rule=rule, outcome="error", reason=reason)
    there, here = ~np.isnan(before) & chosen, ~np.isnan(now) & chosen
    both = there & here
    stray = int((there ^ here).sum())
    if not both.any() and not stray:
        return Judgement(rule=rule, outcome="error", reason=f"undefined: {rule.metric.family.undefined_when}")
    if stray > STRAY * int(both.sum()):
        reason = f"{stray:,} inputs have a value on one side only, so these are not the same inputs"
        return Judgement(rule=rule, outcome="incomparable", reason=reason)
    return _compared(rule, matched, both, noisy, alpha=alpha, seed=seed)


def _compared(
    rule: Rule, matched: Matched, both: NDArray[np.bool_], noisy: NDArray[np.bool_], *, alpha: float, seed: int
) -> Judgement:
    """The tests, on the inputs that have a value on both sides."""
    name = str(rule.metric)
    before, now = matched.before.values[name], matched.now.values[name]
    if matched.same_candidate and not (before != now)[both].any():
        found = _tested(rule, before[both], now[both], seed=seed)
        return replace(found, outcome="pass", reason=_THE_SAME, p_worse=None, p_no_worse=None)
    # what noise alone changes says nothing for either side
    kept = both & ~noisy
    aside = int((both & noisy).sum())
    if not kept.any():
        reason = all_noise(aside)
        return Judgement(rule=rule, outcome="underpowered", reason=reason, set_aside=aside)
    a, b = before[kept], now[kept]
    found = _tested(rule, a, b, seed=seed)
    if rule.number is not None and aside > rule.number * int(both.sum()):
        found = replace(found, p_no_worse=None)
    harm = b - a if rule.metric.direction == "lower" else a - b
    return replace(
        found,
        # as they were measured, whatever is set aside
        now=rule.metric.estimate(now[both]),
        before=float(before[both].mean()),
        set_aside=aside,
        needed=_needed(rule, b - a, alpha=alpha),
        inputs=_most(harm, np.flatnonzero(kept), matched.now.input_ids),
    )


def _most(harm: Values, rows: NDArray[np.int64], input_ids: Sequence[str]) -> tuple[str, ...]:
    """Of the inputs that are worse, those that lost the most."""
    lost = sorted((-harm[place], input_ids[rows[place]]) for place in np.flatnonzero(harm > 0))
    return tuple(name for _, name in lost[:LISTED])


def _noisy(rule: Rule, matched: Matched) -> NDArray[np.bool_]:
    """Inputs whose first answer of the reference changed by noise alone, on either side."""
    found = np.zeros(matched.now.n_inputs, dtype=np.bool_)
    whole = rule.metric.where is None and str(rule.metric) in _FIRST_ANSWER
    if not (whole or (rule.metric.where and str(replace(rule.metric, where=None)) in _FIRST_ANSWER)):
        return found
    for side in (matched.before, matched.now):
        if str(NOISE) in side.values:
            found |= side.values[str(NOISE)] > 0
    return found


def _tested(rule: Rule, a: Values, b: Values, *, seed: int) -> Judgement:
    better = cast(Better, rule.metric.direction)
    rate = rule.kind == "rate"
    difference = paired_rate_difference(a, b) if rate else paired_mean_difference(a, b, seed=seed)
    harm = b - a if better == "lower" else a - b
    found = Judgement(
        rule=rule,
        outcome="underpowered",
        reason="",
        n=len(a),
        now=rule.metric.estimate(b),
        before=float(a.mean()),
        difference=difference,
        worse=int((harm > 0).sum()),
        better=int((harm < 0).sum()),
    )
    p_worse = rate_worse(a, b, better=better) if rate else mean_worse(a, b, better=better, seed=seed)
    if rule.number is None:
        return replace(found, p_worse=p_worse)
    p_no_worse = (
        rate_no_worse(a, b, margin=rule.number, better=better)
        if rate
        else mean_no_worse(a, b, margin=rule.number, better=better, span=rule.span)
    )
    if rate and p_no_worse is not None:
        # a run that is shown to be better is shown to be no worse; where few inputs differ, the
        # bound that takes over from Tango's test does not see the better ones
        p_no_worse = min(p_no_worse, rate_worse(b, a, better=better))
    return replace(found, p_worse=p_worse, p_no_worse=p_no_worse)


def _needed(rule: Rule, step: Values, *, alpha: float) -> int | None:
    if rule.number is None:
        return None
    if not step.any() and math.isfinite(rule.span):
        return least_inputs(rule, alpha=alpha)
    spread = shrunken_spread(step, span=rule.span)
    if spread is None:
        return None
    if rule.kind == "rate":
        return inputs_for_rate(spread.share, margin=rule.number, alpha=alpha)
    return inputs_for_mean(spread, margin=rule.number, span=rule.span, alpha=alpha)


# --- The inputs to look at first: what changed, the worst and the new ones before the others ------


def worst_inputs(target: Target, baseline: Snapshot | None, *, n: int) -> tuple[tuple[Worst, ...], int, int | None]:
    """Inputs whose first answer changed: right ones that became wrong, new ones, largest leads.

    Args:
        target: the run.
        baseline: an input is new if its answer had not changed there; None if none can be compared.
        n: how many to list.

    Returns:
        Those, how many there are in all, and how many of them are new (None without a baseline).
    """
    unchanged = (
        set()
        if baseline is None
        else {name for name, answer in zip(baseline.input_ids, baseline.answers, strict=True) if ">" not in answer}
    )
    found = []
    for part in target.parts:
        for each in changed_inputs(part.evidence):
            name = f"{part.name}:{each.input_id}" if part.name else each.input_id
            new = None if baseline is None else name in unchanged
            found.append(Worst(changed=each, part=part.name, new=new))
    found.sort(key=_how_bad)
    n_new = None if baseline is None else sum(bool(each.new) for each in found)
    return tuple(found[:n]), len(found), n_new


def _how_bad(worst: Worst) -> tuple[int, bool, float, str, str]:
    changed = worst.changed
    kind = 1 if changed.was_right is None else 1 + bool(changed.is_right) - changed.was_right
    # the names last, so that the order of the inputs does not matter
    return kind, not worst.new, -(changed.lead or 0.0), worst.part, changed.input_id


# --- Rules, a run and its baseline brought together; p-values adjusted over the rules -------------

ALPHA = 0.05
WORST = 10

_LEAST_ALPHA = 1e-9
_MOST_ALPHA = 0.5


def metrics_of(rules: Sequence[Rule]) -> list[Metric]:
    """The metrics whose outcomes rules are judged by, each once."""
    asked = [rule.metric for rule in rules if rule.metric.arm != "relative"]
    return list(dict.fromkeys([*asked, parse_metric("flip@1"), NOISE]))


def snapshot_for(target: Target, rules: Sequence[Rule], earlier: Snapshot | None = None) -> Snapshot:
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
        raise QuantDriftError(f"alpha is a probability from {_LEAST_ALPHA:g} to {_MOST_ALPHA}, say 0.05; got {alpha:g}")


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
        rule: judge_limit(rule, target, rows[rule.on] if rule.on else None) for rule in rules if not rule.compares
    }
    comparing = [rule for rule in rules if rule.compares]
    changes: dict[Rule, Judgement] = {}
    if matched is not None and matched.differs:
        reason = "the run and the baseline are not of the same, see below"
        changes = {rule: Judgement(rule=rule, outcome="incomparable", reason=reason) for rule in comparing}
    elif matched is not None:
        places = {name: row for row, name in enumerate(now.input_ids)}
        order = [places[name] for name in matched.now.input_ids]
        parts = {name: inside[order] for name, inside in rows.items()}
        changes = {
            rule: undefined_now(rule, target)
            or judge_change(rule, matched, parts[rule.on] if rule.on else None, alpha=alpha, seed=seed)
            for rule in comparing
        }
    return _decided([{**limits, **changes}[rule] for rule in rules], alpha=alpha)


def judge_changes(rules: Sequence[Rule], matched: Matched, *, alpha: float = ALPHA, seed: int = 0) -> list[Judgement]:
    """What comparisons come to on inputs that are paired already, adjusted over the rules.

    Args:
        rules: all of them compare; none looks at a named slice.
        matched: the run and the baseline.
        alpha: level of the tests.
        seed: of resampling and permutations.
    """
    return _decided([judge_change(rule, matched, None, alpha=alpha, seed=seed) for rule in rules], alpha=alpha)


def _decided(found: Sequence[Judgement], *, alpha: float) -> list[Judgement]:
    adjusted = holm([each.p_worse for each in found])
    # what is decided without a test is decided already
    return [
        decide(each, p_worse_holm=p, alpha=alpha) if each.outcome == "underpowered" and each.n else each
        for each, p in zip(found, adjusted, strict=True)
    ]
