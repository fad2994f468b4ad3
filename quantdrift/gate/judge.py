"""Judge a run by rules, against its baseline: the outcome of every rule, and the verdict."""

import math
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantdrift.base.errors import QuantDriftError
from quantdrift.base.text import percent
from quantdrift.evidence.record import Evidence
from quantdrift.gate.baseline import Snapshot
from quantdrift.gate.result import ALPHA, Earlier, GateResult, Judgement, Verdict, Worst
from quantdrift.gate.rules import NOISE, Rule, RuleError, Slices, in_slice, slices_of, stored_metrics
from quantdrift.gate.target import Drawn, Part, Target
from quantdrift.metrics import MetricError, parse_metric
from quantdrift.runs.changes import changed_inputs
from quantdrift.runs.identity import Identity
from quantdrift.statistics import verdicts
from quantdrift.statistics.estimates import Estimate, undefined
from quantdrift.statistics.paired import paired_mean_difference, paired_rate_difference
from quantdrift.statistics.sequential import p_above, p_below, rate_bounds

STRAY = 0.01
"""Largest share of inputs that may have a value on one side only; rounding alone makes no more."""

_GRAVEST_FIRST: tuple[Verdict, ...] = ("error", "fail", "incomparable", "underpowered")
_OTHER_REFERENCE = 0.02
"""Largest share of inputs on which the reference may give another top-1 than in the baseline. Rounding changed less
than 0.01 wherever it was measured. A digest of weights does not cover prompts, and finished runs have no digest."""
_ROUNDING = 1e-12
"""Excess over a limit that is not counted: the rounding of a mean depends on the order of the inputs."""
_NAMED = 10
"""Worse inputs that a judgement names at most."""
_LISTED = 3
"""Inputs of one side alone that a difference names at most."""
_SIDES = "in the baseline", "now"
_ONLY_A_BOUND = "only a bound is known, of lists that were cut short"
_FIRST_ANSWER = frozenset({"flip@1", "gold_lost@1"})
"""Metrics of the first answer alone; the noise floor is measured on first answers."""

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """A run and its baseline on the inputs that both have.

    Attributes:
        now: the run.
        before: the baseline, in the order of `now`.
        differs: differences that make the two incomparable, one line each.
        notes: remarks, one sentence each, without a full stop.
        n_answers_changed: inputs to which the candidate gives another top-1 than in the baseline.
        same_candidate: whether the weights of the candidate (of a finished run its file) are those of the baseline.
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
    n_worst: int = 10,
    accept_underpowered: bool = False,
) -> GateResult:
    """Judge a run by rules.

    A comparison passes where the run is shown to be no worse by the margin. Otherwise it fails where the run is shown
    to be worse; the p-values of that test are adjusted by Holm's method over all rules, so that the chance of any
    false alarm stays below alpha. Those of passing are not adjusted, as the verdict is "pass" only if every rule passes
    (R. L. Berger, Multiparameter hypothesis testing and acceptance sampling, Technometrics 24 (1982), 295-300).
    """
    if not 1e-9 <= alpha <= 0.5:  # noqa: PLR2004 -- 0.5 is a toss of a coin
        raise QuantDriftError(f"alpha is a probability from 1e-09 to 0.5, say 0.05; got {alpha:g}")
    comparing = [rule for rule in rules if rule.compares]
    if comparing and baseline is None:
        raise RuleError(f"the rule '{comparing[0]}' needs a baseline, and there is none")
    slices = slices_of(slices or {}, rules)
    rules = list(dict.fromkeys(rules))
    if target.drawn is not None:
        refuse_sequential(rules)
    asked = [rule.metric for rule in rules if rule.metric.arm != "relative"]
    now = target.snapshot([*asked, parse_metric("flip@1"), NOISE])
    so_far = target.drawn is not None and target.drawn.n != target.drawn.of
    rows = {rule: in_slice(rule.on, slices, now.input_ids, so_far=so_far) for rule in rules if rule.on}
    # limits do not need the baseline
    matched = match(now, baseline) if comparing and baseline is not None else None
    judgements = []
    for rule in rules:
        if matched is not None and matched.differs and rule.compares:
            judgement = _incomparable(rule, "the run and the baseline were measured otherwise, see below")
        elif target.forbidden:
            judgement = _undefined(rule, " ".join(target.forbidden).removesuffix("."))
        elif target.drawn is not None:
            judgement = judge_rate(rule, target, rows.get(rule), alpha=alpha)
        elif matched is None or not rule.compares:
            judgement = judge_limit(rule, target, rows.get(rule))
        elif np.isnan(target.values(rule.metric)).all():
            estimate = rule.metric.known_over(target.evidence)
            judgement = _undefined(rule, estimate.reason if estimate.bound is None else _ONLY_A_BOUND)
        else:
            place = {name: row for row, name in enumerate(now.input_ids)}
            part = rows[rule][[place[name] for name in matched.now.input_ids]] if rule in rows else None
            judgement = judge_change(rule, matched, part, alpha=alpha)
        judgements.append(judgement)
    judgements = decide(judgements, alpha=alpha)
    comparable = matched is not None and not matched.differs
    worst, n_changed, n_new = worst_inputs(target, baseline if comparable else None, n=n_worst)
    return GateResult(
        verdict=verdict_of([judgement.outcome for judgement in judgements]),
        spec=target.identity.spec,
        data=target.identity.data_name,
        baseline=None if matched is None else Earlier(spec=matched.before.identity.spec),
        n_inputs=now.n_inputs,
        alpha=alpha,
        path=target.path,
        sequential=target.drawn,
        differs=() if matched is None else matched.differs,
        notes=(*target.notes, *(() if matched is None else matched.notes)),
        n_changed=n_changed,
        n_new=n_new,
        n_answers_changed=matched.n_answers_changed if matched and comparable else None,
        rules=tuple(judgements),
        worst=worst,
        accept_underpowered=accept_underpowered,
    )


def verdict_of(outcomes: Sequence[Verdict]) -> Verdict:
    """The gravest of some outcomes.

    >>> verdict_of(["pass", "underpowered", "pass"]), verdict_of(["incomparable", "fail"])
    ('underpowered', 'fail')
    """
    return next((verdict for verdict in _GRAVEST_FIRST if verdict in outcomes), "pass")


def snapshot_for(target: Target, rules: Sequence[Rule], earlier: Snapshot | None = None) -> Snapshot:
    """Return the snapshot for a baseline: the usual metrics, those of the rules, and those of the earlier baseline."""
    metrics = []
    for metric in [] if earlier is None else [parse_metric(name) for name in earlier.values]:
        with suppress(MetricError):  # the run stores fewer ranks
            target.values(metric)
            metrics.append(metric)
    whole = target.snapshot([*stored_metrics(target), *(rule.metric for rule in rules if rule.compares), *metrics])
    # without labels, say, a metric has no values
    return replace(whole, values={name: column for name, column in whole.values.items() if not np.isnan(column).all()})


def worst_inputs(target: Target, baseline: Snapshot | None, *, n: int) -> tuple[tuple[Worst, ...], int, int | None]:
    """The n worst inputs whose top-1 changed, the number of all such inputs, and of those that are new.

    Right answers that became wrong come first, then changes that the baseline does not have, then the largest gaps.
    """
    same = None
    if baseline is not None:
        answers = zip(baseline.input_ids, baseline.answers, strict=True)
        same = {name for name, answer in answers if ">" not in answer}

    def badness(worst: Worst) -> tuple[int, bool, float, str, str]:
        kind = 1 if worst.was_right is None else 1 + bool(worst.is_right) - worst.was_right
        # the names last, so that the order of the inputs does not matter
        return kind, not worst.new, -(worst.gap or 0.0), worst.part, worst.input_id

    changes = [
        Worst(**asdict(changed), part=part.name, new=None if same is None else part.full_name(changed.input_id) in same)
        for part in target.parts
        for changed in changed_inputs(part.evidence)
    ]
    changes.sort(key=badness)
    return tuple(changes[:n]), len(changes), None if same is None else sum(bool(change.new) for change in changes)


# --- are a run and a baseline comparable? -----------------------------------------------------


def match(now: Snapshot, baseline: Snapshot) -> Matched:
    """Pair the inputs of a run with those of a baseline, and list the differences of the two."""
    here, there = now.identity, baseline.identity
    differs, notes = there.differences(here, sides=_SIDES), []
    order = {name: row for row, name in enumerate(baseline.input_ids)}
    rows = [row for row, name in enumerate(now.input_ids) if name in order]
    unpaired = _only(now.input_ids, order, "this run") + _only(baseline.input_ids, set(now.input_ids), "the baseline")
    # a run whose layers were measured on some inputs leaves these out
    if unpaired and rows and here.data_fingerprint is not None and here.data_fingerprint == there.data_fingerprint:
        notes.append(f"inputs that only one of the two has are left out: {', '.join(unpaired)}")
    elif unpaired:
        differs.append(f"inputs: {', '.join(unpaired)}")
    after, before = now.part(rows), baseline.part([order[now.input_ids[row]] for row in rows])
    # one digest stands for both arms where their answers are the same
    answers = [[(text.split(">")[0], text.split(">")[-1]) for text in side.answers] for side in (after, before)]
    moved, answered = (sum(x[arm] != y[arm] for x, y in zip(*answers, strict=True)) for arm in (0, 1))
    moves = f"the reference gives another top-1 on {moved:,} of {len(rows):,} inputs"
    if moved > _OTHER_REFERENCE * len(rows):
        differs.append(f"reference: {moves}, so its model, prompt, length limit or pooling is another")
    elif moved:
        notes.append(f"{moves} than in the baseline")
    weights = here.candidate_fingerprint
    same = here.spec == there.spec and weights is not None and weights == there.candidate_fingerprint
    if here.spec != there.spec:
        notes.append(f"the baseline is of {there.spec}")
    elif same:
        notes.append("the candidate is that of the baseline, to the bit")
    return Matched(
        now=after,
        before=before,
        differs=tuple(differs),
        notes=(*notes, *there.differences(here, ("software",), sides=_SIDES)),
        n_answers_changed=answered,
        same_candidate=same,
    )


def _only(names: Sequence[str], others: Container[str], where: str) -> list[str]:
    missing = [repr(name) for name in names if name not in others]
    more = ", ..." if len(missing) > _LISTED else ""
    return [f"{len(missing):,} only in {where} ({', '.join(missing[:_LISTED])}{more})"] if missing else []


# --- limits -----------------------------------------------------------------------------------


def judge_limit(rule: Rule, target: Target, rows: Flags | None) -> Judgement:
    """Judge a limit on the inputs of a slice, bool [n_inputs], or on all."""
    metric, limit, upper = rule.metric, rule.number, rule.test == "<="
    assert limit is not None  # a limit has a number
    now = rule.metric.known_over(target.evidence)
    if rows is not None and now.value is not None:
        if now.bound is not None:
            return _undefined(rule, _ONLY_A_BOUND)
        # the values of the snapshot are rounded
        values = metric.told_apart(target.values(metric), target.evidence)[rows]
        values = values[~np.isnan(values)]
        now = metric.estimate(values) if len(values) else undefined(metric.family.undefined_when)
    if now.value is None:
        return _undefined(rule, now.reason)
    broken = (now.value - limit if upper else limit - now.value) > _ROUNDING
    # a lower bound above an upper limit breaks it for certain, as does an upper bound below a lower limit
    if now.bound is not None and not (broken and (now.bound == "lower") == upper):
        return replace(_undefined(rule, _ONLY_A_BOUND), n=now.n, now=now)
    reason = f"{'above' if upper else 'below'} the limit" if broken else "within the limit"
    return Judgement(rule=rule, outcome="fail" if broken else "pass", reason=reason, n=now.n, now=now)


def refuse_sequential(rules: Sequence[Rule]) -> None:
    """Refuse rules that are not judged while inputs are answered.

    Raises:
        RuleError: one is no limit on a rate, or there is none.
    """
    for rule in rules:
        metric = rule.metric
        problems = {
            "it compares with a baseline; give a limit, such as 'flip@1 <= 0.25'": rule.compares,
            f"{metric} is no share of inputs; take a rate, such as flip@1 or gold_lost@10": metric.kind != "rate",
            f"{metric} is known when all inputs are answered": metric.family.cutoff_is == "level" or metric == NOISE,
            "no number of inputs shows a limit of 0 or 1": rule.number in {0, 1},
        }
        if problem := next((problem for problem, wrong in problems.items() if wrong), None):
            raise RuleError(f"the rule '{rule}' cannot be judged with --sequential: {problem}")
    if not rules:
        raise RuleError("--sequential judges limits on rates; expected some, such as --rule 'flip@1 <= 0.25'")


def settled(evidence: Evidence, rules: Sequence[Rule], *, slices: Slices | None = None, alpha: float = ALPHA) -> bool:
    """Whether every rule is decided by the inputs that were answered so far, in the order in which they were."""
    target = Target(identity=Identity(), parts=(Part(name="", evidence=evidence),), drawn=Drawn(n=evidence.n_inputs))
    judged = gate(target, rules, slices=slices, alpha=alpha, n_worst=0)
    return all(judgement.outcome != "underpowered" for judgement in judged.rules)


def judge_rate(rule: Rule, target: Target, rows: Flags | None, *, alpha: float) -> Judgement:
    """Judge a limit on a rate by a test that holds at any number of inputs, before p-values are adjusted.

    The limit is one on the rate of all inputs that there could be, and not on what these ones come to.
    """
    assert target.drawn is not None
    assert rule.number is not None  # a limit has a number
    ended, upper = target.drawn.n == target.drawn.of, rule.test == "<="
    values = target.values(rule.metric)
    values = values[~np.isnan(values) & (True if rows is None else rows)]
    # without a value so far it counts in the adjustment of the others, too
    undecided = Judgement(rule=rule, outcome="underpowered", reason="", p_worse=1.0, p_no_worse=1.0)
    if not len(values):
        unlabelled = rule.metric.family.needs_labels and all(part.judgements is None for part in target.evidence)
        return _undefined(rule, rule.metric.known_over(target.evidence).reason) if ended or unlabelled else undecided
    low, high = rate_bounds(values, alpha=alpha, ended=ended)
    now = Estimate(value=float(values.mean()), low=low, high=high, n=len(values))
    tests = (p_above, p_below) if upper else (p_below, p_above)
    p_worse, p_no_worse = (test(values, rule.number, ended=ended) for test in tests)
    return replace(undecided, n=now.n, now=now, p_worse=p_worse, p_no_worse=p_no_worse)


def _undefined(rule: Rule, reason: str | None) -> Judgement:
    why = reason or rule.metric.family.undefined_when
    return Judgement(rule=rule, outcome="error", reason=f"undefined: {why}")


def _incomparable(rule: Rule, reason: str) -> Judgement:
    return Judgement(rule=rule, outcome="incomparable", reason=reason)


# --- comparisons with the baseline, on the same inputs ----------------------------------------


def judge_change(rule: Rule, matched: Matched, rows: Flags | None, *, alpha: float) -> Judgement:
    """Judge a comparison with the baseline, before p-values are adjusted."""
    name = str(rule.metric)
    now = matched.now.values[name]
    before = matched.before.values.get(name)
    chosen = np.ones(len(now), dtype=np.bool_) if rows is None else rows
    if before is None:
        return _incomparable(rule, "the baseline has no outcomes of this metric; write it again with --update")
    there, here = ~np.isnan(before) & chosen, ~np.isnan(now) & chosen
    both, stray = there & here, int((there ^ here).sum())
    if not both.any() and not stray:
        return _undefined(rule, None if chosen.any() else "no input of the slice is in both")
    if stray > STRAY * int(both.sum()):
        why = f"{stray:,} inputs have a value on one side only, so these are not the same inputs"
        return _incomparable(rule, why)
    if matched.same_candidate and not (before != now)[both].any():
        tested = _tested(rule, before[both], now[both])
        reason = "the same candidate as in the baseline, to the bit, and nothing differs"
        return replace(tested, outcome="pass", reason=reason, p_worse=None, p_no_worse=None)
    # an input that noise alone changes is no evidence for either side
    noisy = noisy_inputs(rule, matched)
    kept, aside = both & ~noisy, int((both & noisy).sum())
    if not kept.any():
        return Judgement(rule=rule, outcome="underpowered", reason=_all_noise(aside), set_aside=aside)
    tested = _tested(rule, before[kept], now[kept])
    shown = rule.number is None or aside <= rule.number * int(both.sum())
    step = (now - before) * (1 if rule.metric.direction == "lower" else -1)
    lost = sorted((-step[row], matched.now.input_ids[row]) for row in np.flatnonzero(kept & (step > 0)))
    return replace(
        tested,
        # the means are over all inputs, those set aside included
        now=rule.metric.estimate(now[both]),
        before=float(before[both].mean()),
        set_aside=aside,
        p_no_worse=tested.p_no_worse if shown else None,
        needed=_needed(rule, (now - before)[kept], alpha=alpha),
        inputs=tuple(input_id for _, input_id in lost[:_NAMED]),
    )


def noisy_inputs(rule: Rule, matched: Matched) -> Flags:
    """Inputs whose first answer of the reference changed by noise alone, on either side."""
    noisy = np.zeros(matched.now.n_inputs, dtype=np.bool_)
    if str(replace(rule.metric, where=None)) in _FIRST_ANSWER:
        for side in (matched.before, matched.now):
            if str(NOISE) in side.values:
                noisy |= side.values[str(NOISE)] > 0
    return noisy


def _tested(rule: Rule, a: Values, b: Values) -> Judgement:
    better, margin = rule.metric.direction, rule.number
    assert better != "none"  # Rule refuses to compare such a metric
    harm = b - a if better == "lower" else a - b
    p_no_worse = None
    if rule.metric.kind == "rate":
        difference, p_worse = paired_rate_difference(a, b), verdicts.rate_worse(a, b, better=better)
        if margin is not None:
            # a run that is shown to be better is no worse; where few inputs differ, the bound that replaces Tango's
            # test does not count the better ones
            bound = verdicts.rate_no_worse(a, b, margin=margin, better=better)
            p_no_worse = min(bound, verdicts.rate_worse(b, a, better=better))
    else:
        difference = paired_mean_difference(a, b)
        p_worse = verdicts.mean_worse(a, b, better=better)
        if margin is not None:
            p_no_worse = verdicts.mean_no_worse(a, b, margin=margin, better=better, span=rule.metric.span)
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
    if not step.any() and math.isfinite(rule.metric.span):
        return least_inputs(rule, alpha=alpha)
    rate = rule.metric.kind == "rate"
    return verdicts.inputs_needed(step, rate=rate, margin=rule.number, span=rule.metric.span, alpha=alpha)


def least_inputs(rule: Rule, *, alpha: float) -> int:
    """Count the inputs that show "no worse" if none of them differs: (1 - margin / span)^n < alpha."""
    assert rule.number is not None  # it has a margin
    return math.floor(math.log(alpha) / math.log1p(-rule.number / rule.metric.span)) + 1


def _all_noise(aside: int) -> str:
    return f"noise alone changes {aside:,} inputs, more than the margin, so nothing can be shown"


def decide(judgements: Sequence[Judgement], *, alpha: float) -> list[Judgement]:
    """Decide the outcomes of tests, with p-values adjusted for the number of rules."""
    adjusted = verdicts.holm([judgement.p_worse for judgement in judgements])
    return [
        _decided(replace(judgement, p_worse_holm=p), alpha=alpha)
        if judgement.outcome == "underpowered" and judgement.n
        else judgement  # decided without a test
        for judgement, p in zip(judgements, adjusted, strict=True)
    ]


def _decided(judgement: Judgement, *, alpha: float) -> Judgement:
    margin, needed = judgement.rule.number, judgement.needed
    harmed = judgement.p_worse_holm is not None and judgement.p_worse_holm < alpha
    cleared = judgement.p_no_worse is not None and judgement.p_no_worse < alpha
    outcome: Verdict = "pass" if cleared else "fail" if harmed else "pass" if margin is None else "underpowered"
    if not judgement.rule.compares:
        why = _of_rate(judgement, outcome)
    elif margin is None:
        why = "worse than the baseline" if harmed else "not shown to be worse"
    elif cleared:
        why = "shown to be worse, but by less than the margin" if harmed else "shown to be no worse"
    elif harmed:
        least, here, most = _worse_by(judgement)
        told = f": by {here:.3g}, perhaps by up to {most:.3g}, where at most {margin:g} is allowed"
        told = f" by {margin:g} or more" if least >= margin else told if math.isfinite(most) else ""
        why = f"shown to be worse{told}"
    elif judgement.p_no_worse is None and judgement.set_aside:
        why = _all_noise(judgement.set_aside)
    elif judgement.p_no_worse is None:
        why = "too few inputs differ, and the metric has no bound on the change of one input"
    elif needed is not None and judgement.n < needed:
        why = f"too few inputs to tell: there are {judgement.n:,}, and about {needed:,} are needed"
    else:
        why = "too few inputs to tell: the difference is about as large as the margin"
    return replace(judgement, outcome=outcome, reason=why)


def _of_rate(judgement: Judgement, outcome: Verdict) -> str:
    """The bound of a rate that decides about its limit, or both."""
    assert judgement.now is not None  # there are inputs
    least, most = f"at least {percent(judgement.now.low)}", f"at most {percent(judgement.now.high)}"
    if outcome == "underpowered":
        return f"too few inputs to tell: it is {least} and {most}"
    bound = most if (outcome == "pass") == (judgement.rule.test == "<=") else least
    return f"shown to be {'within' if outcome == 'pass' else 'beyond'} the limit, {bound}"


def _worse_by(judgement: Judgement) -> tuple[float, float, float]:
    """The harm at the better end of the interval of the difference, at the difference, and at the worse end."""
    step = judgement.difference
    if step is None or step.low is None or step.value is None or step.high is None:
        return (-math.inf,) * 3
    ends = step.low, step.value, step.high
    return ends if judgement.rule.metric.direction == "lower" else (-step.high, -step.value, -step.low)
