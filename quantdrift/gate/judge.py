"""Rules, a run and its baseline brought together: what every rule comes to, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError
from quantdrift.gate.baseline import Snapshot
from quantdrift.gate.rules import NOISE, Rule, RuleError, Slices, in_slice, slices_of, stored_metrics
from quantdrift.gate.target import Target
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.runs.changes import Changed, changed_inputs
from quantdrift.runs.identity import Identity
from quantdrift.statistics import verdicts
from quantdrift.statistics.estimates import Estimate, undefined
from quantdrift.statistics.paired import paired_mean_difference, paired_rate_difference

ALPHA = 0.05
WORST = 10
STRAY = 0.01
"""Share of the inputs that may have a value on one side only; more are no accident of rounding."""

Verdict = Literal["pass", "fail", "underpowered", "incomparable", "error"]
"""Of a run and of a rule; "error" is one that asks for what is undefined in this run."""

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "fail": 1, "error": 2, "incomparable": 3, "underpowered": 4}
"""What the command ends with."""

_GRAVEST_FIRST: tuple[Verdict, ...] = ("error", "fail", "incomparable", "underpowered")
_OTHER_REFERENCE = 0.02
"""Share of first answers of the reference that may be others. Rounding made less than 0.01 wherever
it was measured; a digest of weights does not see prompts, and of finished runs there is none."""
_ROUNDING = 1e-12
"""A mean is not beyond a limit by this little: which way it was rounded depends on the order."""
_NAMED = 10
"""Inputs that a rule names."""
_SIDES = "in the baseline", "now"
_ONLY_A_BOUND = "only a bound is known, of lists that were cut short"
_FIRST_ANSWER = frozenset({"flip@1", "gold_lost@1"})
"""Metrics of the first answer alone, which is what the noise floor is known of."""

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one rule came to.

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
        """As a JSON object; the rule is its string."""
        values = {name: getattr(self, name) for name in self.__slots__}
        values["rule"] = str(self.rule)
        return {name: value.to_json() if isinstance(value, Estimate) else value for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """An input whose top-1 changed.

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
        n_answers_changed: inputs to which the candidate gives another answer than in the baseline; None without one.
        worst: changed inputs, the worst first.
        alpha: level of the tests.
        accept_underpowered: whether too few inputs end in success.
    """

    verdict: Verdict
    judgements: tuple[Judgement, ...]
    identity: Identity
    n_inputs: int
    baseline: Identity | None = None
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    n_changed: int
    n_new: int | None = None
    n_answers_changed: int | None = None
    worst: tuple[Worst, ...] = ()
    alpha: float = ALPHA
    accept_underpowered: bool = False

    @property
    def accepted(self) -> bool:
        """Whether there are too few inputs, and that is taken for success."""
        return self.accept_underpowered and self.verdict == "underpowered"

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return EXIT_CODES["pass" if self.accepted else self.verdict]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        as_they_are = ("n_inputs", "alpha", "differs", "notes", "n_changed", "n_new", "n_answers_changed")
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "spec": self.identity.spec,
            "data": self.identity.data_name,
            "baseline": None if self.baseline is None else {"spec": self.baseline.spec},
            **{name: getattr(self, name) for name in as_they_are},
            "rules": [judgement.to_json() for judgement in self.judgements],
            "worst": [each.to_json() for each in self.worst],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """A run and its baseline, row by row.

    Attributes:
        now: the run, of the inputs that both have.
        before: the baseline, in the order of `now`.
        differs: what makes the two incomparable, one line each; empty if nothing does.
        notes: what to know, one sentence each, without a full stop.
        n_answers_changed: inputs to which the candidate now gives another top-1 than it did.
        same_candidate: whether its weights, or of a finished run its file, are known to be those of the baseline.
    """

    now: Snapshot
    before: Snapshot
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    n_answers_changed: int = 0
    same_candidate: bool = False


# --- a run, its rules and its baseline --------------------------------------------------------


def gate(
    target: Target,
    rules: Sequence[Rule],
    baseline: Snapshot | None = None,
    *,
    slices: Slices | None = None,
    alpha: float = ALPHA,
    n_worst: int = WORST,
    accept_underpowered: bool = False,
) -> GateResult:
    """Judge a run by rules.

    A rule that compares fails where the run is shown to be worse, and no less than by its margin; the p-values of
    that are adjusted by Holm's method over all rules, so that the chance of any false alarm stays below alpha. It
    passes where the run is shown to be worse by less than the margin; that is not adjusted, as the verdict is "pass"
    only if every rule passes (R. L. Berger, Multiparameter hypothesis testing and acceptance sampling, Technometrics
    24 (1982), 295-300).
    """
    if not 1e-9 <= alpha <= 0.5:  # noqa: PLR2004 -- so much is a toss of a coin
        raise QuantDriftError(f"alpha is a probability from 1e-09 to 0.5, say 0.05; got {alpha:g}")
    comparing = [rule for rule in rules if rule.compares]
    if comparing and baseline is None:
        raise RuleError(f"the rule '{comparing[0]}' needs a baseline, and there is none")
    slices = slices_of(slices or {}, rules)
    rules = list(dict.fromkeys(rules))
    asked = [rule.metric for rule in rules if rule.metric.arm != "relative"]
    now = target.snapshot([*asked, parse_metric("flip@1"), NOISE])
    rows = {rule: in_slice(rule.on, slices, now.input_ids) for rule in rules if rule.on}
    # limits stand whatever the baseline; what it differs in would only distract
    matched = match(now, baseline) if comparing and baseline is not None else None
    found = []
    for rule in rules:
        if matched is None or not rule.compares:
            found.append(judge_limit(rule, target, rows.get(rule)))
        elif matched.differs:
            reason = "the run and the baseline are not of the same, see below"
            found.append(Judgement(rule=rule, outcome="incomparable", reason=reason))
        elif np.isnan(target.values(rule.metric)).all():
            estimate = _estimate(rule, target)
            found.append(_undefined(rule, estimate.reason if estimate.bound is None else _ONLY_A_BOUND))
        else:
            place = {name: row for row, name in enumerate(now.input_ids)}
            part = rows[rule][[place[name] for name in matched.now.input_ids]] if rule in rows else None
            found.append(judge_change(rule, matched, part, alpha=alpha))
    found = decide(found, alpha=alpha)
    comparable = matched is not None and not matched.differs
    worst, n_changed, n_new = worst_inputs(target, baseline if comparable else None, n=n_worst)
    return GateResult(
        verdict=verdict_of([judgement.outcome for judgement in found]),
        judgements=tuple(found),
        identity=target.identity,
        n_inputs=now.n_inputs,
        baseline=None if matched is None else matched.before.identity,
        differs=() if matched is None else matched.differs,
        notes=(*target.notes, *(() if matched is None else matched.notes)),
        n_changed=n_changed,
        n_new=n_new,
        n_answers_changed=matched.n_answers_changed if matched and comparable else None,
        worst=worst,
        alpha=alpha,
        accept_underpowered=accept_underpowered,
    )


def verdict_of(outcomes: Sequence[Verdict]) -> Verdict:
    """The gravest of some outcomes; a broken limit fails whatever the baseline.

    >>> verdict_of(["pass", "underpowered", "pass"]), verdict_of(["incomparable", "fail"])
    ('underpowered', 'fail')
    """
    return next((verdict for verdict in _GRAVEST_FIRST if verdict in outcomes), "pass")


def snapshot_for(target: Target, rules: Sequence[Rule], earlier: Snapshot | None = None) -> Snapshot:
    """What a baseline holds of a run: the stored metrics, and those that rules or its forerunner compare."""
    known = []
    for metric in [] if earlier is None else [parse_metric(name) for name in earlier.values]:
        with suppress(MetricError):  # a run of fewer ranks
            target.values(metric)
            known.append(metric)
    whole = target.snapshot([*stored_metrics(target), *(rule.metric for rule in rules if rule.compares), *known])
    # a column without a value, say of labels that are not there, is noise in the file
    return replace(whole, values={name: held for name, held in whole.values.items() if not np.isnan(held).all()})


def worst_inputs(target: Target, baseline: Snapshot | None, *, n: int) -> tuple[tuple[Worst, ...], int, int | None]:
    """Inputs whose top-1 changed: right ones that became wrong, new ones, largest leads."""
    same, found = None, []
    if baseline is not None:
        answers = zip(baseline.input_ids, baseline.answers, strict=True)
        same = {name for name, answer in answers if ">" not in answer}
    for part in target.parts:
        for each in changed_inputs(part.evidence):
            name = part.full_name(each.input_id)
            found.append(Worst(changed=each, part=part.name, new=None if same is None else name in same))

    def badness(worst: Worst) -> tuple[int, bool, float, str, str]:
        was, now = worst.changed.was_right, worst.changed.is_right
        kind = 1 if was is None else 1 + bool(now) - was
        # the names last, so that the order of the inputs does not matter
        return kind, not worst.new, -(worst.changed.gap or 0.0), worst.part, worst.changed.input_id

    found.sort(key=badness)
    return tuple(found[:n]), len(found), None if same is None else sum(bool(each.new) for each in found)


# --- whether a run and a baseline belong together ---------------------------------------------


def match(now: Snapshot, baseline: Snapshot) -> Matched:
    """Pair the inputs of a run with those of a baseline, and list what else is different."""
    here, there = now.identity, baseline.identity
    differs, notes = there.differences(here, sides=_SIDES), []
    order = {name: row for row, name in enumerate(baseline.input_ids)}
    rows = [row for row, name in enumerate(now.input_ids) if name in order]
    told = _only(now.input_ids, order, "this run") + _only(baseline.input_ids, set(now.input_ids), "the baseline")
    # of the same data, inputs that layers were measured on are left out
    if told and rows and here.data_fingerprint is not None and here.data_fingerprint == there.data_fingerprint:
        notes.append(f"inputs that only one of the two has are left out: {', '.join(told)}")
    elif told:
        differs.append(f"inputs: {', '.join(told)}")
    one, other = now.part(rows), baseline.part([order[now.input_ids[row]] for row in rows])
    # of both arms, or of both at once where they are the same
    answers = [[(text.split(">")[0], text.split(">")[-1]) for text in each.answers] for each in (one, other)]
    moved, answered = (sum(x[arm] != y[arm] for x, y in zip(*answers, strict=True)) for arm in (0, 1))
    moves = f"the reference gives another top-1 on {moved:,} of {len(rows):,} inputs"
    if moved > _OTHER_REFERENCE * len(rows):
        differs.append(f"reference: {moves}, which is another model, prompt, length or pooling")
    elif moved:
        notes.append(f"{moves} than when the baseline was made")
    known = here.candidate_fingerprint
    same = here.spec == there.spec and known is not None and known == there.candidate_fingerprint
    if here.spec != there.spec:
        notes.append(f"the baseline is of {there.spec}")
    elif same:
        notes.append("the candidate is that of the baseline, to the bit")
    return Matched(
        now=one,
        before=other,
        differs=tuple(differs),
        notes=(*notes, *there.differences(here, ("software",), sides=_SIDES)),
        n_answers_changed=answered,
        same_candidate=same,
    )


def _only(names: Sequence[str], others: Container[str], where: str) -> list[str]:
    left = [repr(name) for name in names if name not in others]
    more = ", ..." if len(left) > len(left[:3]) else ""
    return [f"{len(left):,} only in {where} ({', '.join(left[:3])}{more})"] if left else []


# --- a limit: is a value at most, or at least, so much? ---------------------------------------


def judge_limit(rule: Rule, target: Target, rows: Flags | None) -> Judgement:
    """What a limit comes to, on the inputs of its slice, bool [n_inputs], or on all."""
    metric, limit, upper = rule.metric, rule.number, rule.test == "<="
    assert limit is not None  # a limit has a number
    now = _estimate(rule, target)
    if rows is not None and now.value is not None:
        if now.bound is not None:
            return _undefined(rule, _ONLY_A_BOUND)
        # not those of the snapshot, which are rounded
        values = metric.told_apart(target.values(metric), target.evidence)[rows]
        values = values[~np.isnan(values)]
        now = metric.estimate(values) if len(values) else undefined(metric.family.undefined_when)
    if now.value is None:
        return _undefined(rule, now.reason)
    broken = (now.value - limit if upper else limit - now.value) > _ROUNDING
    # a lower bound above an upper limit decides, and so does an upper one below a lower
    if now.bound is not None and not (broken and (now.bound == "lower") == upper):
        return replace(_undefined(rule, _ONLY_A_BOUND), n=now.n, now=now)
    beyond = f"{'above' if upper else 'below'} the limit"
    return Judgement(
        rule=rule,
        outcome="fail" if broken else "pass",
        reason=beyond if broken else "within the limit",
        n=now.n,
        now=now,
    )


def _estimate(rule: Rule, target: Target) -> Estimate:
    try:
        return rule.metric.over(target.evidence)
    except MetricError as error:
        return undefined(str(error))


def _undefined(rule: Rule, reason: str | None) -> Judgement:
    why = reason or rule.metric.family.undefined_when
    return Judgement(rule=rule, outcome="error", reason=f"undefined: {why}")


# --- a comparison with the baseline, on the same inputs: is the run no worse? -----------------


def judge_change(rule: Rule, matched: Matched, rows: Flags | None, *, alpha: float) -> Judgement:
    """What a comparison with the baseline comes to, before p-values are adjusted."""
    name = str(rule.metric)
    now = matched.now.values[name]
    before = matched.before.values.get(name)
    chosen = np.ones(len(now), dtype=np.bool_) if rows is None else rows
    if before is None:
        reason = "the baseline has no outcomes of this metric; write it anew with --update"
        return Judgement(rule=rule, outcome="incomparable", reason=reason)
    there, here = ~np.isnan(before) & chosen, ~np.isnan(now) & chosen
    both, stray = there & here, int((there ^ here).sum())
    if not both.any() and not stray:
        return _undefined(rule, None if chosen.any() else "no input of the slice is in both")
    if stray > STRAY * int(both.sum()):
        reason = f"{stray:,} inputs have a value on one side only, so these are not the same inputs"
        return Judgement(rule=rule, outcome="incomparable", reason=reason)
    if matched.same_candidate and not (before != now)[both].any():
        found = _tested(rule, before[both], now[both])
        reason = "the same candidate as in the baseline, to the bit, and nothing differs"
        return replace(found, outcome="pass", reason=reason, p_worse=None, p_no_worse=None)
    # what noise alone changes says nothing for either side
    noisy = noisy_inputs(rule, matched)
    kept, aside = both & ~noisy, int((both & noisy).sum())
    if not kept.any():
        return Judgement(rule=rule, outcome="underpowered", reason=all_noise(aside), set_aside=aside)
    found = _tested(rule, before[kept], now[kept])
    shown = rule.number is None or aside <= rule.number * int(both.sum())
    step = (now - before) * (1 if rule.metric.direction == "lower" else -1)
    lost = sorted((-step[row], matched.now.input_ids[row]) for row in np.flatnonzero(kept & (step > 0)))
    return replace(
        found,
        # as they were measured, whatever is set aside
        now=rule.metric.estimate(now[both]),
        before=float(before[both].mean()),
        set_aside=aside,
        p_no_worse=found.p_no_worse if shown else None,
        needed=_needed(rule, (now - before)[kept], alpha=alpha),
        inputs=tuple(input_id for _, input_id in lost[:_NAMED]),
    )


def noisy_inputs(rule: Rule, matched: Matched) -> Flags:
    """Inputs whose first answer of the reference changed by noise alone, on either side."""
    found = np.zeros(matched.now.n_inputs, dtype=np.bool_)
    if str(replace(rule.metric, where=None)) in _FIRST_ANSWER:
        for side in (matched.before, matched.now):
            if str(NOISE) in side.values:
                found |= side.values[str(NOISE)] > 0
    return found


def _tested(rule: Rule, a: Values, b: Values) -> Judgement:
    better, margin = rule.metric.direction, rule.number
    assert better != "none"  # such a metric has no comparison
    harm = b - a if better == "lower" else a - b
    p_no_worse = None
    if rule.kind == "rate":
        difference, p_worse = paired_rate_difference(a, b), verdicts.rate_worse(a, b, better=better)
        if margin is not None:
            # a run that is shown to be better is shown to be no worse; where few inputs differ, the
            # bound that takes over from Tango's test does not see the better ones
            bound = verdicts.rate_no_worse(a, b, margin=margin, better=better)
            p_no_worse = min(bound, verdicts.rate_worse(b, a, better=better))
    else:
        difference = paired_mean_difference(a, b)
        p_worse = verdicts.mean_worse(a, b, better=better)
        if margin is not None:
            p_no_worse = verdicts.mean_no_worse(a, b, margin=margin, better=better, span=rule.span)
    return Judgement(
        rule=rule,
        outcome="underpowered",
        reason="",
        n=len(a),
        now=rule.metric.estimate(b),
        before=float(a.mean()),
        difference=difference,
        worse=int((harm > 0).sum()),
        better=int((harm < 0).sum()),
        p_worse=p_worse,
        p_no_worse=p_no_worse,
    )


def _needed(rule: Rule, step: Values, *, alpha: float) -> int | None:
    if rule.number is None:
        return None
    if not step.any() and math.isfinite(rule.span):
        return least_inputs(rule, alpha=alpha)
    rate = rule.kind == "rate"
    return verdicts.inputs_needed(step, rate=rate, margin=rule.number, span=rule.span, alpha=alpha)


def least_inputs(rule: Rule, *, alpha: float) -> int:
    """How many inputs show "no worse" if none of them differs: (1 - margin / span)^n < alpha."""
    assert rule.number is not None  # it has a margin
    return math.floor(math.log(alpha) / math.log1p(-rule.number / rule.span)) + 1


def all_noise(aside: int) -> str:
    """Why nothing can be shown where noise changes more inputs than the margin."""
    return f"noise alone changes {aside:,} inputs, more than the margin, so nothing can be shown"


def decide(found: Sequence[Judgement], *, alpha: float) -> list[Judgement]:
    """The outcomes of tests, their p-values adjusted for the number of rules."""
    adjusted = verdicts.holm([each.p_worse for each in found])
    # what is decided without a test is decided already
    return [
        _decided(replace(each, p_worse_holm=p), alpha=alpha) if each.outcome == "underpowered" and each.n else each
        for each, p in zip(found, adjusted, strict=True)
    ]


def _decided(found: Judgement, *, alpha: float) -> Judgement:
    margin = found.rule.number
    harmed = found.p_worse_holm is not None and found.p_worse_holm < alpha
    cleared = found.p_no_worse is not None and found.p_no_worse < alpha
    if margin is None:
        why = "worse than the baseline" if harmed else "not shown to be worse"
        return replace(found, outcome="fail" if harmed else "pass", reason=why)
    if cleared:
        why = "worse, but shown to be by less than the margin" if harmed else "shown to be no worse"
        return replace(found, outcome="pass", reason=why)
    if harmed:
        why = f"shown to be worse, and by {margin:g} or more cannot be ruled out"
        return replace(found, outcome="fail", reason=why)
    if found.p_no_worse is None and found.set_aside:
        why = all_noise(found.set_aside)
    elif found.p_no_worse is None:
        why = "too few inputs differ, and nothing bounds by how much one of them can"
    elif found.needed is not None and found.n < found.needed:
        why = f"too few inputs to tell: {found.n:,}, and it takes about {found.needed:,}"
    else:
        why = "too few inputs to tell: the difference is about as large as the margin"
    return replace(found, reason=why)
