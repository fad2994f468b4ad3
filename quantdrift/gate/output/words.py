"""What a judged run is told with, wherever: one line, and the sentences below the tables."""

from __future__ import annotations

from collections.abc import Sequence

from quantdrift.display import clean, shorten, shown
from quantdrift.gate.result import GateResult, Judgement, Outcome
from quantdrift.report.numbers import show

__all__ = ["headline", "rule_name", "sentences", "subject"]

_LISTED = 3
_RULE = 100
_SENTENCE = 500

_CAME_TO: dict[Outcome, tuple[str, str]] = {
    "fail": ("failed", "failed"),
    "underpowered": ("is undecided", "are undecided"),
    "incomparable": ("cannot be compared", "cannot be compared"),
    "error": ("cannot be judged", "cannot be judged"),
}


def rule_name(judgement: Judgement) -> str:
    """The rule as it is shown; the name of a slice can be of any length."""
    return shorten(clean(str(judgement.rule)), _RULE)


def subject(result: GateResult) -> str:
    """Who was judged, on what.

    Args:
        result: a judged run.
    """
    identity = result.identity
    n, data = _inputs(result.n_inputs), shown(identity.data)
    # of two finished runs the data may have no other name than its size
    whole = f"{shown(identity.spec)} on {data}" + ("" if data == n else f", {n}")
    if result.baseline is None:
        return whole
    same = result.baseline.spec == identity.spec
    return f"{whole}, against a baseline of {'the same' if same else shown(result.baseline.spec)}"


def headline(result: GateResult, *, accept_underpowered: bool = False) -> str:
    """The verdict and why, on one line.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
    """
    verdict = result.verdict
    told = [each for each in result.judgements if each.outcome == verdict]
    total = len(result.judgements)
    if verdict == "pass":
        which = f"all {total:,} rules hold" if total > 1 else f"{_some(told)} holds"
        return f"pass: {which}"
    word = "underpowered, which is accepted" if _accepted(result, accept_underpowered) else verdict
    if verdict == "incomparable" and result.differs:
        more = len(result.differs) - 1
        also = f", and {more:,} more" if more else ""
        first = shorten(clean(result.differs[0]), _SENTENCE)
        return f"{word}: the run and the baseline differ in {first}{also}"
    one, several = _CAME_TO[verdict]
    came_to = one if len(told) == 1 else several
    why = f" ({clean(told[0].reason)})" if len(told) == 1 and told[0].reason else ""
    rules = "1 rule" if total == 1 else f"{total:,} rules"
    return f"{word}: {len(told):,} of {rules} {came_to}, {_some(told)}{why}"


def _accepted(result: GateResult, accept_underpowered: bool) -> bool:
    return accept_underpowered and result.verdict == "underpowered"


def _some(judgements: Sequence[Judgement]) -> str:
    names = [rule_name(each) for each in judgements]
    if len(names) > _LISTED:
        return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED:,} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "no rule"


def sentences(
    result: GateResult, *, accept_underpowered: bool = False, only: Judgement | None = None
) -> list[str]:
    """What changed, what each rule that does not pass means and what to do, and what to know.

    Args:
        result: a judged run.
        accept_underpowered: whether too few inputs end in success.
        only: what is said of rules is said of this one only.
    """
    told = result.judgements if only is None else (only,)
    to_do = _to_do(result, told, accept_underpowered=accept_underpowered)
    lines = [
        *_changed(result),
        *(line for each in told if (line := _of_rule(each, result.alpha))),
        *(line for each in told if (line := _named(each))),
        *_incomparable(told),
        *(f"Differs: {difference}." for difference in result.differs),
        *to_do,
        *(line for each in told if (line := _set_aside(each))),
        *(f"Note: {note}." for note in result.notes),
    ]
    return [shorten(clean(line), _SENTENCE) for line in lines]


def _changed(result: GateResult) -> list[str]:
    n = _inputs(result.n_inputs)
    if result.n_changed:
        have = "has" if result.n_changed == 1 else "have"
        line = f"{result.n_changed:,} of {n} {have} another first answer than the reference"
    else:
        line = f"None of {n} has another first answer than the reference"
    if result.n_changed and result.n_new is not None:
        line += f"; {result.n_new:,} of them had not in the baseline"
    moved = result.n_answers_changed
    if moved is None:
        return [f"{line}."]
    if not moved:
        return [f"{line}.", "The candidate gives the first answers that it gave in the baseline."]
    return [
        f"{line}.",
        f"On {_inputs(moved)} the candidate answers otherwise than in the baseline.",
    ]


def _of_rule(each: Judgement, alpha: float) -> str | None:
    name = rule_name(each)
    if each.outcome == "fail":
        return f"{name} failed: {each.reason}{_by_how_much(each)}."
    if each.outcome in {"underpowered", "error"}:
        return f"{name} {_CAME_TO[each.outcome][0]}: {each.reason}."
    harmed = each.p_worse_holm is not None and each.p_worse_holm < alpha
    if each.outcome == "pass" and each.rule.compares and harmed:
        return f"{name} holds: {each.reason}."
    return None


def _named(each: Judgement) -> str | None:
    """The inputs that broke a rule of comparison."""
    if each.outcome != "fail" or not each.inputs:
        return None
    names = ", ".join(shown(name) for name in each.inputs)
    more = (each.worse or len(each.inputs)) - len(each.inputs)
    return f"{rule_name(each)}, worse on: {names}" + (f" and {more:,} more." if more > 0 else ".")


def _by_how_much(each: Judgement) -> str:
    if each.worse is not None and each.better is not None:
        return f" ({_inputs(each.worse)} worse than in the baseline, {each.better:,} better)"
    if each.now is not None and not each.rule.compares:
        return f" (it is {show(each.rule.metric, each.now)})"
    return ""


def _incomparable(told: Sequence[Judgement]) -> list[str]:
    """One sentence for all rules of one reason, which is mostly the same."""
    reasons: dict[str, list[Judgement]] = {}
    for each in told:
        if each.outcome == "incomparable":
            reasons.setdefault(each.reason, []).append(each)
    return [f"{_some(several)} cannot be compared: {why}." for why, several in reasons.items()]


def _to_do(
    result: GateResult, told: Sequence[Judgement], *, accept_underpowered: bool
) -> list[str]:
    outcomes = {each.outcome for each in told}
    failed = [each.rule for each in told if each.outcome == "fail"]
    lines = []
    if any(rule.compares for rule in failed):
        look = "Look at the inputs listed and repair" if result.worst else "Repair"
        lines.append(
            f"{look} what made them worse. If the change is meant, accept it with --update and "
            "commit the new baseline."
        )
    if not all(rule.compares for rule in failed):
        lines.append(
            "A limit does not move with the baseline: repair the model, or change the rule."
        )
    if "underpowered" in outcomes:
        lines.append(_for_underpowered(told, accepted=_accepted(result, accept_underpowered)))
    if "incomparable" in outcomes:
        lines.append(
            "If that is meant, write a new baseline with --update and commit it; otherwise measure "
            "again as the baseline was measured."
        )
    if "error" in outcomes:
        lines.append("Measure what the rule needs, or leave the rule out.")
    return lines


def _for_underpowered(told: Sequence[Judgement], *, accepted: bool) -> str:
    if accepted:
        return "Too few inputs are accepted (--accept-underpowered), so this ends in success."
    short = [
        (each.needed, each.n)
        for each in told
        if each.outcome == "underpowered" and each.needed is not None and each.needed > each.n
    ]
    more = "Measure more inputs"
    if short:
        needed, n = max(short)
        more = f"Measure about {needed:,} inputs (there are {n:,})"
    return (
        f"{more}, allow a larger margin, or take this outcome for success with "
        "--accept-underpowered."
    )


def _set_aside(each: Judgement) -> str | None:
    if not each.set_aside:
        return None
    one = each.set_aside == 1
    left = "1 input is" if one else f"{each.set_aside:,} inputs are"
    return (
        f"{rule_name(each)}: {left} left out of the tests, as noise alone changes "
        f"{'it' if one else 'them'}."
    )


def _inputs(n: int) -> str:
    return "1 input" if n == 1 else f"{n:,} inputs"
